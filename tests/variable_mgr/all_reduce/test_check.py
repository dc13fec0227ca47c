"""What is refused, beside what tests/cli/test_refusals.py has; what is not can be built."""

from __future__ import annotations

import itertools

import pytest

from cnnbench.errors import FlagError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext, parse_all_reduce_spec
from cnnbench.variable_mgr.all_reduce.check import check_context, check_spec
from cnnbench.variable_mgr.all_reduce.context import cpus_for_additions, group_devices
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer

HOST = "/job:localhost/replica:0/task:0"
TWO_PROCESSES = [f"/job:worker/replica:0/task:{task}/device:GPU:0" for task in (0, 1)]
MIXED = [f"{HOST}/device:{one}" for one in ("GPU:0", "GPU:1", "CPU:0")]


def devices(kind: str, count: int) -> list[str]:
    return [f"{HOST}/device:{kind}:{index}" for index in range(count)]


def context_of(kind: str, count: int, **fields) -> ReduceContext:
    on = tuple(devices(kind, count))
    return ReduceContext(
        devices=on, cpu_devices=cpus_for_additions(on, (), f"{HOST}/device:CPU:0"), **fields
    )


def refusal(check, *args) -> str | None:
    try:
        check(*args)
    except (ValueError, FlagError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "on", "fields", "message"),
    [
        *(
            (name, devices("GPU", 8), {"shards": 2}, f"{name} takes no shards")
            for name in ("hierarchical_copy", "nccl", "rechd")
        ),
        ("collective", MIXED, {}, "of one kind, but .*CPU:0 is not"),
        ("nccl", MIXED, {}, "only on GPUs, but .*CPU:0 is not a GPU"),
        ("nccl", TWO_PROCESSES, {}, "one process, but these are in 2: .*task:0, .*task:1; use two"),
        (
            *("hierarchical_copy", devices("GPU", 8), {"network_topology": "torus"}),
            "'torus'.*dgx1, gcp_v100",
        ),
        ("pscpu", devices("CPU", 3), {"shards": 4}, "4 shards need as many .* only 3"),
        ("psgpu", devices("CPU", 2), {"shards": 3}, "3 shards need as many .* only 2"),
        ("collective", devices("GPU", 8), {"shards": 3}, "one or two rings, not 3"),
        ("xring", TWO_PROCESSES, {"shards": 2}, "2 rings need as many devices .* only 1"),
    ],
)
def test_groups_that_an_algorithm_cannot_join_are_refused(name, on, fields, message):
    cpus = devices("CPU", 3)
    context = ReduceContext(devices=tuple(on), cpu_devices=tuple(cpus), **fields)
    with pytest.raises(ValueError, match=message):
        all_reduce.create(name, context)


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize("name", all_reduce.names())
def test_what_is_built_is_what_is_allowed(name):
    dimensions = (("CPU", "GPU"), (2, 3, 8), (1, 2, 3, 9), ("dgx1", "gcp_v100"))
    for kind, count, shards, topology in itertools.product(*dimensions):
        context = context_of(kind, count, network_topology=topology).with_devices(
            devices(kind, count), shards
        )
        assert refusal(check_context, name, context) == refusal(all_reduce.create, name, context)


def refuse_odd_numbers(context: ReduceContext) -> None:
    if len(context.devices) % 2:
        raise ValueError("needs an even number of devices")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("declares", [False, True])
def test_what_an_algorithm_refuses_is_refused_before_it_runs(declares):
    """By its constructor, or by a check, which is then called in place of the constructor."""
    made = []

    def create(context):
        made.append(context)
        refuse_odd_numbers(context)
        return lambda tensors, index: tensors

    all_reduce.register("even", check=refuse_odd_numbers if declares else None)(create)
    for count, message in ((3, "character 9, 'even': needs an even number"), (4, None)):
        context = context_of("CPU", count)
        groups = group_devices(context.devices)
        told = refusal(check_spec, parse_all_reduce_spec("copy:1K:even"), context, groups)
        assert message in told if message else told is None
    assert bool(made) is not declares
    all_reduce.create("even", context_of("CPU", 2))
    with pytest.raises(ValueError, match="even number"):
        all_reduce.create("even", context_of("CPU", 5))


def test_a_name_that_nothing_registers_is_refused_elsewhere():
    context = context_of("CPU", 4)
    for spec in ("warp", "copy/warp", "warp/copy"):
        check_spec(parse_all_reduce_spec(spec), context, group_devices(context.devices, 2))


@pytest.mark.parametrize(
    ("spec", "count", "group_size", "message"),
    [
        ("copy/xring#2", 4, 0, "2 shards between 1 group.s. of devices"),
        ("copy:1K:rechd#02", 4, 0, "character 9, 'rechd#02': rechd takes no shards"),
        ("copy/rechd#2", 4, 2, "'copy/rechd#2': rechd takes no shards"),
        ("hierarchical_copy/copy", 4, 2, "exactly 8 devices, not 2"),
        ("pscpu#3", 2, 0, "3 shards need as many different devices"),
        ("pscpu:4096:xring#3:1M:copy", 2, 0, "character 12, 'xring#3': 3 rings need as many"),
    ],
)
def test_specs_that_the_devices_do_not_allow_are_refused(spec, count, group_size, message):
    context = context_of("CPU", count, network_topology="gcp_v100")
    groups = group_devices(context.devices, group_size)
    for check in (check_spec, AllReducer):
        with pytest.raises(FlagError, match=message):
            check(parse_all_reduce_spec(spec), context, groups)


@pytest.mark.parametrize(
    ("spec", "count", "group_size"),
    [
        ("tree#9", 2, 0),
        ("copy/xring", 4, 0),
        ("copy/xring", 4, 1),
        ("copy/copy", 3, 2),
        ("xring#2:1K:pscpu/rechd", 4, 2),
        ("hierarchical_copy/copy", 9, 8),
        ("pscpu#9:4K:nccl", 1, 0),
    ],
)
def test_what_works_is_let_through(spec, count, group_size):
    context = context_of("CPU", count, network_topology="gcp_v100")
    groups = group_devices(context.devices, group_size)
    for check in (check_spec, AllReducer):
        check(parse_all_reduce_spec(spec), context, groups)
