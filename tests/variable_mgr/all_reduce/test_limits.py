"""What is refused without TensorFlow is what algorithms refuse, in the same words."""

from __future__ import annotations

import itertools

import pytest

from cnnbench.errors import FlagError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext, limits, parse_all_reduce_spec
from cnnbench.variable_mgr.all_reduce.context import groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer

HOST = "/job:localhost/replica:0/task:0"


def devices(kind: str, count: int) -> list[str]:
    return [f"{HOST}/device:{kind}:{index}" for index in range(count)]


def context_of(kind: str, count: int, **fields) -> ReduceContext:
    return ReduceContext.of_towers(devices(kind, count), f"{HOST}/device:CPU:0", **fields)


def refusal(check, *args) -> str | None:
    try:
        check(*args)
    except (ValueError, FlagError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", sorted(set(all_reduce.names()) - {"nccl"}))
def test_what_is_built_is_what_is_allowed(name):
    dimensions = (("CPU", "GPU"), (2, 3, 8), (1, 2, 3, 9), ("dgx1", "gcp_v100"))
    for kind, count, shards, topology in itertools.product(*dimensions):
        context = context_of(kind, count, network_topology=topology).within(
            devices(kind, count), shards
        )
        refused = refusal(limits.check, name, context)
        assert refused == refusal(all_reduce.create, name, context)


@pytest.mark.parametrize("name", ["copy", "hierarchical_copy", "nccl", "rechd"])
def test_what_takes_no_shards_says_so(name):
    context = context_of("GPU", 8).within(devices("GPU", 8), 2)
    with pytest.raises(ValueError, match=f"{name} takes no shards"):
        limits.check(name, context)


def test_every_entry_is_of_an_algorithm():
    assert set(limits.LIMITS) <= set(all_reduce.names())


def test_an_algorithm_without_an_entry_is_left_to_itself():
    limits.check("warp", context_of("CPU", 2).within(devices("CPU", 2), 99))


@pytest.mark.parametrize(
    ("spec", "count", "group_size", "message"),
    [
        ("nccl", 2, 0, "character 1, 'nccl': nccl sums on GPUs only, and .*CPU:0 is none"),
        ("copy:4096:nccl/xring", 4, 2, "character 11, 'nccl/xring': nccl sums on GPUs only"),
        ("copy/nccl", 4, 2, "character 1, 'copy/nccl': nccl .* can be the first level only"),
        ("copy/xring#3", 4, 2, "3 shards between 2 group.s. of devices; there can be at most"),
        ("copy/xring#2", 4, 0, "2 shards between 1 group.s. of devices"),
        ("collective#3", 4, 0, "one or two rings, and not 3"),
        ("copy:1K:rechd#02", 4, 0, "character 9, 'rechd#02': rechd takes no shards"),
        ("copy/rechd#2", 4, 2, "'copy/rechd#2': rechd takes no shards"),
        ("pscpu#3", 2, 0, "3 shards need as many different devices"),
        ("pscpu:4096:xring#3:1M:copy", 2, 0, "character 12, 'xring#3': 3 rings need as many"),
    ],
)
def test_specs_are_refused_as_the_reducer_refuses_them(spec, count, group_size, message):
    context = context_of("CPU", count)
    groups = groups_of(context.devices, group_size)
    with pytest.raises(FlagError, match=message) as early:
        limits.check_spec(parse_all_reduce_spec(spec), context, groups)
    with pytest.raises(FlagError) as late:
        Reducer(parse_all_reduce_spec(spec), context, groups)
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize(
    ("spec", "count", "group_size"),
    [
        ("tree#9", 2, 0),
        ("copy/xring", 4, 0),
        ("copy/xring", 4, 1),
        ("copy/copy", 3, 2),
        ("xring#2:1K:pscpu/rechd", 4, 2),
        ("pscpu#9:4K:nccl", 1, 0),
    ],
)
def test_what_works_is_let_through(spec, count, group_size):
    context = context_of("CPU", count)
    groups = groups_of(context.devices, group_size)
    limits.check_spec(parse_all_reduce_spec(spec), context, groups)
    Reducer(parse_all_reduce_spec(spec), context, groups)


def test_gpus_have_nccl():
    context = context_of("GPU", 2)
    limits.check_spec(parse_all_reduce_spec("nccl"), context, groups_of(context.devices))
    others = [device.replace("task:0", "task:1") for device in context.devices]
    with pytest.raises(ValueError, match=r"of one process, and these are in 2: .*task:1; use two"):
        limits.check("nccl", context.within([*context.devices, *others]))
