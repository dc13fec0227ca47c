"""Rows and charts of quantities, and the fastest configurations, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from pages import report_of, rows, section
from studies import roofline

from cnnbench.base.charts import HIGHER, Axis
from cnnbench.base.document import Paragraph
from cnnbench.base.stats import ValuesByProcess
from cnnbench.judge.report import gather
from cnnbench.judge.report.sections.quantities import best_configurations, process_chart
from cnnbench.records.load import Loaded
from cnnbench.records.run import Batch, Evaluation, Measured
from cnnbench.records.subject import Subject

SIX = (100.0, 104.0, 101.0, 99.0, 98.0, 103.0)


# Charts of processes


@pytest.mark.parametrize(("count", "drawn"), [(40, 40), (41, 40), (80, 40)])
def test_forty_processes_are_dots(count, drawn):
    values = ValuesByProcess(tuple(float((7 * n) % count) for n in range(count)))
    chart = process_chart("t", Axis(label="x", better=HIGHER), [("a", values)], " units")
    (row,) = chart.rows
    found = [value for value, _ in row.values]
    assert len(found) == drawn
    assert (min(found), max(found)) == (min(values.values), max(values.values))
    # They are in order of the processes, whose numbers are in the hints.
    numbers = [int(hint.partition("process ")[2].partition(":")[0]) for _, hint in row.values]
    assert numbers == sorted(numbers)
    assert all(values.values[n - 1] == value for n, value in zip(numbers, found, strict=True))
    assert all(hint.endswith(" units") for _, hint in row.values)
    assert row.centre == values.median


def test_intervals_of_processes_need_six(full_runs):
    axis = Axis(label="x")
    few, many = (ValuesByProcess(SIX[:count]) for count in (5, 6))
    chart = process_chart("t", axis, [("a", few), ("b", many), ("c", ValuesByProcess(()))])
    assert [row.label for row in chart.rows] == ["a", "b"]
    assert [row.low is None for row in chart.rows] == [True, False]
    assert (chart.rows[1].low, chart.rows[1].high) == many.interval


# Rows


def test_images_that_were_asked_for(full_runs):
    plain = full_runs(100)
    batch = Batch(per_device=6, global_=12, requested_per_device=8)
    found = rows(report_of(dataclasses.replace(plain, batch=batch)), "throughput")[0]
    assert (found["images per step"], found["images per step asked for"]) == ("12", "16")
    assert "images per step asked for" not in rows(report_of(plain), "throughput")[0]


def test_ranges_of_memory(full_runs):
    made = [
        full_runs(100, measured=Measured(peak_memory_bytes=size * 2**20)) for size in (10, 30, 20)
    ]
    (row,) = rows(report_of(*made), "memory")
    assert (row["median peak memory, MiB"], row["range, MiB"]) == ("20.00", "10.00 to 30.00")
    assert (row["processes"], row["of"]) == ("3", "the process")


def test_losses_and_accuracies(full_runs):
    evaluations = [
        (Evaluation(global_step=step, top_1=top, top_5=0.9, examples=100, images_per_sec=speed),)
        for step, top, speed in ((10, 0.5, 900.0), (10, 0.75, 1000.0))
    ]
    made = [
        full_runs(100, losses=(4.0, *(2.0,) * 22, last), evaluations=own)
        for own, last in zip(evaluations, (1.0, 2.0), strict=True)
    ]
    (row,) = rows(report_of(*made), "accuracy")
    assert (row["top-1"], row["range"]) == ("62.50 %", "50.00 % to 75.00 %")
    assert (row["first loss"], row["last loss"]) == ("4.000", "1.500")
    assert row["median evaluation images/sec"] == "950.0"
    assert "losses" not in row
    # The last evaluation counts.
    both = dataclasses.replace(made[0], evaluations=(*evaluations[1], *evaluations[0]))
    (row,) = rows(report_of(both), "accuracy")
    assert (row["top-1"], row["median evaluation images/sec"]) == ("50.00 %", "900.0")


@pytest.mark.parametrize(("slow", "warm_up", "first"), [(0, 0, "1"), (6, 0, "7"), (6, 4, "7")])
def test_the_step_from_which_on_times_are_steady(full_runs, slow, warm_up, first):
    seconds = (0.2,) * slow + (0.1,) * 24
    before = {"warmup_step_seconds": (0.2,) * warm_up, "warmup_losses": (2.0,) * warm_up}
    (row,) = rows(report_of(full_runs(100, step_seconds=seconds, losses=(), **before)), "warmup")
    assert row["warm-up steps"] == str(warm_up)
    assert row["steady from timed step"] == first


def test_steady_steps_of_several_processes_are_a_range(full_runs):
    none = {"warmup_step_seconds": (), "warmup_losses": (), "losses": ()}
    made = [full_runs(100, step_seconds=(0.2,) * slow + (0.1,) * 24, **none) for slow in (6, 0, 12)]
    (row,) = rows(report_of(*made), "warmup")
    assert row["steady from timed step"] == "1 to 13"


def test_numbers_of_warm_up_steps(full_runs):
    few = full_runs(100, warmup_step_seconds=(0.1,), warmup_losses=(2.0,))
    (row,) = rows(report_of(full_runs(100), few), "warmup")
    assert row["warm-up steps"] == "1 or 2"


def test_a_peak_that_no_one_knows_or_that_is_exceeded(full_runs):
    def remarks(*runs):
        found = section(report_of(*runs), "mfu")
        return sum(isinstance(one, Paragraph) and one.tone == "unsure" for one in found.blocks)

    known = full_runs(100)
    unknown = dataclasses.replace(known, measured=Measured())
    assert remarks(known) == 0
    assert remarks(unknown) == 1
    # 100 images/sec of 6 GFLOP are 600 GFLOP/s.
    for peak, count in ((0.601e12, 0), (0.58e12, 1)):
        assert remarks(full_runs.with_peak(peak)) == count


# The fastest configurations


def reached(*records, studies=()):
    subject = gather(Loaded(tuple(records), (), (), tuple(studies)))
    return [
        (best.name.split(", ")[1], estimate, [other.name.split(", ")[1] for other in others])
        for best, estimate, others in best_configurations(subject)
    ]


def test_the_fastest_of_each_kind_of_work(full_runs):
    records = [
        full_runs(100),
        full_runs(120, flags={"batch_size": 16}),
        full_runs(90, flags={"precision": "bf16", "batch_size": 32}),
        full_runs(900, flags={"forward_only": True, "batch_size": 64}),
        full_runs(80, flags={"batch_size": 4}, environment={"cpu_model": "Slow CPU"}),
    ]
    assert sorted(name for name, _, _ in reached(*records)) == [
        *("batch 16", "batch 32", "batch 4", "batch 64")
    ]
    # Sides of an experiment and runs of the input alone are none.
    side = full_runs(500, subject=Subject(side="a"), flags={"batch_size": 2})
    alone = full_runs(500, flags={"batch_size": 1, "input_only": True})
    assert reached(records[0], side, alone) == [("batch 8", None, [])]


@pytest.mark.parametrize(
    ("shift", "alike"), [(-1.0, ["batch 16"]), (-6.0, ["batch 16"]), (-6.1, []), (-50.0, [])]
)
def test_configurations_whose_intervals_touch_are_as_fast(full_runs, shift, alike):
    best = full_runs.of(*SIX)
    others = full_runs.of(*(speed + shift for speed in SIX), flags={"batch_size": 16})
    # The intervals are the ranges, 98 to 104 and 6 less.
    assert reached(*best, *others) == [("batch 8", None, alike)]


def test_few_processes_are_as_fast_as_no_other(full_runs):
    best, other = full_runs.of(*SIX[:5]), full_runs.of(*SIX, flags={"batch_size": 16})
    assert reached(*best, *full_runs.of(99, 98, flags={"batch_size": 16})) == [
        ("batch 8", None, [])
    ]
    ((name, _, alike),) = reached(*full_runs.of(100, 105), *other)
    assert (name, alike) == ("batch 8", [])


def test_estimates_of_the_same_work(full_runs):
    # 34 ms for 8 images, and for 16.
    studies = [
        roofline(full_runs(190)),
        roofline(full_runs(190, flags={"batch_size": 16})),
    ]
    found = reached(full_runs(200), studies=studies)
    assert found == [
        ("batch 8", pytest.approx(8 / 0.034), []),
        ("batch 16", pytest.approx(16 / 0.034), []),
    ]
    precise = roofline(full_runs(190, flags={"precision": "bf16"}))
    assert reached(full_runs(200), studies=[precise])[0][1] is None
