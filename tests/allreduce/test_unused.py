import pytest

from cnnbench.allreduce.plan import make_plan
from cnnbench.allreduce.unused import unused_notices
from cnnbench.params import parse_flags
from cnnbench.params.allreduce import ALLREDUCE_FLAGS, params_of


def notices(*flags):
    given = parse_flags(flags, ALLREDUCE_FLAGS)
    params = params_of(given)
    return unused_notices(params, make_plan(params, tuple(given)), tuple(given))


@pytest.mark.parametrize(
    ("flag", "idle", "busy"),
    [
        ("--num_batches=3", ["--build_only"], []),
        ("--num_warmup_batches=3", ["--build_only"], []),
        ("--iterations=3", ["--build_only"], []),
        ("--verbose", ["--build_only"], []),
        ("--agg_small_grads_max_group=3", [], ["--agg_small_grads_max_bytes=0,4K"]),
        ("--network_topology=dgx1", ["--all_reduce_spec=copy"], []),
        (
            "--network_topology=dgx1",
            ["--all_reduce_spec=xring"],
            ["--all_reduce_spec=copy,copy:4K:hierarchical_copy"],
        ),
        ("--local_parameter_device=cpu", ["--all_reduce_spec=xring"], []),
        ("--local_parameter_device=cpu", ["--all_reduce_spec=xring"], ["--all_reduce_spec=copy"]),
        ("--all_reduce_group_size=2", [], ["--all_reduce_spec=copy,pscpu/xring"]),
        ("--gpu_indices=0,1", ["--device=cpu"], []),
        ("--noallow_growth", ["--device=cpu"], ["--device=gpu"]),
    ],
)
def test_notice_where_a_flag_changes_nothing(flag, idle, busy):
    (notice,) = notices(flag, *idle)
    assert notice.startswith("--")
    assert notice.split(" has no effect ")[0].removeprefix("--") in flag
    assert notices(flag, *busy) == ()
