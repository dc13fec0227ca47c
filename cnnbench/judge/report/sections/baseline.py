"""The verdicts against a baseline, and where the difference is if processes were profiled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.text.numbers import count, percent
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.compare.judge import Verdict
from cnnbench.judge.compare.result import opening
from cnnbench.judge.explain.explain import about, chart, lines_of
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.document import (
    Answer,
    Content,
    TableCell,
    TableColumn,
    number,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.renderers import wording
from cnnbench.judge.report.results import ReportSubject, apart
from cnnbench.records.explanation import Cause, ExplainedRow, FactChange

_MOST_NAMED = 3
_Judged: TypeAlias = tuple[ComparedConfiguration, MetricResult]


@section("baseline", "Against the baseline")
def baseline(results: ReportSubject) -> Iterable[Content]:
    """A table per metric, and the changes with their intervals."""
    comparison = results.comparison
    if comparison is None:
        return
    charts = [_changes(comparison, metric) for metric in comparison.leading]
    leading = [(metric, comparison.about(metric)) for metric in comparison.leading]
    further = wording.further_tables(comparison)
    judged = [row for _, rows in (*leading, *further) for row in rows]
    yield f"Baseline {comparison.base_label}; {comparison.new_label} is judged against it."
    yield [chart for chart in charts if chart is not None]
    for metric, rows in leading:
        yield table(_columns(comparison, metric), rows)
    for metric, rows in further:
        title = f"Also {metric.name}"
        yield table(_columns(comparison, metric), rows, title=title, folded=True)
    yield table(_reasons(comparison), judged, title="Why", folded=True)
    yield from (f"{mean}." for mean in _means(comparison))
    yield wording.conditions(comparison)
    yield from (f"Note: {note}." for note in comparison.notes)
    if mentions := "; ".join(wording.mentions(comparison)):
        yield f"Also different: {mentions}."
    yield from (f"Skipped: {one}." for one in comparison.skipped)


def verdict(results: ReportSubject) -> Answer:
    """The comparison's outcome with its worst configurations."""
    comparison = results.comparison
    if comparison is None:
        hint = "--baseline=RECORDS judges these records against others"
        return Answer("Verdict", "Not compared with anything", "", (hint,))
    ending = wording.ending(comparison)
    told = opening(comparison)
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    if ending == Verdict.CHANGED_WORK.value:
        tone = "unsure"
    name = f"{comparison.new_label} against {comparison.base_label}"
    outcome = f"{ending[0].upper()}{ending[1:]}: {wording.outcome(comparison)}"
    details = (*told[1:], outcome, *_worst(comparison), *_means(comparison))
    return Answer(name, told[0], tone, details)


def _worst(comparison: Comparison) -> list[str]:
    found = []
    for entry in comparison.by_severity():
        for result in entry.results:
            if result is entry.main and result.verdict is Verdict.CHANGED_WORK:
                found.append(f"{entry.name}: {result.judgement.reason}")
            elif comparison.is_regression(entry, result) or (
                result is entry.main and result.verdict is Verdict.FAILED
            ):
                change = "" if result.judgement.change is None else f" {_change(result)}"
                found.append(f"{entry.name}: {result.metric.name} {result.word}{change}")
    more = count(len(found) - _MOST_NAMED, "more configuration", "more configurations")
    return found[:_MOST_NAMED] + ([f"and {more}"] if len(found) > _MOST_NAMED else [])


def _change(result: MetricResult) -> str:
    return f"{wording.change(result)} ({wording.interval(result)})"


def _means(comparison: Comparison) -> list[str]:
    return [f"{mean[0].upper()}{mean[1:]}" for mean in wording.mean_sentences(comparison)]


