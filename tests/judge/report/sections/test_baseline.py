"""Charts and the answer of a comparison with a baseline, by value."""

from __future__ import annotations

import pytest
from pages import report_of, section

from cnnbench.base.charts import HIGHER, LOWER
from cnnbench.base.document import ChartGroup
from cnnbench.judge.compare import METRICS, Criteria, compare_records
from cnnbench.judge.report import build, gather
from cnnbench.records.load import Loaded

SIX = (100.0, 100.2, 99.8, 100.1, 99.9, 100.0)


def times(factor):
    return [speed * factor for speed in SIX]


def charts_of(report):
    found = section(report, "baseline").blocks
    return [block.charts for block in found if isinstance(block, ChartGroup)]


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
        report = report_of(*full_runs.of(*new), base=full_runs.of(*base))
        ((_, strip),) = charts_of(report)
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
    groups = charts_of(report_of(*new, base=base))
    charts = [chart for group in groups for chart in group]
    strips = [chart for chart in charts if "each process" in chart.title]
    assert len(strips) == drawn
    assert len(groups) == (1 if count == 1 else 2)
    # The worst configuration is first.
    assert f"batch {sizes[-1]}" in strips[0].title
    (changes,) = [chart for chart in charts if chart not in strips]
    assert len(changes.rows) == count


@pytest.mark.parametrize(
    ("metric", "format", "better"),
    [("throughput", "number", HIGHER), ("memory", "bytes", LOWER)],
)
def test_axes_of_metrics(machine_runs, metric, format, better):
    base, new = machine_runs.with_memory(*[1000] * 6), machine_runs.with_memory(*[1500] * 6)
    comparison = compare_records(base, new, Criteria(metrics=(metric,)))
    report = build(gather(Loaded(tuple(new), ()), comparison=comparison))
    ((changes, strip),) = charts_of(report)
    assert (strip.x.format, strip.x.better, strip.x.least_span) == (format, better, 0.05)
    assert (changes.x.format, changes.x.better) == ("percent", better)
    assert strip.x.label == (METRICS[metric].title if format == "number" else metric)
    (row,) = changes.rows
    assert row.values[0][0] == pytest.approx(0.5 if metric == "memory" else 0.0)
    assert changes.limit[0] == 0


def test_results_without_a_change_have_no_chart(full_runs):
    report = report_of(base=full_runs.of(*SIX))
    assert [chart for group in charts_of(report) for chart in group] == []
