from __future__ import annotations

import pytest

from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import VariableMgrSpec, create, names, register
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.per_tower import IndependentVariableMgr, ReplicatedVariableMgr
from cnnbench.variable_mgr.strategies.central_storage import CentralStorageStrategyVariableMgr
from cnnbench.variable_mgr.strategies.mirrored import MirroredStrategyVariableMgr
from cnnbench.variable_mgr.strategies.multi_worker_mirrored import (
    MultiWorkerMirroredStrategyVariableMgr,
)
from cnnbench.variable_mgr.strategies.one_device import OneDeviceStrategyVariableMgr


def spec(mode, **fields):
    return VariableMgrSpec(variable_update=mode, devices=("/CPU:0",), cpu_device="/CPU:0", **fields)


@pytest.mark.parametrize(
    ("mode", "cls"),
    [
        ("parameter_server", ParameterServerVariableMgr),
        ("replicated", ReplicatedVariableMgr),
        ("independent", IndependentVariableMgr),
        ("mirrored_strategy", MirroredStrategyVariableMgr),
        ("central_storage_strategy", CentralStorageStrategyVariableMgr),
        ("one_device_strategy", OneDeviceStrategyVariableMgr),
        ("multi_worker_mirrored_strategy", MultiWorkerMirroredStrategyVariableMgr),
    ],
)
def test_one_spec_one_manager(mode, cls, declared):
    assert mode in names()
    assert type(create(spec(mode), declared)) is cls


def test_unknown_manager(declared):
    with pytest.raises(FlagError) as error:
        create(spec("horovod"), declared)
    assert str(error.value).startswith("--variable_update=horovod: must be one of ")
    for mode in ("independent", "mirrored_strategy", "one_device_strategy"):
        assert f"{mode}, " in str(error.value)


def test_a_name_is_taken_once():
    assert register("replicated")(ReplicatedVariableMgr) is ReplicatedVariableMgr
    with pytest.raises(UsageError, match="'replicated' is already registered"):
        register("replicated")(IndependentVariableMgr)
    assert type(create(spec("replicated"), ())) is ReplicatedVariableMgr


def test_variables_with_one_name_are_refused(declared):
    with pytest.raises(UsageError, match="'conv0/bias' twice"):
        create(spec("replicated"), (*declared, declared[1]))


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
