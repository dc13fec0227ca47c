import pytest

from cnnbench.flags import parse_flags
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS, params_of
from cnnbench.lab.allreduce.plan import make_plan, unused_notices


def notices(*flags):
    given = parse_flags(flags, ALLREDUCE_FLAGS)
    return unused_notices(make_plan(params_of(given), tuple(given)), tuple(given))


@pytest.mark.parametrize(
    ("flag", "idle", "busy"),
    [
        ("--num_batches=3", ["--build_only"], []),
        ("--num_warmup_batches=3", ["--build_only"], []),
        ("--iterations=3", ["--build_only"], []),
        ("--verbose", ["--build_only"], []),
        ("--agg_small_grads_max_group=3", [], ["--agg_small_grads_max_bytes=0,4K"]),
        (
            "--network_topology=dgx1",
            ["--all_reduce_spec=xring"],
            ["--all_reduce_spec=copy,copy:4K:hierarchical_copy"],
        ),
        ("--local_parameter_device=cpu", ["--all_reduce_spec=xring"], ["--all_reduce_spec=copy"]),
        (
            "--all_reduce_group_size=2",
            [],
            ["--all_reduce_spec=copy,pscpu/xring", "--num_gpus=3,4"],
        ),
        (
            "--local_parameter_device=cpu",
            ["--all_reduce_spec=tree", "--num_gpus=4"],
            ["--all_reduce_spec=tree/copy", "--num_gpus=4", "--all_reduce_group_size=2"],
        ),
        (
            "--communication_hint=ring",
            ["--all_reduce_spec=xring"],
            ["--all_reduce_spec=collective"],
        ),
        ("--noall_reduce_share_memory", ["--device=gpu"], ["--device=cpu"]),
        (
            "--noall_reduce_share_memory",
            ["--all_reduce_spec=copy,collective"],
            ["--all_reduce_spec=copy,xring"],
        ),
        (
            "--agg_small_grads_max_bytes=4K",
            ["--agg_small_grads_max_group=1"],
            ["--agg_small_grads_max_group=2"],
        ),
        ("--noallow_growth", ["--device=cpu"], ["--device=gpu"]),
    ],
)
def test_notice_where_a_flag_changes_nothing(flag, idle, busy):
    (notice,) = notices(flag, *idle)
    assert notice.startswith("--")
    assert notice.split(" has no effect ")[0].removeprefix("--") in flag
    assert [line for line in notices(flag, *busy) if line.startswith(notice.split()[0])] == []


@pytest.mark.parametrize(
    ("flags", "notice"),
    [
        (
            ["--all_reduce_spec=copy/xring"],
            "--all_reduce_spec has no second level where all devices are one group: a group size "
            "of less than --num_gpus makes several",
        ),
        (
            ["--all_reduce_spec=copy/xring", "--all_reduce_group_size=1"],
            "--all_reduce_spec has no first level where every device is a group of its own",
        ),
        (
            ["--allreduce_merge_scope=2"],
            "--allreduce_merge_scope changes only the names of operations as profiles show them: "
            "--gradient_repacking joins tensors",
        ),
    ],
)
def test_notice_where_only_a_part_has_an_effect(flags, notice):
    assert notices(*flags) == (notice,)


def test_a_group_as_large_as_the_devices_is_none():
    found = notices("--all_reduce_spec=copy/xring", "--all_reduce_group_size=2")
    wanted = "--all_reduce_group_size has no effect with so few devices: they are one group"
    assert wanted in found
    assert len(found) == 2


def test_a_scope_of_one_is_no_scope():
    assert notices("--allreduce_merge_scope=1") == ()
