from __future__ import annotations

import pytest

from cnnbench.errors import FlagError
from cnnbench.variable_mgr import VariableMgrSpec


def make(**fields):
    given = {"variable_update": "replicated", "devices": ("a", "b"), "cpu_device": "c"}
    return VariableMgrSpec(**{**given, **fields})


@pytest.mark.parametrize(
    ("towers", "reduction", "scale"),
    [(1, "mean", None), (1, "sum", None), (2, "mean", 0.5), (8, "mean", 0.125), (2, "sum", None)],
)
def test_the_scale_of_a_sum_is_given_only_when_it_changes_something(towers, reduction, scale):
    assert make(devices=("d",) * towers, reduction=reduction).reduction_scale == scale


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"devices": ()}, "num_gpus"),
        ({"reduction": "max"}, "gradient_reduction"),
        ({"parameter_device": "disk"}, "local_parameter_device"),
    ],
)
def test_refusals_name_the_flag(fields, flag):
    with pytest.raises(FlagError) as error:
        make(**fields)
    assert error.value.flag == flag
