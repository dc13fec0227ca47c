"""What tools say of work on emulated GPUs, against the GPUs' own clocks and planted durations."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from short_runs import NETWORKS

from cnnbench.records.profiles import COPIES, REDUCTION, REST, TO_KERNEL
from cnnbench.run.runtime.supervisor import GUARDED

pytestmark = pytest.mark.slow

WARM_UP, STEPS = 3, 2
LENET = ("--model=lenet", "--batch_size=2", f"--num_batches={STEPS}")
LENET += (f"--num_warmup_batches={WARM_UP}", "--weight_decay=0")
SLOW = "gradient_tape/tower_0/conv1/Conv2DBackpropFilter"
SECOND_STREAM = "AllReduce"


def warmed_up(work, step):
    """The work of this step of the warm-up; every step ends with a copy of its loss."""
    ends = [one.end for one in work if one.what == "MemcpyD2H" and not one.device]
    first, last = ends[step - WARM_UP - STEPS - 2 :][:2]
    return [one for one in work if first <= one.start and one.end <= last]


def divided(work):
    """Seconds of kernels by operation, of NCCL's as "", and of copies between GPUs as "copy".

    The moments between two changes belong to the kernels that run; those in which none runs to
    NCCL and the copies.
    """
    names = {
        one: "copy" if one.what == "MemcpyP2P" else "" if SECOND_STREAM in one.operation else None
        for one in work
        if one.what == "MemcpyP2P" or one.operation
    }
    found = defaultdict(float)
    for before, after in pairwise(sorted({t for one in names for t in (one.start, one.end)})):
        active = [one for one in names if one.start <= before and after <= one.end]
        active = [one for one in active if names[one] is None] or active
        for one in active:
            found[names[one] or one.operation.rpartition(":")[0]] += (after - before) / len(active)
            if names[one] == "":
                found[""] += (after - before) / len(active)
    return found


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [
        (2, ("--variable_update=replicated", "--all_reduce_spec=nccl")),
        (4, ("--variable_update=parameter_server",)),
    ],
)
def test_a_profile_divides_the_time_of_streams(emulated, gpus, flags):
    rules = f"conv1/Conv2DBackpropFilter=20000;{SECOND_STREAM}=12000;MemcpyP2P=2000"
    file = "--profile_json=profile.json"
    given = (*LENET, *flags, file, "--profile_steps=1", f"--num_gpus={gpus}")
    found = emulated(*given, gpus=gpus, rules=rules)
    profile = json.loads((found.folder / "profile.json").read_text())
    rows = {(row["layer"], row["kind"], row["direction"]): row for row in profile["rows"]}
    assert sum(row["seconds"][0] for row in rows.values()) == pytest.approx(
        profile["step_seconds"][0]
    )
    truth = divided(warmed_up(found.work, WARM_UP))
    filters = "conv1", "convolution 5x5", TO_KERNEL
    slow = sum(seconds for name, seconds in truth.items() if "conv1/Conv2DBackpropFilter" in name)
    assert slow >= 0.02
    assert rows[filters]["seconds"][0] == pytest.approx(slow, rel=0.02)
    assert rows[filters]["operations"] == {"Conv2DBackpropFilter float32": gpus}
    exchange = [rows.get((REST, kind, "step")) for kind in (REDUCTION, COPIES)]
    seconds = sum(row["seconds"][0] for row in exchange if row)
    if gpus == 2:
        assert exchange[0]["operations"] == {"NcclAllReduce": 2 * 8}
        assert truth[""] > 0.03
        assert seconds == pytest.approx(truth[""] + truth["copy"], rel=0.02)
    if gpus == 4:
        assert sum(row["operations"].get("_Send", 0) for row in exchange) > 3 * 2 * 8 / 2
        assert truth["copy"] > 0.002


def test_the_trace_of_a_step(emulated):
    found = emulated(
        *LENET, "--trace_file=trace.json", "--num_gpus=2", gpus=2, rules=f"{SLOW}=50000"
    )
    step = warmed_up(found.work, WARM_UP - 1)
    (slow,) = [one.end - one.start for one in step if one.operation.startswith(SLOW)]
    assert slow >= 0.05
    events = json.loads((found.folder / "trace.json").read_text())["traceEvents"]
    planes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert {"/device:GPU:0", "/device:GPU:1"} <= set(planes.values())
    shown = [one for one in events if one.get("args", {}).get("tf_op", "").startswith(SLOW)]
    assert {planes[one["pid"]] for one in shown} == {"/device:GPU:0"}
    assert max(one["dur"] for one in shown) == pytest.approx(1e6 * slow, rel=0.01)


def test_explain_names_the_slow_layer(emulated):
    found = emulated(
        *("explain", "--rounds=2", "--steps=5", f"--b_env=HOSTGPU_RULES={SLOW}=200000", "--"),
        *("--model=normal", f"--plugin={NETWORKS}", "--num_gpus=1", "--weight_decay=0"),
        "--variable_update=replicated",
        record=False,
    )
    answer = " ".join(found.out.split("\n- ")[0].split())
    assert answer.partition(" in ")[2].startswith("conv1, gradient of kernels (")


def test_roofline_puts_the_slow_layer_first(emulated):
    flags = ("--batch_size=2", "--num_batches=2", "--num_gpus=2", "--peak_flops=1e12")
    rules = f"{SLOW}=120000"
    found = emulated("roofline", "lenet", *flags, "--csv=rows.csv", record=False, rules=rules)
    first = (found.folder / "rows.csv").read_text().splitlines()[1].split(",")
    assert first[:3] == ["conv1", "convolution 5x5", TO_KERNEL]
    assert 0.1 < float(first[3]) < 0.2


def test_all_reduce_algorithms(emulated):
    found = emulated(
        *("allreduce", "--num_gpus=2", "--sizes=40000", "--num_batches=2"),
        *("--num_warmup_batches=1", "--iters_per_step=2"),
        environment={GUARDED: None},  # which forks while the process asks NVML
        rules="MemcpyP2P=30000;MemcpyH2D=30000;MemcpyD2H=30000;AllReduce=10000",
    )
    points = {one["spec"]: one for one in found.record["points"]}
    assert len(points) == 9
    assert {one["wrong"] for one in points.values()} == {0}
    times = {name: min(one["seconds"]) for name, one in points.items()}
    by_nccl = {name for name, seconds in times.items() if seconds < 0.06}
    assert by_nccl == {"nccl", "collective"}  # the others copy at least there and back
    assert all(times[name] >= 0.01 for name in by_nccl)
