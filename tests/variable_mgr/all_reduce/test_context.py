from __future__ import annotations

import pytest

from cnnbench.base.jobs.devices import device_string
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.context import (
    check_partition,
    cpus_of,
    groups_of,
    leaders_of,
    process_of,
    turns_of,
)

TASK = "/job:worker/replica:0/task:1"
OTHER = "/job:worker/replica:0/task:2"
MIXED = (
    f"{TASK}/device:CPU:0",
    f"{TASK}/device:CPU:1",
    f"{TASK}/device:GPU:0",
    f"{TASK}/device:GPU:1",
    f"{OTHER}/device:CPU:0",
)


def test_cpus_of_a_process_have_one_memory():
    context = ReduceContext(devices=MIXED)
    first, second, *others = map(context.memory_of, MIXED)
    assert first == second
    assert len({first, *others}) == context.memories == 4


def test_every_device_can_be_given_a_memory():
    context = ReduceContext(devices=MIXED, share_memory=False)
    assert [context.memory_of(device) for device in MIXED] == [*MIXED]
    assert context.memories == len(MIXED)


@pytest.mark.parametrize("share", [True, False])
def test_a_part_keeps_everything_but_devices_and_shards(share):
    whole = ReduceContext(devices=MIXED, cpu_device=MIXED[0], shards=3, share_memory=share)
    part = whole.within(MIXED[:2], shards=2)
    assert part.devices == MIXED[:2]
    assert part.shards == 2
    assert part.memories == (1 if share else 2)
    assert (part.cpu_device, part.share_memory) == (MIXED[0], share)


def gpus(job: str, task: int, *indices: int) -> tuple[str, ...]:
    return tuple(device_string(job, task, "gpu", i) for i in indices)


def cpus(task: int, *indices: int) -> tuple[str, ...]:
    return tuple(device_string("worker", task, "cpu", i) for i in indices)


def test_the_process_is_job_and_task():
    assert process_of(*gpus("worker", 3, 1)) == "/job:worker/replica:0/task:3"
    assert process_of(*gpus("worker", 3, 1)) == process_of(*cpus(3, 0))
    assert process_of(*gpus("worker", 3, 1)) != process_of(*gpus("worker", 13, 1))
    assert process_of(*gpus("worker", 3, 1)) != process_of(*gpus("ps", 3, 1))


def test_one_group_per_process_in_the_order_of_first_devices():
    first, second, third = gpus("worker", 1, 0, 1), gpus("worker", 0, 0, 1, 2), gpus("ps", 0, 0)
    mixed = (first[0], second[0], third[0], *first[1:], *second[1:])
    assert groups_of(mixed) == (first, second, third)


@pytest.mark.parametrize(
    ("size", "groups"),
    [
        (1, ["0", "1", "2", "3", "4"]),
        (2, ["01", "23", "4"]),
        (3, ["012", "34"]),
        (5, ["01234"]),
        (9, ["01234"]),
        (0, ["01234"]),
    ],
)
def test_runs_of_consecutive_devices(size, groups):
    found = groups_of(gpus("worker", 0, 0, 1, 2, 3, 4), size)
    assert found == tuple(gpus("worker", 0, *map(int, group)) for group in groups)


def test_a_run_ends_with_its_process():
    devices = gpus("worker", 0, 0, 1, 2) + gpus("worker", 1, 0, 1)
    assert [len(group) for group in groups_of(devices, 2)] == [2, 1, 2]


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="cannot have -1 devices"):
        groups_of(gpus("worker", 0, 0), -1)


def test_gpus_add_on_the_cpus_of_their_own_process():
    mine, others = gpus("worker", 0, 0, 1), gpus("worker", 1, 0, 1)
    everywhere = cpus(0, 0) + cpus(1, 0)
    assert cpus_of(mine, mine + others, everywhere) == cpus(0, 0)
    assert cpus_of(others, mine + others, everywhere) == cpus(1, 0)
    # Parts of a process share its CPU.
    assert cpus_of(mine[1:], mine, cpus(0, 0)) == cpus(0, 0)


def test_cpus_that_reduce_add_for_their_own_group_only():
    devices = cpus(0, 0, 1, 2, 3)
    assert cpus_of(devices[:2], devices, devices) == devices[:2]
    assert cpus_of(devices[2:], devices, devices) == devices[2:]


def test_every_device_speaks_for_its_group_in_turn():
    groups = ("abc", "d", "ef")
    turns = turns_of(groups)
    leaders = [leaders_of(groups, turn) for turn in range(turns)]
    assert leaders == [("a", "d", "e"), ("b", "d", "f"), ("c", "d", "e")]
    assert set().union(*leaders) == set("abcdef")


def test_groups_hold_every_device_once():
    check_partition([["b"], ["a", "c"]], ["a", "b", "c"])
    for groups in (
        [["a"], ["b"]],
        [["a", "b"], ["b", "c"]],
        [["a", "b", "c"], []],
        [["a", "b", "c", "d"]],
    ):
        with pytest.raises(ValueError, match="do not divide"):
            check_partition(groups, ["a", "b", "c"])
