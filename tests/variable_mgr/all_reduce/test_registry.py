from __future__ import annotations

import pytest

from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import VariableMgrSpec, all_reduce
from cnnbench.variable_mgr.all_reduce.copy import CopyToOneDevice


def spec(**fields):
    return VariableMgrSpec(
        variable_update="replicated", devices=("a", "b"), cpu_device="c", **fields
    )


def test_copying_is_the_default():
    assert isinstance(all_reduce.create(spec()), CopyToOneDevice)
    assert isinstance(all_reduce.create(spec(all_reduce_spec="copy")), CopyToOneDevice)


def test_unknown_algorithm_names_the_known_ones():
    with pytest.raises(FlagError, match=r"--all_reduce_spec=warp: must be one of .*copy"):
        all_reduce.create(spec(all_reduce_spec="warp"))


def test_a_name_is_taken_once():
    assert "copy" in all_reduce.names()
    with pytest.raises(UsageError, match="'copy' is already registered"):
        all_reduce.register("copy")(lambda spec: CopyToOneDevice(None))
    assert isinstance(all_reduce.create(spec()), CopyToOneDevice)
