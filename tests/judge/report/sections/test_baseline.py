"""The answer of a comparison with a baseline, its chart, and the charts of processes, by value."""

from __future__ import annotations

import dataclasses

import pytest
from pages import Page, report_of, section

from cnnbench.base.charts import HIGHER, LOWER
from cnnbench.base.document import ChartGroup, CommandLine, Table
from cnnbench.judge.compare import METRICS, Criteria, compare_records
from cnnbench.judge.report import build, gather, render
from cnnbench.judge.report import comparison as verdicts
from cnnbench.judge.report.sections.baseline import baseline_answer
from cnnbench.records.load import Loaded
from cnnbench.records.run import Measured

SIX = (100.0, 100.2, 99.8, 100.1, 99.9, 100.0)


def times(factor):
    return [speed * factor for speed in SIX]


def strips_of(report):
    """The charts of processes."""
    groups = [one for one in section(report, "baseline").blocks if isinstance(one, ChartGroup)]
    return [chart for group in groups for chart in group.charts]


@pytest.mark.parametrize(
    ("factor", "tone"), [(1.0, "good"), (1.2, "good"), (0.8, "bad"), (None, "unsure")]
)
def test_the_tone_of_the_answer(full_runs, factor, tone):
    new = full_runs.of(100, 101) if factor is None else full_runs.of(*times(factor))
    answer = report_of(*new, base=full_runs.of(*SIX)).answers[0]
    assert answer.tone == tone


def test_failures_are_bad(full_runs):
    failed = full_runs(error=("E", "x"), step_seconds=(), losses=())
    answer = report_of(*full_runs.of(*SIX), failed, base=full_runs.of(*SIX)).answers[0]
    assert answer.tone == "bad"


def test_the_axis_of_processes_says_where_it_begins(full_runs):
    def note(base, new):
        (strip,) = strips_of(report_of(*full_runs.of(*new), base=full_runs.of(*base)))
        return strip.note

    near, far = note(SIX, times(0.9)), note(SIX, times(0.001))
    assert len(near) > len(far)


@pytest.mark.parametrize(("count", "drawn"), [(1, 1), (3, 3), (4, 3)])
def test_processes_of_three_configurations_are_drawn(full_runs, count, drawn):
    sizes = [8 * (1 + number) for number in range(count)]
    base, new = (
        [
            run
            for number, size in enumerate(sizes)
            for run in full_runs.of(*times(1 - 0.05 * number * side), flags={"batch_size": size})
        ]
        for side in (0, 1)
    )
    report = report_of(*new, base=base)
    strips = strips_of(report)
    assert len(strips) == drawn
    # The worst configuration is first.
    assert f"batch {sizes[-1]}" in strips[0].title
    assert len(report.answers[0].chart.rows) == count


@pytest.mark.parametrize(
    ("metric", "format", "better"),
    [("throughput", "number", HIGHER), ("memory", "bytes", LOWER)],
)
def test_axes_of_metrics(machine_runs, metric, format, better):
    base, new = machine_runs.with_memory(*[1000] * 6), machine_runs.with_memory(*[1500] * 6)
    comparison = compare_records(base, new, Criteria(metrics=(metric,)))
    report = build(gather(Loaded(tuple(new), ()), comparison=comparison))
    (strip,), changes = strips_of(report), report.answers[0].chart
    assert (strip.x.format, strip.x.better, strip.x.least_span) == (format, better, 0.05)
    assert (changes.x.format, changes.x.better) == ("percent", better)
    assert strip.x.label == (METRICS[metric].title if format == "number" else metric)
    (row,) = changes.rows
    assert row.centre == pytest.approx(0.5 if metric == "memory" else 0.0)
    assert row.values == ()  # which are no pairs
    assert changes.limit[0] == 0


def test_results_without_a_change_have_no_chart(full_runs):
    report = report_of(base=full_runs.of(*SIX))
    assert (strips_of(report), report.answers[0].chart) == ([], None)


def compared(full_runs, news, metrics=None, fields=None):
    """A comparison of pairs; `news` are the speeds of NEW by batch size."""
    base = [one for size in news for one in full_runs.of(*SIX, flags={"batch_size": size})]
    new = [
        one
        for size, speeds in news.items()
        for one in full_runs.of(*speeds, flags={"batch_size": size}, **(fields or {}))
    ]
    return compare_records(base, new, Criteria(paired=True, metrics=metrics))


