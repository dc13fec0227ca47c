"""Metrics of runs by hand. What is judged together is in tests/judge/metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cnnbench.records.input import InputStage
from cnnbench.records.metric import ALL
from cnnbench.records.metrics.figures import share_of_peak, throughputs
from cnnbench.records.run import (
    Cluster,
    Evaluation,
    Imported,
    Measured,
    Placement,
    RunRecord,
    StartupSeconds,
    Target,
)

Runs = Callable[..., RunRecord]


def values(record: RunRecord, *names: str) -> list[Any]:
    return [ALL[name].value(record) for name in names]


def test_speeds_of_steps(runs: Runs) -> None:
    # 8 images in steps of 0.1, 0.1 and 0.4 s.
    record = runs(None, step_seconds=(0.1, 0.1, 0.4), losses=(3.0, 2.0, 1.5))
    assert values(record, "throughput", "images_per_sec", "images_per_sec_median") == (
        pytest.approx([40.0, 40.0, 80.0])
    )
    assert values(record, "step_seconds", "final_loss") == [0.1, 1.5]
    names = ("images_per_sec_uncertainty", "images_per_sec_jitter")
    assert values(record, *names) == pytest.approx([math.sqrt(800 / 3), 0.0])
    assert values(runs(100.0, batch=None), "images_per_sec", *names) == [None] * 3


def test_speeds_of_the_loop_and_shares_of_the_peak(runs: Runs) -> None:
    measured = Measured(
        loop_images=24,
        loop_seconds=0.8,
        loop_user_seconds=1.25,
        loop_system_seconds=0.35,
        input_wait_seconds=0.2,
        peak_flops_per_sec=12_000.0,
        peak_flops_source="measured",
        peak_memory_bytes=2**30,
    )
    record = runs(100.0, measured=measured, step_cpu_seconds=(0.2, 0.1, 0.3))
    assert values(record, "total_images_per_sec", "busy_cpus", "input_wait_fraction") == (
        pytest.approx([30.0, 2.0, 0.25])
    )
    assert values(record, "cpu_time", "images_per_cpu_second") == pytest.approx([0.2, 40.0])
    # 60 FLOPs of training for each image.
    assert values(record, "achieved_flops_per_sec", "mfu") == pytest.approx([6000.0, 0.5])
    assert values(record, "peak_flops_per_sec", "peak_flops_source") == [12_000.0, "measured"]
    assert values(record, "memory", "peak_memory_bytes") == [2.0**30, 2**30]
    forward = runs(100.0, measured=measured, flags={"forward_only": True})
    assert values(forward, "achieved_flops_per_sec") == pytest.approx([2000.0])
    evaluation = runs(None, measured=measured)
    assert values(evaluation, "images_per_cpu_second") == [15.0]


FOLLOWED, NEVER = {"followed": True}, {"followed": False}
JUDGED = {"by_default": True, "gates": True, "followed": False}
ACCURACY = {"relative": False, "threshold": 0.005}
MEMORY = {"threshold": 0.05, "least": 2.0**24, "higher_is_better": False}


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (("throughput",), {**JUDGED, "followed": True, "threshold": None, "relative": True}),
        (("memory",), {**JUDGED, **MEMORY}),
        (("peak_memory_bytes",), {**FOLLOWED, **MEMORY, "always": True, "gates": False}),
        (("accuracy",), {**JUDGED, **ACCURACY}),
        (("top_1", "top_5"), {**FOLLOWED, **ACCURACY, "by_default": False, "gates": False}),
        (("startup",), {**JUDGED, "gates": False, "threshold": 0.2, "higher_is_better": False}),
        (("startup_seconds",), {**FOLLOWED, "threshold": 0.2, "by_default": False}),
        (
            ("images_per_sec_uncertainty", "images_per_sec_jitter"),
            {"always": True, "relative": False, "threshold": 0.0, "higher_is_better": False},
        ),
        (("images_per_sec", "total_images_per_sec"), {"always": True, "higher_is_better": True}),
        (("achieved_flops_per_sec", "mfu"), {"always": True, "higher_is_better": True}),
        (("energy_joules", "joules_per_image"), {"always": True, "higher_is_better": False}),
        (("input_wait_fraction",), {"always": True, "relative": False, "threshold": 0.02}),
        (("final_loss",), {**FOLLOWED, "always": False, "relative": False, "threshold": 0.0}),
        (
            ("peak_flops_per_sec", "peak_flops_source", "energy_source"),
            {**NEVER, "always": True, "judged": {}},
        ),
        (("step_p50_seconds", "latency_p50_seconds"), {"threshold": 0.03, "section": ""}),
        (("step_p90_seconds",), {"threshold": 0.05, "section": "throughput"}),
        (("step_p99_seconds",), {"threshold": 0.1, "section": "throughput"}),
        (("latency_p99_seconds",), {"threshold": 0.1, "section": ""}),
    ],
)
def test_how_metrics_are_judged(names: tuple[str, ...], rules: dict[str, Any]) -> None:
    for name in names:
        assert {rule: getattr(ALL[name], rule) for rule in rules} == rules
    assert [name for name, one in ALL.items() if one.line and name.endswith("_seconds")] == [
        *("latency_p50_seconds", "step_p50_seconds")
    ]


def test_flops_need_a_speed_and_the_flops_of_an_image(runs: Runs) -> None:
    assert values(runs(None), "achieved_flops_per_sec", "mfu") == [None, None]
    assert values(runs(100.0, model=None), "achieved_flops_per_sec", "mfu") == [None, None]


def test_an_imported_record_has_the_throughput_that_was_imported(runs: Runs) -> None:
    for figures, throughput in (({"throughput": 50.0, "other": 2.0}, 50.0), ({"other": 2.0}, None)):
        imported = Imported(program="other", file="a", sha256="0", values=figures)
        record = runs(None, imported=imported)
        assert (values(record, "throughput"), throughputs([record])) == ([throughput], [throughput])


@pytest.mark.parametrize(
    ("achieved", "peak", "share"),
    [(1.0, 2.0, 0.5), (2.0, 2.0, 1.0), (2.1, 2.0, None), (1.0, None, None), (None, 1.0, None)],
)
def test_more_than_the_peak_is_no_share(
    achieved: float | None, peak: float | None, share: float | None
) -> None:
    assert share_of_peak(achieved, peak) == share


@pytest.mark.parametrize(
    ("cpu", "gpu", "joules", "per_image"),
    [(1.5, 0.5, 2.0, 0.25), (1.0, None, 1.0, 0.125), (None, None, None, None)],
)
def test_energy_is_of_the_counters_that_there_are(
    runs: Runs, cpu: float | None, gpu: float | None, joules: float | None, per_image: float | None
) -> None:
    energy = {"cpu_energy_joules": cpu, "gpu_energy_joules": gpu, "energy_source": "rapl"}
    record = runs(100.0, measured=Measured(loop_images=8, **energy))
    assert values(record, "energy_joules", "joules_per_image", "energy_source") == [
        *(joules, per_image, "rapl")
    ]
    line = ALL["energy_joules"].line(record.summary())
    assert bool(line) == (joules is not None)
    assert all(text in line for text in (() if joules is None else ("J", "rapl")))


def test_start_up_is_the_sum_of_its_parts(runs: Runs) -> None:
    whole = runs(startup_seconds=StartupSeconds(import_=1.0, build=2.0, first_step=0.5))
    assert values(whole, "startup", "startup_seconds") == [3.5, 3.5]
    for lacks in ("import_", "build", "first_step"):
        seconds = {"import_": 1.0, "build": 2.0, "first_step": 0.5, lacks: None}
        assert values(runs(startup_seconds=StartupSeconds(**seconds)), "startup") == [None]


def evaluation(step: int, wall: float, **parts: Any) -> Evaluation:
    of = {"global_step": step, "examples": 10, "images_per_sec": 20.0, "wall_seconds": wall}
    return Evaluation(**{**of, **parts})


def test_accuracies_are_of_the_last_evaluation(runs: Runs) -> None:
    made = (evaluation(1, 2.0, top_1=0.3, top_5=0.6), evaluation(2, 4.0, top_1=0.5, top_5=0.75))
    record = runs(100.0, evaluations=made)
    assert values(record, "accuracy", "top_1", "top_5") == [0.5, 0.5, 0.75]
    assert values(runs(100.0), "accuracy", "top_5") == [None, None]


@pytest.mark.parametrize(
    ("flags", "target", "seconds"),
    [
        ({}, Target(metric="top_1", value=0.5), 4.0),
        ({}, Target(metric="top_1", value=0.3), 2.0),
        ({}, Target(metric="top_1", value=0.9), None),
        ({}, Target(metric="loss", value=1.0, lower_is_better=True), 4.0),
        ({"stop_at_top_1_accuracy": 0.5}, None, 4.0),
        ({"stop_at_top_1_accuracy": None}, None, None),
    ],
)
def test_the_time_to_a_target(
    runs: Runs, flags: dict[str, Any], target: Target | None, seconds: float | None
) -> None:
    made = (evaluation(1, 2.0, top_1=0.3, loss=2.0), evaluation(2, 4.0, top_1=0.5, loss=0.5))
    record = runs(100.0, evaluations=made, flags=flags, target=target)
    assert values(record, "time_to_accuracy_seconds") == [seconds]


def test_evaluations_of_a_training_are_no_throughput(runs: Runs) -> None:
    made = (evaluation(1, 2.0), evaluation(2, 4.0, images_per_sec=0.0))
    assert throughputs([runs(None, evaluations=made)]) == [None]
    # An evaluation without a speed counts neither in images nor in time.
    assert throughputs([runs(None, evaluations=made, flags={"eval": True})]) == [20.0]
    assert throughputs([runs(None, evaluations=made[1:], flags={"eval": True})]) == [0.0]


def test_input_has_the_speed_of_its_last_stage(runs: Runs) -> None:
    stages = (
        InputStage(name="read", examples=10, seconds=1.0),
        InputStage(name="device", examples=10, seconds=2.0),
    )
    assert values(runs(100.0, input_stages=stages), "input_images_per_sec") == [5.0]
    assert values(runs(100.0), "input_images_per_sec") == [None]


def test_percentiles_of_steps_and_latencies(runs: Runs) -> None:
    seconds = tuple(number / 1000 for number in range(1, 101))
    steps = ("step_p50_seconds", "step_p90_seconds", "step_p99_seconds")
    latencies = ("latency_p50_seconds", "latency_p90_seconds", "latency_p99_seconds")
    many = runs(None, step_seconds=seconds, losses=())
    assert values(many, *steps) == [0.05, 0.09, 0.099]
    assert values(many, *latencies) == [None] * 3  # of forward passes only
    assert values(runs(None, step_seconds=seconds[:99], losses=()), "step_p99_seconds") == [None]
    several = runs(None, step_seconds=seconds, losses=(), flags={"steps_per_execution": 2})
    assert values(several, "step_p50_seconds") == [None]
    forward = runs(None, step_seconds=seconds, losses=(), flags={"forward_only": True})
    assert values(forward, *latencies) == [0.05, 0.09, 0.099]
    own = runs(
        *(None,),
        step_seconds=seconds,
        losses=(),
        flags={"forward_only": True},
        latency_seconds=tuple(2 * one for one in seconds),
    )
    assert values(own, "latency_p50_seconds", "step_p50_seconds") == [0.1, 0.05]
    gpu = Placement(
        device="gpu", devices=("g",), num_towers=1, num_workers=1, variable_update="replicated"
    )
    on_gpu = runs(
        None, step_seconds=seconds, losses=(), flags={"forward_only": True}, placement=gpu
    )
    assert values(on_gpu, "latency_p50_seconds") == [None]


def test_lines_at_the_end_of_a_run(runs: Runs) -> None:
    measured = Measured(
        loop_images=24,
        loop_seconds=0.8,
        loop_user_seconds=1.25,
        loop_system_seconds=0.35,
        input_wait_seconds=0.2,
        peak_flops_per_sec=12_000.0,
        peak_memory_bytes=2**30,
    )
    record = runs(100.0, measured=measured, step_cpu_seconds=(0.2, 0.1, 0.3))
    summary = record.summary()
    assert summary.mfu == pytest.approx(0.5)
    lines = {name: one.line(summary) for name, one in ALL.items() if one.line is not None}
    named = {name for name, line in lines.items() if line}
    assert named == {
        *("achieved_flops_per_sec", "cpu_time", "input_wait_fraction"),
        *("peak_memory_bytes", "step_p50_seconds"),
    }
    assert all(text in lines["step_p50_seconds"] for text in ("p50 80", "p90 80"))
    bare = runs(None).summary()
    assert {one.line(bare) for one in ALL.values() if one.line is not None} == {""}
    # Latencies that are the times of the steps are told once.
    forward = runs(100.0, flags={"forward_only": True}).summary()
    assert ALL["latency_p50_seconds"].line(forward)
    assert ALL["step_p50_seconds"].line(forward) == ""
    assert ALL["latency_p50_seconds"].line(forward).endswith(" or more")  # for the p99
    many = runs(None, step_seconds=(0.1,) * 100, losses=(), flags={"forward_only": True})
    assert not ALL["latency_p50_seconds"].line(many.summary()).endswith(" or more")


@pytest.mark.parametrize(
    ("name", "figures", "has_line"),
    [
        ("cpu_time", {"loop_seconds": 0.8}, False),
        ("achieved_flops_per_sec", {}, True),
        ("peak_memory_bytes", {}, False),
        ("peak_memory_bytes", {"peak_memory_bytes": 0}, True),
        ("energy_joules", {"gpu_energy_joules": 2.0, "energy_source": "nvml"}, True),
    ],
)
def test_a_line_needs_its_figures(
    runs: Runs, name: str, figures: dict[str, Any], has_line: bool
) -> None:
    summary = runs(100.0, measured=Measured(**figures)).summary()
    assert bool(ALL[name].line(summary)) == has_line
    assert "%" not in ALL[name].line(summary)


def test_shares_and_sources_are_in_lines_if_they_are_known(runs: Runs) -> None:
    def line(name: str, **figures: Any) -> str:
        return ALL[name].line(runs(100.0, measured=Measured(**figures)).summary())

    peak = line("achieved_flops_per_sec", peak_flops_per_sec=12_000.0)
    source = line(
        "achieved_flops_per_sec", peak_flops_per_sec=12_000.0, peak_flops_source="measured"
    )
    assert ("50.0 %" in peak, "(" in peak, "(measured)" in source) == (True, False, True)
    impossible = line("achieved_flops_per_sec", peak_flops_per_sec=1.0)
    assert impossible == line("achieved_flops_per_sec") != ""
    joules = {"gpu_energy_joules": 2.0, "energy_source": "nvml"}
    assert "per image" not in line("energy_joules", **joules)
    assert "0.2500 J per image" in line("energy_joules", **joules, loop_images=8)


def test_a_job_of_several_processes_has_no_images_per_cpu_second(runs: Runs) -> None:
    record = runs(100.0, step_cpu_seconds=(0.1, 0.1, 0.1))
    assert values(record, "images_per_cpu_second") == pytest.approx([80.0])
    job = replace(record, cluster=Cluster(tasks=(), workers=()))
    assert values(job, "images_per_cpu_second") == [None]


def test_a_run_that_never_started_has_no_figures(runs: Runs) -> None:
    record = runs(None, batch=None, placement=None, model=None)
    assert {*record.summary().values()} == {None}