def _columns(comparison: Comparison, metric: Metric) -> tuple[TableColumn[_Judged], ...]:
    head = wording.head(comparison, metric)

    def column(title: str, place: int, field: str) -> TableColumn[_Judged]:
        """One of `wording.cells`, sorted by a field of the judgement."""

        def cell(row: _Judged) -> TableCell:
            return number(getattr(row[1].judgement, field), wording.cells(*row)[place])

        return TableColumn(title, cell, "number")

    return (
        TableColumn("configuration", lambda row: row[0].name),
        TableColumn(metric.name, lambda row: _verdict(comparison, row)),
        column(head[4], 4, "change"),
        column(head[5], 5, "low"),
        column(f"baseline median, {metric.unit_text}", 2, "base_median"),
        column(f"new median, {metric.unit_text}", 3, "new_median"),
        column("p", 6, "p_adjusted"),
        TableColumn(
            "processes",
            lambda row: number(len(row[0].base) + len(row[0].new), wording.cells(*row)[7]),
            "number",
        ),
    )


def _reasons(comparison: Comparison) -> tuple[TableColumn[_Judged], ...]:
    return (
        TableColumn("configuration", lambda row: row[0].name),
        TableColumn("metric", lambda row: row[1].metric.name),
        TableColumn("verdict", lambda row: _verdict(comparison, row)),
        TableColumn("why", lambda row: row[1].judgement.reason, "prose"),
    )


def _verdict(comparison: Comparison, row: _Judged) -> TableCell:
    return TableCell(wording.verdict(row[1]), tone=wording.sign(comparison, *row).tone)


def _changes(comparison: Comparison, metric: Metric) -> Rows | None:
    judged = [
        (entry, result)
        for entry, result in comparison.about(metric)
        if result.judgement.change is not None
    ]
    if not judged:
        return None
    shared, labels = apart([entry.name.split(", ") for entry, _ in judged])
    rows = []
    for (entry, result), label in zip(judged, labels, strict=True):
        judgement = result.judgement
        rows.append(
            DistributionRow(
                label=label,
                values=((judgement.change or 0.0, f"{label}: {result.word} {_change(result)}"),),
                low=judgement.low,
                high=judgement.high,
                text=wording.change(result),
                tone=wording.sign(comparison, entry, result).tone,
            )
        )
    of = f" of {shared}" if shared else ""
    return Rows(
        title=f"Change of {metric.name}{of} against the baseline",
        x=Axis(
            label=f"change of {metric.name}",
            format="percent" if metric.relative else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
        ),
        rows=tuple(rows),
        limit=0.0,
        limit_label="no change",
        note=key_of(
            rows,
            dot="the estimated change",
            band=f"its {wording.confidence(comparison)} interval",
        ),
    )


_CAUSES: tuple[TableColumn[Cause], ...] = (
    TableColumn("cause", lambda cause: cause.place),
    numeric("difference, ms", lambda cause: cause.difference, scale=1e3),
    numeric("A, ms", lambda cause: cause.base, scale=1e3),
    numeric("B, ms", lambda cause: cause.new, scale=1e3),
    TableColumn("what", lambda cause: "; ".join((cause.text, *cause.evidence)), "prose"),
)
_EXPLAINED: tuple[TableColumn[ExplainedRow], ...] = (
    TableColumn("layer", lambda line: line.layer),
    TableColumn("kind", lambda line: line.kind),
    TableColumn("direction", lambda line: line.direction),
    numeric("A, ms", lambda line: line.base, scale=1e3),
    numeric("B, ms", lambda line: line.new, scale=1e3),
    numeric("difference, ms", lambda line: line.difference, scale=1e3),
    numeric("+/-, ms", lambda line: None if math.isnan(line.spread) else line.spread, scale=1e3),
    numeric("share", lambda line: line.share, percent),
)
_FACTS: tuple[TableColumn[FactChange], ...] = (
    TableColumn("fact", lambda one: one.fact),
    TableColumn("A", lambda one: one.base),
    TableColumn("B", lambda one: one.new),
)


@section("why", "Where the difference is")
def explanation(results: ReportSubject) -> Iterable[Content]:
    """The answer, its causes, the largest rows as a chart and all of them as a table."""
    found = None if results.comparison is None else results.comparison.explanation
    if found is not None:
        yield found.answer
        yield [chart(found)]
        yield table(_CAUSES, found.causes)
        yield table(_EXPLAINED, lines_of(found), title="The largest rows, of a step")
        yield table(_EXPLAINED, lines_of(found, 0), title="All rows", folded=True)
        yield table(_FACTS, found.facts, title="Also different", folded=True)
        yield about(found)
