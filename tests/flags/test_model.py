"""Checks across the flags of model and precision."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.groups import model


@pytest.mark.parametrize("scale", [1e-39, 1e38, 1e300])
def test_a_loss_scale_beyond_float32_is_refused(scale):
    with pytest.raises(FlagError, match=r"^--fp16_loss_scale=.*from 2\^-126 to 2\^126"):
        validate(Params(precision="fp16", fp16_loss_scale=scale))


@pytest.mark.parametrize("scale", [2.0**-126, 0.5, 2.0**126])
def test_other_loss_scales_are_accepted(scale):
    validate(Params(precision="fp16", fp16_loss_scale=scale))


def test_automatic_loss_scale_needs_a_mode_that_knows_whom_to_stop():
    flags = {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
    for mode in ("parameter_server", "replicated", "independent", "distributed_all_reduce"):
        model.check(Params(variable_update=mode, **flags))
    with pytest.raises(FlagError, match="does not go with --variable_update=mirrored_strategy"):
        model.check(Params(variable_update="mirrored_strategy", **flags))
