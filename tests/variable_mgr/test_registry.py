"""Modes by name: the rows of the table, and what they name.

Tests variable_mgr/__init__.py, variable_mgr/spec.py and variable_mgr/modes.py.
"""

from __future__ import annotations

import dataclasses

import pytest

from cnnbench.base.job import Job, Task
from cnnbench.base.rules import always, refuse
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params
from cnnbench.plan import check_flags
from cnnbench.variable_mgr import Mode, Processes, VariableMgrSpec, create, names, registry
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.modes import BUILT_IN, Reduction
from cnnbench.variable_mgr.per_tower import ReplicatedVariableMgr
from cnnbench.variable_mgr.registry import find_mode
from cnnbench.variable_mgr.strategies import StrategyVariableMgr

WORKERS = {"job_name": "worker", "worker_hosts": "a:1,b:1"}
HOST = "/job:localhost/replica:0/task:0/device:"


def spec(mode):
    return VariableMgrSpec(mode=find_mode(mode), devices=("/CPU:0",), cpu_device="/CPU:0")


def test_devices_for_variables():
    shared = spec("parameter_server")
    one_each = dataclasses.replace(shared, devices=("a", "b"), parameter_device="towers")
    lightest = one_each.variable_device_chooser()
    assert [lightest(size) for size in (9, 4, 4, 1, 1)] == ["a", "b", "b", "b", "a"]
    servers = dataclasses.replace(shared, ps_devices=("a", "b"), ps_strategy="round_robin")
    turns = servers.variable_device_chooser()
    assert [turns(size) for size in (9, 1, 1)] == ["a", "b", "a"]


@pytest.mark.parametrize("mode", BUILT_IN, ids=lambda mode: mode.name)
def test_a_row_names_a_manager_of_its_kind(mode):
    made = mode.manager_class()
    assert issubclass(made, VariableMgr)
    assert bool(mode.strategy) is issubclass(made, StrategyVariableMgr)


@pytest.mark.parametrize("mode", BUILT_IN, ids=lambda mode: mode.name)
def test_a_row_says_what_validation_and_the_job_go_by(mode):
    flags = {"variable_update": mode.name, **WORKERS, **mode.needs}
    if mode.uses_ps:
        flags["ps_hosts"] = "c:1"
    if mode.processes is Processes.COORDINATOR:
        flags["controller_host"] = "d:1"
    if mode.processes is not Processes.ONE:
        check_flags(Params(**flags))
        return
    with pytest.raises(FlagError, match="works in one process only") as caught:
        check_flags(Params(**flags))
    assert caught.value.flag == "variable_update"


SPLIT = {"input_distribution": "strategy"}
CENTRAL = "central_storage_strategy"
COORDINATED = {
    **WORKERS,
    "job_name": "controller",
    "ps_hosts": "c:1",
    "controller_host": "d:1",
    "variable_update": "parameter_server_strategy",
}


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"variable_update": CENTRAL, **SPLIT, "input_sharding": "auto"}, "input_sharding"),
        ({"variable_update": CENTRAL, **SPLIT, "input_sharding": "manual"}, None),
        ({"variable_update": CENTRAL}, None),
        ({"variable_update": "independent", "bn_stats": "sync", "num_gpus": 2}, "bn_stats"),
        ({"variable_update": "independent", "num_gpus": 2}, None),
        (COORDINATED, None),
        ({**COORDINATED, "eval": True}, "eval"),
        ({**COORDINATED, "forward_only": True}, "forward_only"),
        ({**COORDINATED, "input_only": True}, "input_only"),
        ({**COORDINATED, **SPLIT}, "input_distribution"),
        (
            {**COORDINATED, "precision": "fp16", "fp16_enable_auto_loss_scale": True},
            "fp16_enable_auto_loss_scale",
        ),
    ],
)
def test_a_mode_refuses_what_it_cannot_do(flags, refused):
    params = Params(**{"device": "cpu", **flags})
    if refused is None:
        check_flags(params)
        return
    with pytest.raises(FlagError) as caught:
        check_flags(params)
    assert caught.value.flag == refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "replicated"}, "mode replicated is registered already"),
        ({"name": "horovod"}, "mode horovod: the name is reserved; choose another"),
        ({"name": "Own Mode"}, "lower-case letters, digits and underscores, not 'Own Mode'"),
        ({"name": None}, "lower-case letters, digits and underscores, not None"),
        ({"manager": None}, "mode own needs a manager: a subclass of VariableMgr"),
        ({"manager": Mode}, "mode own needs a manager: a subclass of VariableMgr"),
        ({"manager": "own.py"}, "or 'module:Class' that names one, not 'own.py'"),
        ({"reduction": "mean"}, "reduction must be a Reduction, not 'mean'"),
        ({"processes": True}, "processes must be a Processes, not True"),
    ],
)
def test_a_row_that_cannot_be_is_refused(fields, message):
    with pytest.raises(UsageError) as caught:
        registry.register_mode(Mode(**{"name": "own", "manager": ReplicatedVariableMgr, **fields}))
    assert message in str(caught.value)
    assert "own" not in names()
    with pytest.raises(UsageError, match="mode: 3 is not of type Mode"):
        registry.register_mode(3)