def test_each_pair_is_a_dot_beside_its_estimate_and_the_threshold(full_runs):
    new = (90.0, 91.0, 89.0, 90.5, 90.2, 89.8)
    comparison = compared(full_runs, {8: new})
    judged = comparison.entries[0].main.judgement
    chart = baseline_answer(comparison).chart
    (row,) = chart.rows
    changes = [after / before - 1 for before, after in zip(SIX, new, strict=True)]
    assert [value for value, _ in row.values] == pytest.approx(changes)
    assert row.values[0][1].endswith(", pair 1: -10.0 %")
    assert (row.low, row.centre, row.high) == (judged.low, judged.change, judged.high)
    assert (row.tone, row.text) == ("bad", f"{100 * judged.change:.1f} %")
    # As much faster as the threshold is 1 / 1.03 of the speed seen from the other side.
    assert row.ignored == pytest.approx((1 / 1.03 - 1, 0.03))
    assert (chart.limit, chart.x.better) == ((0.0, "no change"), HIGHER)
    for words in ("a dot is a pair", "96 % interval", "the threshold of 3.0 %", "red worse"):
        assert words in chart.note.lower()
    assert "lenet, batch 8" in row.label


def test_the_chart_of_pairs_has_the_eight_worst_of_many_configurations(full_runs):
    news = {size: [speed * (1 - size / 100) for speed in SIX] for size in range(1, 10)}
    chart = baseline_answer(compared(full_runs, news)).chart
    assert [row.label for row in chart.rows] == [f"batch {size}" for size in range(9, 1, -1)]
    assert chart.title.startswith("lenet, 1 cpu: change of throughput, ")
    assert chart.title.endswith(", the 8 worst of 9")
    few = baseline_answer(compared(full_runs, dict([*news.items()][:8]))).chart
    assert "worst" not in few.title


def test_metrics_that_decide_together_have_a_row_each(full_runs):
    memory = {"measured": Measured(peak_memory_bytes=2**30)}
    comparison = compared(full_runs, {8: SIX}, ("throughput", "memory"), memory)
    chart = baseline_answer(comparison).chart
    assert [row.label for row in chart.rows] == ["throughput", "memory"]
    assert (chart.x.format, chart.x.better) == ("percent", "")
    # Thresholds differ, so the note has no number.
    assert "under the threshold." in chart.note or "under the threshold;" in chart.note


def test_forty_pairs_are_dots(full_runs):
    speeds = [100 + number / 10 for number in range(41)]
    base, new = full_runs.of(*[100.0] * 41), full_runs.of(*speeds)
    chart = baseline_answer(compare_records(base, new, Criteria(paired=True))).chart
    values = [value for value, _ in chart.rows[0].values]
    assert len(values) == 40
    assert (min(values), max(values)) == pytest.approx((0.0, 0.04))


def test_reasons_are_in_the_answer_and_said_once(full_runs):
    noisy = (90.0, 110.0, 95.0, 104.0, 99.0, 101.0)
    comparison = compared(full_runs, {8: noisy})
    (reason,) = verdicts.reasons(comparison)
    answer = baseline_answer(comparison)
    assert answer.details[0] == reason
    assert [one for one in answer.details if "more pair" in one] == [answer.details[0]]
    many = compared(full_runs, dict.fromkeys(range(8, 12), noisy))
    details = baseline_answer(many).details
    assert "and 1 more" in details
    report = build(gather(Loaded((), ()), comparison=many))
    tables = [one for one in section(report, "baseline").blocks if isinstance(one, Table)]
    assert len(tables[0].remarks.texts) == 4
    report = build(gather(Loaded((), ()), comparison=comparison))
    tables = [one for one in section(report, "baseline").blocks if isinstance(one, Table)]
    assert tables[0].remarks is None


def test_reasons_are_those_of_the_worst_verdict(full_runs):
    base, new = full_runs.of(*SIX), full_runs.of(*times(0.9))
    comparison = compare_records(base, [*new, full_runs(1, flags={"batch_size": 16})])
    assert [entry.main.word for entry in comparison.by_severity()] == ["slower", "missing"]
    assert verdicts.reasons(comparison) == []
    report = build(gather(Loaded((), ()), comparison=comparison))
    tables = [one for one in section(report, "baseline").blocks if isinstance(one, Table)]
    assert len(tables[0].remarks.texts) == 1


def test_the_command_that_repeats_an_experiment_is_below_the_reasons(full_runs):
    comparison = compared(full_runs, {8: SIX})
    assert baseline_answer(comparison).command is None
    repeat = dataclasses.replace(comparison, repeat="cnnbench ab", next_step="cnnbench ab --resume")
    answer = baseline_answer(repeat)
    assert answer.command == CommandLine("cnnbench ab", "Repeat")
    assert "cnnbench ab" not in answer.details
    page = Page(render(build(gather(Loaded((), ()), comparison=repeat)), "html"))
    assert "cnnbench ab" in page.texts["code"]


def test_pairs_are_drawn_once(full_runs):
    report = build(gather(Loaded((), ()), comparison=compared(full_runs, {8: SIX})))
    assert strips_of(report) == []
