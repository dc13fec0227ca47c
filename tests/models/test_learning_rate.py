from __future__ import annotations

import pytest

from cnnbench.errors import UsageError
from cnnbench.models import LearningRateSpec


@pytest.mark.parametrize(
    "wrong",
    [
        {"boundaries_epochs": (1.0,)},
        {"factors": (1.0, 0.1)},
        {"boundaries_epochs": (2.0, 1.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (2.0, 2.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (1.0,), "factors": (1.0, 0.1), "decay_epochs": 2.0},
    ],
)
def test_learning_rate_spec_refuses_what_does_not_fit(wrong):
    with pytest.raises(UsageError, match="learning rate"):
        LearningRateSpec(0.1, **wrong)


def test_a_cosine_falls_in_steps_of_an_epoch():
    rate = LearningRateSpec.cosine(0.4, base_batch=256, epochs=4, warmup_epochs=1.0)
    assert rate.boundaries_epochs == (1.0, 2.0, 3.0)
    # cos 0, 45, 90 and 135 degrees.
    assert rate.factors == pytest.approx((1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2))
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.4, 256, 1.0)
