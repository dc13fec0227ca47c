import pytest

from cnnbench.flags import parse_flags
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS, params_of
from cnnbench.flags.ineffective import notices
from cnnbench.lab.allreduce.plan import UNUSED, make_plan


def told(flags):
    given = parse_flags(flags.replace("SPEC", "--all_reduce_spec").split(), ALLREDUCE_FLAGS)
    return notices(UNUSED, make_plan(params_of(given), tuple(given)), tuple(given))


@pytest.mark.parametrize(
    ("flag", "idle", "busy"),
    [
        ("--num_batches=3", "--build_only", ""),
        ("--num_warmup_batches=3", "--build_only", ""),
        ("--iterations=3", "--build_only", ""),
        ("--verbose", "--build_only", ""),
        ("--agg_small_grads_max_group=3", "", "--agg_small_grads_max_bytes=0,4K"),
        ("--network_topology=dgx1", "SPEC=xring", "SPEC=copy,copy:4K:hierarchical_copy"),
        ("--local_parameter_device=cpu", "SPEC=xring", "SPEC=copy"),
        ("--all_reduce_group_size=2", "", "SPEC=copy,pscpu/xring --num_gpus=3,4"),
        (
            "--local_parameter_device=cpu --num_gpus=4",
            "SPEC=tree",
            "SPEC=tree/copy --all_reduce_group_size=2",
        ),
        ("--communication_hint=ring", "SPEC=xring", "SPEC=collective"),
        ("--noall_reduce_share_memory", "--device=gpu", "--device=cpu"),
        ("--noall_reduce_share_memory", "SPEC=copy,collective", "SPEC=copy,xring"),
        (
            "--agg_small_grads_max_bytes=4K",
            "--agg_small_grads_max_group=1",
            "--agg_small_grads_max_group=2",
        ),
        ("--noallow_growth", "--device=cpu", "--device=gpu"),
    ],
)
def test_notice_where_a_flag_changes_nothing(flag, idle, busy):
    (notice,) = told(f"{flag} {idle}")
    assert notice.startswith("--")
    assert notice.split(" has no effect ")[0].removeprefix("--") in flag
    assert [line for line in told(f"{flag} {busy}") if line.startswith(notice.split()[0])] == []


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("SPEC=copy/xring", ["has no second level where all devices are one group: "]),
        (
            "SPEC=copy/xring --all_reduce_group_size=1",
            ["has no first level where every device is a group of its own"],
        ),
        (
            "SPEC=copy/xring --all_reduce_group_size=2",
            ["has no effect with so few devices: they are one group", "has no second level where"],
        ),
        ("SPEC=copy --allreduce_merge_scope=2", ["changes only the names of operations"]),
        ("SPEC=copy --allreduce_merge_scope=1", []),
    ],
)
def test_notice_where_only_a_part_has_an_effect(flags, found):
    lines = [line.partition(" ")[2] for line in told(flags)]
    assert [line[: len(start)] for line, start in zip(lines, found, strict=True)] == found
