"""Charts of steps, memory and profiles: which points, processes and spans they show."""

from __future__ import annotations

import dataclasses

import pytest
from pages import report_of, rows, section
from step_profiles import exact_row
from studies import spans, step_profile

from cnnbench.base.charts import LOWER
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.records.profiles import FORWARD, INPUT_OPERATIONS, ProfiledSpan, StepPartKey
from cnnbench.records.run import ResourceUse

NONE = {"warmup_step_seconds": (), "warmup_losses": (), "losses": ()}


def charts(report, words):
    return [one for one in report.charts if words in one.title]


def test_steps_of_one_execution_are_drawn_apart(full_runs):
    flags = {"steps_per_execution": 5}
    record = full_runs(100, flags=flags, step_seconds=(0.01, 0.02, 0.03), **NONE)
    (chart,) = charts(report_of(record), "in order")
    places = [x for x, _ in chart.series[0].points]
    assert places == [5.0, 10.0, 15.0]
    assert not chart.series[0].marks
    assert (chart.y.zero, chart.y.better) == (True, LOWER)


@pytest.mark.parametrize(
    ("highest", "place", "drawn"),
    [(0.12, 4, False), (0.1201, 4, True), (0.5, 5, True), (0.5, 3, False), (0.05, 4, False)],
)
def test_a_step_that_stands_out_is_drawn_beside_the_median(full_runs, highest, place, drawn):
    # 480 steps are 160 groups of three, which begin with the steps 1, 4, 7 and so on.
    seconds = [0.1] * 480
    seconds[place] = highest
    (chart,) = charts(report_of(full_runs(100, step_seconds=tuple(seconds), **NONE)), "in order")
    points = chart.series[0].points
    assert len(points) == 160 + drawn
    assert ((place + 1.0, pytest.approx(1000 * highest)) in [*points]) == drawn


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (9, [1, 2, 3, 4, 6, 7, 8, 9]),
    ],
)
def test_eight_processes_are_drawn(full_runs, count, names):
    report = report_of(*full_runs.of(*[100.0] * count))
    (chart,) = charts(report, "in order")
    assert bool(chart.note) == (count > 8)
    drawn = [one.name.partition(",")[0] for one in chart.series]
    assert drawn == [f"process {number}" for number in names]


@pytest.mark.parametrize(("count", "drawn"), [(8, 8), (9, 8)])
def test_the_newest_eight_configurations_are_drawn(full_runs, count, drawn):
    made = [full_runs(100.0, flags={"batch_size": 1 + number}) for number in range(count)]
    found = section(report_of(*made), "steps")
    (group,) = [block for block in found.blocks if isinstance(block, ChartGroup)]
    assert (len(group.charts), group.pairs) == (drawn, False)
    texts = [block.text for block in found.blocks if isinstance(block, Paragraph)]
    assert len(texts) == 1 + (count > drawn)
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    assert len(table.rows) == count


@pytest.mark.parametrize(("count", "known"), [(99, False), (100, True)])
def test_a_percentile_needs_enough_steps(full_runs, count, known):
    seconds = tuple(0.1 + 0.001 * number for number in range(count))
    (row,) = rows(report_of(full_runs(100, step_seconds=seconds, **NONE)), "steps")
    assert ("99 %, ms" in row) == known
    if known:
        assert float(row["99 %, ms"]) == pytest.approx(100 + 0.99 * 99, rel=1e-3)
        assert float(row["90 %, ms"]) == pytest.approx(100 + 0.9 * 99, rel=1e-3)


# Memory and CPUs


def use(**more):
    values = {
        "seconds": (1.0, 2.0, 3.0, 4.0),
        "memory_bytes": (10.0, 20.0, 40.0, 30.0),
        "busy_cpus": (1.0, 2.0, 3.0, 4.0),
        "loop_start": 2.0,
        "loop_end": 3.0,
        "sampler_cpu_seconds": 0.4,
        **more,
    }
    return ResourceUse(**values)


