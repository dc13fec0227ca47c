"""Sections of a report about a comparison with a baseline, and about causes of a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, RowChart, legend_text
from cnnbench.base.charts.axes import begins_above_zero
from cnnbench.base.document import Answer, CommandLine, Content, Paragraph, Section, Table
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import capitalized, first_lines
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, Verdict, phrases
from cnnbench.judge.compare.estimate import changes_of_pairs
from cnnbench.judge.explain.blocks import explanation_sections
from cnnbench.judge.report import comparison as verdicts
from cnnbench.judge.report.results import ReportSubject, split_common
from cnnbench.judge.report.sections.quantities import dots_of, process_chart
from cnnbench.records.explanation import Explanation
from cnnbench.records.metric import Metric


def baseline_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about a comparison with a baseline: the blocks of the comparison, except
    its answer and causes, and the processes of BASE and NEW if these are not pairs.
    """
    comparison = results.comparison
    if comparison is None:
        return
    sections = verdicts.blocks(comparison)
    yield from _blocks_of(sections, "sides")
    tables = [block for block in _blocks_of(sections, "verdicts") if isinstance(block, Table)]
    notes = [note for table in tables for note in table.notes if note]
    # If they are few, the answer has all of them.
    if len(notes) == len(verdicts.reasons(comparison)) <= _MOST_REASONS:
        tables = [replace(table, notes=()) for table in tables]
    yield from tables
    if not comparison.paired:
        metrics = comparison.leading_metrics
        yield [chart for metric in metrics for chart in _process_charts(comparison, metric)]
    yield from _blocks_of(sections, "notes", "method")


def _blocks_of(sections: Iterable[Section], *keys: str) -> Iterator[Content]:
    for section in sections:
        yield from section.blocks if section.key in keys else ()


def baseline_answer(comparison: Comparison) -> Answer:
    """Returns the answer about a comparison with a baseline: that of the comparison, a chart of the
    changes, how many configurations have each verdict, and the command that repeats it.
    """
    ending = verdicts.exit_code_meaning(comparison)
    _, *others = verdicts.answer_blocks(comparison)
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
    lines = [block.text for block in others if isinstance(block, Paragraph)]
    reasons = first_lines(verdicts.reasons(comparison), _MOST_REASONS)
    said = " ".join(reasons).casefold()
    further = (line for line in lines if line.rstrip(".").casefold() not in said)
    details = (*below, *reasons, *further, outcome, *means)
    return Answer(
        name,
        headline,
        tone,
        tuple(filter(None, details)),
        chart=_changes_chart(comparison),
        command=next((block for block in others if isinstance(block, CommandLine)), None),
    )


_MOST_REASONS = 3
"""Maximum number of reasons of verdicts in an answer."""

_MOST_CHANGES = 8
"""Maximum number of changes in the chart of an answer: those of the worst configurations."""


def _changes_chart(comparison: Comparison) -> RowChart | None:
    """Returns a chart with the change of each configuration in the metrics that decide: the pairs,
    the estimate and its interval. None if no change is known.
    """
    metrics = comparison.leading_metrics
    # Changes that are shares of the base have one axis; other changes are drawn if they are alone.
    drawn = [metric for metric in metrics if metric.relative] or [*metrics[:1]]
    judged = sorted(
        (pair for metric in drawn for pair in _results_with_change(comparison, metric)),
        key=lambda pair: pair[0].main.severity,
    )
    if not judged:
        return None
    shown, (base, new) = judged[:_MOST_CHANGES], comparison.names
    names = [entry.name.split(", ") for entry, _ in shown]
    if drawn[1:]:
        names = [
            [*name, result.metric.name] for name, (_, result) in zip(names, shown, strict=True)
        ]
    shared, labels = split_common(names)
    rows = [_change_row(comparison, *pair, of) for pair, of in zip(shown, labels, strict=True)]
    metric = drawn[0]
    title = f"change of {metric.name}" if not drawn[1:] else "changes"
    title = f"{shared}: {title}" if shared else capitalized(title)
    which = f", the {len(shown)} worst of {len(judged)}" if shown != judged else ""
    direction = HIGHER if metric.higher_is_better else LOWER
    return RowChart(
        title=f"{title}, {new} against {base}{which}",
        x=Axis(
            label="change",
            format="percent" if metric.relative else "number",
            better="" if drawn[1:] else direction,
        ),
        rows=tuple(rows),
        limit=(0.0, "no change"),
        note=legend_text(
            rows,
            dot="a pair",
            centre=f"{'' if any(row.values for row in rows) else 'is '}the estimated change",
            band=f"its {verdicts.confidence_text(comparison)} interval",
            ignored=_ignored_text(shown),
        ),
    )


def _change_row(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult, label: str
) -> DistributionRow:
    judgement, metric = result.judgement, result.metric
    floor, ignored = judgement.floor, None
    if floor is not None:
        ignored = (1 / (1 + floor) - 1 if metric.relative else -floor, floor)

    def hint(number: int, change: float) -> str:
        return f"{label}, pair {number}: {metric.change_text(change)}"

    return DistributionRow(
        label=label,
        values=dots_of(changes_of_pairs(result.samples), hint),
        centre=judgement.change,
        low=judgement.low,
        high=judgement.high,
        text=metric.change_text(judgement.change or 0.0),
        tone=verdicts.verdict_tone(comparison, entry, result),
        hint=f"{label}: {result.word} {phrases.change_text(metric, judgement)}",
        ignored=ignored,
    )


def _ignored_text(rows: Sequence[tuple[ComparedConfiguration, MetricResult]]) -> str:
    """Returns the legend of the changes that are too small to matter. Thresholds may differ."""
    texts = dict.fromkeys(
        result.metric.change_text(result.judgement.floor, signed=False)
        for _, result in rows
        if result.judgement.floor is not None
    )
    return f"changes under the threshold{f' of {next(iter(texts))}' if len(texts) == 1 else ''}"


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
