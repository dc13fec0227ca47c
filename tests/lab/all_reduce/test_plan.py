"""The plan of a run, without devices: sizes, jobs, flags without effect, and the documentation.

tests/cli/test_refusals.py has what is refused.
"""

import re
import shlex
from pathlib import Path

import pytest

from cnnbench.base.rules import notices_about
from cnnbench.errors import FlagError
from cnnbench.flags import parse_flags
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, AllReduceParams, params_from_values
from cnnbench.lab.all_reduce.plan import UNUSED, Workload, make_plan, parse_sizes, translate_flags
from cnnbench.variable_mgr.packing import Packing

JOB = {"job_name": "worker", "worker_hosts": "a:1,b:1", "device": "cpu", "num_gpus": (1,)}
TEXT = (Path(__file__).parents[3] / "docs" / "all_reduce_benchmark.md").read_text("utf-8")
COMMANDS = re.findall(r"^(?:\$ )?cnnbench allreduce (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


def planned(words):
    """The plan of a command line, and the flags that it names."""
    given = parse_flags(words, ALL_REDUCE_FLAGS)
    return make_plan(params_from_values(given), tuple(given)), tuple(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4K", ["4096"]),
        ("12", ["12"]),
        ("4K, 1M", ["4096", "1048576"]),
        ("1K:256M:x4", [str(1024 * 4**i) for i in range(10)]),
        ("4:100:x3", ["4", "12", "36"]),
        ("64K:256K:+64K", ["65536", "131072", "196608", "262144"]),
        ("64K:200K:+64K", ["65536", "131072", "196608"]),
        ("8:8:x2", ["8"]),
        ("4K*1000", ["4096*1000"]),
        ("1K:4K:x2*3", ["1024*3", "2048*3", "4096*3"]),
        ("4K,4K,1K:4K:x4", ["4096", "1024"]),
        ("4K*1", ["4096"]),
    ],
)
def test_sizes(text, expected):
    assert [workload.name for workload in parse_sizes(text, "float32")] == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((f"4K*{count}", f"4K*{count}") for count in ("0", "-1", "", "x", "1.5", "1000000")),
        *((text, text) for text in ("", "x", "1K:2K", "1K:2K:x2:x2", "2K:1K:x2", "1K:2K:x1")),
        *((text, text) for text in ("1K:2K:2", "1K:2K:+0", "1K:2K:x", "6", "4K,,8K")),
        ("4:8000:+4", "1000 sizes"),
    ],
)
def test_impossible_sizes_are_refused(text, named):
    with pytest.raises(FlagError, match=f"^--sizes={re.escape(text)}: ") as caught:
        parse_sizes(text, "float32")
    assert named in str(caught.value)


def test_as_many_sizes_as_are_allowed():
    assert len(parse_sizes("4:4000:+4", "float32")) == 1000
    assert len(parse_sizes("4:4000:+4,4,8", "float32")) == 1000
    with pytest.raises(FlagError, match="more than 1000 sizes"):
        parse_sizes("4:4000:+4,8K", "float32")
    (most,) = parse_sizes("4*999999", "float32")
    assert len(most.shapes) == 999_999


def test_a_workload_counts_elements():
    assert parse_sizes("4K*3", "float32") == (Workload("4096*3", ((1024,),) * 3),)
    assert parse_sizes("4K*3", "bfloat16") == (Workload("4096*3", ((2048,),) * 3),)
    assert Workload("m", ((2, 3), (), (5,))).elements == 12
    assert parse_sizes("6", "float16") == (Workload("6", ((3,),)),)


def test_plans():
    plan = make_plan(AllReduceParams())
    assert [workload.name for workload in plan.workloads][::8] == ["1024", "67108864"]
    assert (plan.counts, plan.specs, plan.packings) == ((2,), None, (Packing(),))
    assert make_plan(params_from_values({"iterations": 7})).params.num_batches == 7
    same = {"iterations": 2, "num_batches": 2}
    assert make_plan(params_from_values(same), tuple(same)).params.num_batches == 2
    # Asked for, a chain is built.
    chain = {"build_only": True, "iters_per_step": 3}
    assert make_plan(params_from_values(chain), tuple(chain)).params.iters_per_step == 3


