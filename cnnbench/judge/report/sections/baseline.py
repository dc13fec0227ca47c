"""Sections of a report about a comparison with a baseline, and about causes of a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, RowChart, legend_text
from cnnbench.base.charts.axes import begins_above_zero
from cnnbench.base.document import Answer, Content, Section
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import capitalized
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, Verdict, phrases
from cnnbench.judge.explain.blocks import explanation_sections
from cnnbench.judge.report import comparison as verdicts
from cnnbench.judge.report.results import ReportSubject, split_common
from cnnbench.judge.report.sections.quantities import process_chart
from cnnbench.records.explanation import Explanation
from cnnbench.records.metric import Metric


def baseline_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about a comparison with a baseline: the blocks of the comparison, except
    its answer and causes, and charts of the changes and of the processes.
    """
    comparison = results.comparison
    if comparison is None:
        return
    sections = verdicts.blocks(comparison)
    yield from _blocks_of(sections, "sides", "verdicts")
    metrics = comparison.leading_metrics
    changes = [chart for metric in metrics for chart in _changes_chart(comparison, metric)]
    processes = [chart for metric in metrics for chart in _process_charts(comparison, metric)]
    if len(comparison.deciding_configurations) == 1:
        yield [*changes, *processes]
    else:
        yield changes
        yield processes
    yield from _blocks_of(sections, "notes", "method")


def _blocks_of(sections: Iterable[Section], *keys: str) -> Iterator[Content]:
    for section in sections:
        yield from section.blocks if section.key in keys else ()


def baseline_answer(comparison: Comparison) -> Answer:
    """Returns the answer about a comparison with a baseline: that of the comparison, and how many
    configurations have each verdict.
    """
    ending = verdicts.exit_code_meaning(comparison)
    _, *lines = verdicts.summary_lines(comparison)
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    if ending == Verdict.CHANGED_WORK.value:
        tone = ""
    name = f"{comparison.new_label} against {comparison.base_label}"
    outcome = capitalized(ending)
    if comparison.same_code is not None or comparison.exit_code is ExitCode.INCONCLUSIVE:
        outcome = ""  # The headline says so.
    if len(comparison.entries) > 1:
        counts = verdicts.all_counts_text(comparison)
        outcome = f"{outcome}: {counts}" if outcome else counts
    means = map(capitalized, verdicts.mean_sentences(comparison))
    headline, *below = comparison.answer_lines
    details = (*below, *lines, outcome, *means)
    return Answer(name, headline, tone, tuple(filter(None, details)))


def _changes_chart(comparison: Comparison, metric: Metric) -> Iterator[RowChart]:
    """Yields a chart of the changes of a metric, if any change is known."""
    judged = _results_with_change(comparison, metric)
    if not judged:
        return
    shared, labels = split_common([entry.name.split(", ") for entry, _ in judged])
    rows = [
        DistributionRow(
            label=label,
            values=((result.judgement.change or 0.0, hint),),
            low=result.judgement.low,
            high=result.judgement.high,
            text=metric.change_text(result.judgement.change or 0.0),
            tone=verdicts.verdict_tone(comparison, entry, result),
        )
        for (entry, result), label in zip(judged, labels, strict=True)
        for hint in [f"{label}: {result.word} {phrases.change_text(metric, result.judgement)}"]
    ]
    of = f" of {shared}" if shared else ""
    interval = f"its {verdicts.confidence_text(comparison)} interval"
    changes = Axis(
        label=f"change of {metric.name}",
        format="percent" if metric.relative else "number",
        better=HIGHER if metric.higher_is_better else LOWER,
    )
    yield RowChart(
        title=f"Change of {metric.name}{of} against the baseline",
        x=changes,
        rows=tuple(rows),
        limit=(0.0, "no change"),
        note=legend_text(rows, dot="the estimated change", band=interval),
    )


_MOST_STRIPS = 3
"""Maximum number of configurations whose processes are drawn: the worst ones."""

_LEAST_SPAN = 0.05
"""Minimum length of an axis of processes, as a share of the values, so that small noise does not
fill the chart.
"""


def _process_charts(comparison: Comparison, metric: Metric) -> Iterator[RowChart]:
    """Yields a strip plot for each of the worst configurations whose change is known: each process
    of BASE and NEW is a dot, on a common axis.
    """
    format = "number"
    if metric.unit == "bytes":
        format = "bytes"
    elif metric.unit_text != metric.unit:
        format = "percent"
    axis = Axis(
        label=metric.title if format == "number" else metric.name,
        format=format,
        better=HIGHER if metric.higher_is_better else LOWER,
        least_span=_LEAST_SPAN,
    )
    for entry, result in _results_with_change(comparison, metric)[:_MOST_STRIPS]:
        sides = (ValuesByProcess(tuple(values)) for values in (result.base, result.new))
        chart = process_chart(
            f"{entry.name}: {metric.name} of each process",
            axis,
            zip(comparison.names, sides, strict=True),
        )
        if begins_above_zero(axis, (*result.base, *result.new)):
            chart = replace(chart, note=f"{chart.note} The axis does not begin at 0.")
        yield chart


def _results_with_change(
    comparison: Comparison, metric: Metric
) -> list[tuple[ComparedConfiguration, MetricResult]]:
    return [
        pair for pair in comparison.deciding_results(metric) if pair[1].judgement.change is not None
    ]


def explanation_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about the causes of a difference: the answer, a chart of the largest rows,
    the causes, and all rows as a table.
    """
    for explained in results.explanations:
        for section in explanation_sections(explained, full=True):
            yield from section.blocks


def explanation_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each explanation of `cnnbench explain`."""
    for study in results.studies:
        if isinstance(study, Explanation):
            sides = (study.base_label, study.new_label)
            yield Answer("Why B differs from A", study.answer, "", sides)