@pytest.mark.parametrize(
    "row",
    [{"rules": (refuse("nosuch", always, "is new"),)}, {"needs": {"nosuch": "1"}}],
    ids=["rules", "needs"],
)
def test_a_row_that_names_no_flag_is_refused(row, monkeypatch):
    own = dataclasses.replace(find_mode("replicated"), **row)
    monkeypatch.setitem(registry.MODES, "replicated", own)
    with pytest.raises(UsageError, match="mode replicated names --nosuch, which is not a flag"):
        check_flags(Params(variable_update="replicated"))


WORKER_1 = "/job:worker/replica:0/task:1/device:"


@pytest.mark.parametrize(
    ("caching", "device"),
    [("none", None), ("consumer", f"{WORKER_1}GPU:0"), ("cpu", f"{WORKER_1}CPU:0")],
)
def test_where_a_shared_variable_is_cached(caching, device):
    job = Job(task=Task("worker"), worker_addresses=("a:1", "b:1"), ps_addresses=("c:1",))
    one = dataclasses.replace(
        spec("parameter_server"),
        job=job,
        devices=job.tower_devices,
        ps_devices=job.ps_devices,
        variable_caching=caching,
    )
    assert one.caching_device(f"{WORKER_1}GPU:0") == device
    workers = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    assert (one.cpu_devices, one.all_devices) == (tuple(workers), job.tower_devices)
    alone = spec("parameter_server")
    assert alone.caching_device("/GPU:0") is None
    assert alone.cpu_devices == alone.all_devices == ("/CPU:0",)


PROPERTIES = {
    "parameter_server": {"uses_ps", "in_sync", "staged", "asynchronous"},
    "replicated": {"in_sync"},
    "independent": set(),
    "distributed_replicated": {"uses_ps", "in_sync"},
    "distributed_all_reduce": {"in_sync", "by_size"},
    "collective_all_reduce": {"in_sync", "by_size", "default_all_reduce_spec", "bucket_bytes"},
    "mirrored_strategy": {"in_sync", "strategy", "uses_cross_device_ops"},
    "multi_worker_mirrored_strategy": {"in_sync", "strategy", "uses_worker_strategy"},
    "central_storage_strategy": {"in_sync", "strategy"},
    "one_device_strategy": {"in_sync", "strategy", "one_tower"},
    "parameter_server_strategy": {"uses_ps", "in_sync", "strategy", "one_tower"},
}
"""What modes have or do."""


@pytest.mark.parametrize("mode", BUILT_IN, ids=lambda mode: mode.name)
def test_what_a_mode_does(mode):
    every = set().union(*PROPERTIES.values())
    assert {name for name in every if getattr(mode, name)} == PROPERTIES[mode.name]
    if mode.bucket_bytes is not None:
        assert mode.bucket_bytes == 4 * 2**20
    if mode.strategy:
        assert mode.strategy.endswith("Strategy")


def test_what_reduces_by_all_reduce_has_no_other_algorithm():
    for mode in BUILT_IN:
        assert mode.reduction is Reduction.ALL_REDUCE or not mode.default_all_reduce_spec
        assert mode.reduction is Reduction.ALL_REDUCE or not mode.by_size


@pytest.mark.parametrize(
    ("mode", "fields", "message"),
    [
        ("horovod", {}, "--variable_update=horovod: must be one of .*independent, .*one_device"),
        ("replicated", {"devices": ()}, "--num_gpus=0: .*at least one tower device"),
        ("replicated", {"reduction": "max"}, "--gradient_reduction=max: .* one of mean, sum"),
        ("replicated", {"parameter_device": "disk"}, "--local_parameter_device=disk: .*cpu, tow"),
        ("replicated", {"ps_strategy": "random"}, "--ps_strategy=random: .* greedy_bytes, round"),
        ("replicated", {"variable_caching": "disk"}, "--variable_caching=disk: .* none, consumer"),
        ("replicated", {"staged": True}, "--staged_vars=true: .*--variable_update=replicated"),
        ("one_device_strategy", {"devices": ("a", "b")}, "needs --num_gpus=1"),
        ("parameter_server_strategy", {}, "needs a job with ps tasks"),
        ("mirrored_strategy", {"devices": (f"{HOST}CPU:0",) * 2}, "CPU:0 is given twice"),
        ("central_storage_strategy", {"devices": (f"{HOST}CPU:0",) * 2}, "CPU:0 is given twice"),
    ],
)
def test_what_a_manager_cannot_work_with_is_refused(mode, fields, message, declared):
    given = {"devices": (f"{HOST}CPU:0",), "cpu_device": f"{HOST}CPU:0"}
    with pytest.raises(UsageError, match=message):
        create(VariableMgrSpec(mode=find_mode(mode), **{**given, **fields}), declared)


def test_variables_with_one_name_are_refused(declared):
    with pytest.raises(UsageError, match="'conv0/bias' twice"):
        create(spec("replicated"), (*declared, declared[1]))


@pytest.mark.parametrize(
    ("towers", "reduction", "scale"),
    [(1, "mean", None), (1, "sum", None), (2, "mean", 0.5), (8, "mean", 0.125), (2, "sum", None)],
)
def test_the_scale_of_a_sum_is_given_only_when_it_changes_something(towers, reduction, scale):
    made = dataclasses.replace(spec("replicated"), devices=("d",) * towers, reduction=reduction)
    assert made.reduction_scale == scale