def test_every_algorithm_is_measured_with_every_packing_and_peers_once():
    flags = {"all_reduce_spec": "copy,xring", "gradient_repacking": (0, 2), "num_gpus": (4, 2, 4)}
    plan = make_plan(params_from_values({**flags, "peers": "reduction_to_one_device"}))
    assert plan.counts == (4, 2)
    cases = plan.cases(plan.specs)
    packs = [Packing(), Packing(gradient_repacking=2)]
    assert [(str(case), case.packing) for case in cases] == [
        *(("copy", packing) for packing in packs),
        *(("xring", packing) for packing in packs),
        ("reduction_to_one_device", Packing()),
    ]
    assert [case.peer for case in cases] == [None] * 4 + ["reduction_to_one_device"]
    assert plan.cases(()) == cases[4:]


def test_gradients_of_a_model_follow_the_sizes():
    shapes = [(5, 5, 3, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 1001)]
    model = Workload("lenet", (*shapes, (1001,)))
    assert make_plan(params_from_values({"model": "lenet"})).workloads == (model,)
    both = make_plan(params_from_values({"model": "lenet", "sizes": "4K"})).workloads
    assert both == (*parse_sizes("4K", "float32"), model)


def test_builds_are_not_chained_unless_asked():
    one = make_plan(params_from_values({"build_only": True})).params
    assert one.iters_per_step == 1
    assert make_plan(AllReduceParams()).params.iters_per_step == AllReduceParams().iters_per_step


def test_the_steps_of_a_job_belong_to_one_process_or_to_each():
    plan = make_plan(params_from_values(JOB))
    assert (plan.job.num_towers, plan.job.client_per_worker, plan.job.is_chief) == (2, False, True)
    of_second = make_plan(
        params_from_values({**JOB, "all_reduce_spec": "collective", "task_index": 1})
    )
    assert of_second.job.client_per_worker
    assert list(of_second.job.own_towers) == [1]


def test_every_documented_command_can_be_planned():
    assert len(COMMANDS) >= 3
    for command in COMMANDS:
        planned(shlex.split(command, comments=True))


def test_every_documented_flag_exists():
    known = {spec.name for spec in ALL_REDUCE_FLAGS}
    known |= {"scenarios", "keep", "help"}  # of scripts/compare_peers
    known |= {"workers", "towers"}  # of cnnbench launch
    known |= {"use_fp16", "hierarchical_copy"}  # of all_reduce_benchmark.py, see `translate_flags`
    assert set(re.findall(r"--(\w+)", TEXT)) <= known


# Flags without effect ---------------------------------------------------------------------------


def told(flags):
    return notices_about(UNUSED, *planned(flags.replace("SPEC", "--all_reduce_spec").split()))


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
        ("--data_name=cifar10", "", "--model=resnet20"),
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
    ("flags", "named"),
    [
        ("SPEC=copy/xring", ["--all_reduce_spec"]),
        ("SPEC=copy/xring --all_reduce_group_size=1", ["--all_reduce_spec"]),
        (
            "SPEC=copy/xring --all_reduce_group_size=2",
            ["--all_reduce_spec", "--all_reduce_group_size"],
        ),
        ("SPEC=copy --allreduce_merge_scope=2", ["--allreduce_merge_scope"]),
        ("SPEC=copy --allreduce_merge_scope=1", []),
    ],
)
def test_notice_where_only_a_part_has_an_effect(flags, named):
    """tests/plan/golden/notices.txt has the sentences."""
    assert [line.split()[0] for line in told(flags)] == named


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"hierarchical_copy": True}, {"all_reduce_spec": "hierarchical_copy"}),
        ({"hierarchical_copy": False}, {"hierarchical_copy": False}),
        (both := {"hierarchical_copy": True, "all_reduce_spec": "copy"}, both),
        ({"use_fp16": True}, {"wire_dtype": "float16"}),
        ({"use_fp16": True, "compact_gradient_transfer": False}, {"wire_dtype": "same"}),
        ({"use_fp16": True, "compact_gradient_transfer": True}, {"wire_dtype": "float16"}),
        (both := {"use_fp16": True, "dtype": "bfloat16"}, both),
    ],
)
def test_flags_of_the_older_benchmark_choose_algorithm_and_transfer(given, expected):
    assert translate_flags(given) == expected