@pytest.mark.parametrize(
    ("more", "growth"),
    [
        ({}, "+20 B"),
        ({"loop_start": 1.0, "loop_end": 4.0}, "+20 B"),
        ({"loop_start": 3.0, "loop_end": 4.0}, "-10 B"),
        ({"loop_start": 2.5, "loop_end": 3.5}, "+0 B"),
        ({"loop_start": 2.1, "loop_end": 2.2}, None),
        ({"loop_start": None}, None),
        ({"loop_end": None}, None),
    ],
)
def test_growth_in_the_timed_loop(full_runs, more, growth):
    (row,) = rows(report_of(full_runs(100, resources=use(**more))), "use")
    assert row.get("growth in the timed loop") == growth
    assert (row["most memory"], row["CPU time of the sampler"]) == ("40 B", "10.0 %")
    assert row["median of CPUs in use"] == "2.500"
    (chart,) = charts(report_of(full_runs(100, resources=use(**more))), "CPUs in use")
    ends = more.get("loop_start", 2.0), more.get("loop_end", 3.0)
    assert (chart.shaded and chart.shaded[:2]) == (None if None in ends else ends)


def test_eight_processes_and_known_quantities_are_drawn(full_runs):
    made = [full_runs(100, resources=use()) for _ in range(9)]
    found = charts(report_of(*made), "CPUs in use")
    assert [len(one.series) for one in found] == [8]
    assert found[0].note != ""
    few = report_of(*made[:8])
    (chart,) = charts(few, "CPUs in use")
    assert (len(chart.series), chart.note) == (8, "")
    assert charts(few, "GPU") == []
    gpu = full_runs(100, resources=use(device_memory_bytes=(1.0, 2.0, 3.0, 4.0)))
    (chart,) = charts(report_of(gpu, full_runs(100, resources=use())), "GPU")
    assert [one.name for one in chart.series] == ["process 1"]
    assert chart.series[0].points == ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0))


# Profiles


def test_short_spans_have_no_hint(full_runs):
    def span(start, end):
        return ProfiledSpan(
            device="cpu:0", layer="a", kind="b", direction=FORWARD, start=start, end=end
        )

    # A thousand milliseconds: from 4 ms on.
    timeline = (span(0.0, 0.0039), span(0.1, 0.1041), span(0.9, 1.0))
    found = step_profile(full_runs, timeline=timeline)
    (chart,) = report_of(studies=[found]).charts
    ((name, drawn),) = chart.lanes
    assert name == "cpu:0"
    assert [bool(one.hint) for one in drawn] == [False, True, True]
    assert [(one.start, one.end) for one in drawn][-1] == pytest.approx((900, 1000))
    assert chart.x.zero


def test_lanes_are_in_order_of_devices(full_runs):
    def span(device):
        return ProfiledSpan(
            device=device, layer="a", kind="b", direction=FORWARD, start=0.0, end=1.0
        )

    timeline = tuple(map(span, ("gpu:10", "gpu:2", "", "gpu:1")))
    found = step_profile(full_runs, timeline=timeline)
    (chart,) = report_of(studies=[found]).charts
    assert [name for name, _ in chart.lanes] == ["gpu:1", "gpu:2", "gpu:10", "input pipeline"]


@pytest.mark.parametrize(("count", "drawn"), [(4, 4), (5, 4)])
def test_four_profiles_are_drawn(full_runs, count, drawn):
    made = []
    for number in range(count):
        found = step_profile(full_runs)
        record = full_runs(100, flags={"batch_size": 1 + number})
        made.append(dataclasses.replace(found, record=record))
    report = report_of(studies=made)
    assert len(report.charts) == drawn
    texts = [one.text for one in section(report, "timeline").blocks if isinstance(one, Paragraph)]
    assert len(texts) == 1 + (count > drawn)


def test_times_of_kinds_are_medians_of_their_sums(full_runs):
    def part(layer, *seconds):
        return exact_row(StepPartKey(layer, "b", FORWARD), *seconds)

    waiting = exact_row(INPUT_OPERATIONS, 0.0, 0.0, 0.0)
    found = step_profile(
        full_runs,
        rows=(part("x", 1.0, 2.0, 9.0), part("y", 1.0, 3.0, 1.0), waiting),
        step_seconds=(4.0, 10.0, 20.0),
        input_wait_seconds=(0.0, 0.0, 0.0),
        timeline=spans(),
    )
    report = report_of(studies=[found])
    (row,) = rows(report, "timeline")
    # The sums are 2, 5 and 10 s, and the median step takes 10 s.
    assert (row["median ms of a step"], row["of the step"]) == ("5,000", "50.0 %")
    (chart,) = report.charts
    assert "20,000" in chart.note
    waited = dataclasses.replace(found, input_wait_seconds=(0.0, 0.0, 0.25))
    (other,) = report_of(studies=[waited]).charts
    assert ("250.0" in other.note, "250.0" in chart.note) == (True, False)
