"""The verdicts of `cnnbench compare` against a baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.text.numbers import count
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.compare.answer import opening
from cnnbench.judge.compare.verdict import Verdict
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.document import (
    Answer,
    Charts,
    Section,
    TableCell,
    TableColumn,
    Text,
    number,
    section,
    table,
)
from cnnbench.judge.report.renderers import wording
from cnnbench.judge.report.results import ReportSubject, apart

_MOST_NAMED = 3
_Judged: TypeAlias = tuple[ComparedConfiguration, MetricResult]


def baseline(results: ReportSubject) -> Section | None:
    """A table per metric, and the changes with their intervals."""
    comparison = results.comparison
    if comparison is None:
        return None
    labels = f"Baseline {comparison.base_label}; {comparison.new_label} is judged against it."
    charts = (_changes(comparison, metric) for metric in comparison.leading)
    leading = [(metric, comparison.about(metric)) for metric in comparison.leading]
    further = wording.further_tables(comparison)
    judged = [row for _, rows in (*leading, *further) for row in rows]
    return section(
        "baseline",
        "Against the baseline",
        Text(text=labels),
        Charts(charts=tuple(chart for chart in charts if chart is not None)),
        *(table(_columns(comparison, metric), rows) for metric, rows in leading),
        *(
            table(_columns(comparison, metric), rows, title=f"Also {metric.name}", folded=True)
            for metric, rows in further
        ),
        table(_reasons(comparison), judged, title="Why", folded=True),
        *_remarks(comparison),
    )


def verdict(results: ReportSubject) -> Answer:
    """The comparison's outcome with its worst configurations."""
    comparison = results.comparison
    if comparison is None:
        details = ("--baseline=RECORDS judges these records against others",)
        return Answer(name="Verdict", text="Not compared with anything", details=details)
    ending = wording.ending(comparison)
    told = opening(comparison)
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    if ending == Verdict.CHANGED_WORK.value:
        tone = "unsure"
    return Answer(
        name=f"{comparison.new_label} against {comparison.base_label}",
        text=told[0],
        tone=tone,
        details=(
            *told[1:],
            f"{ending[0].upper()}{ending[1:]}: {wording.outcome(comparison)}",
            *_worst(comparison),
            *_means(comparison),
        ),
    )


def _worst(comparison: Comparison) -> list[str]:
    found = [
        f"{entry.name}: {_in_words(result)}"
        for entry in comparison.by_severity()
        for result in entry.results
        if comparison.is_regression(entry, result)
        or (result is entry.main and result.verdict in (Verdict.FAILED, Verdict.CHANGED_WORK))
    ]
    more = count(len(found) - _MOST_NAMED, "more configuration", "more configurations")
    return found[:_MOST_NAMED] + ([f"and {more}"] if len(found) > _MOST_NAMED else [])


def _in_words(result: MetricResult) -> str:
    if result.verdict is Verdict.CHANGED_WORK:
        return result.judgement.reason
    text = f"{result.metric.name} {result.word}"
    return text if result.judgement.change is None else f"{text} {_change(result)}"


def _change(result: MetricResult) -> str:
    return f"{wording.change(result)} ({wording.interval(result)})"


def _means(comparison: Comparison) -> list[str]:
    return [f"{mean[0].upper()}{mean[1:]}" for mean in wording.mean_sentences(comparison)]


def _columns(comparison: Comparison, metric: Metric) -> tuple[TableColumn[_Judged], ...]:
    unit = metric.unit_text

    def value(found: float | None) -> TableCell:
        return number(found, lambda known: metric.value_text(known, unit=False))

    def numeric(
        title: str, cell: Callable[[ComparedConfiguration, MetricResult], TableCell]
    ) -> TableColumn[_Judged]:
        return TableColumn(title, lambda row: cell(*row), "number")

    return (
        TableColumn("configuration", lambda row: row[0].name),
        TableColumn(metric.name, lambda row: _verdict(comparison, row)),
        numeric(
            wording.change_head(comparison),
            lambda _, found: number(found.judgement.change, wording.change(found)),
        ),
        numeric(
            f"{wording.confidence(comparison)} interval",
            lambda _, found: number(found.judgement.low, wording.interval(found)),
        ),
        numeric(f"baseline median, {unit}", lambda _, found: value(found.judgement.base_median)),
        numeric(f"new median, {unit}", lambda _, found: value(found.judgement.new_median)),
        numeric("p", lambda _, found: number(found.judgement.p_adjusted, wording.p_value(found))),
        numeric(
            "processes", lambda one, _: number(len(one.base) + len(one.new), wording.runs(one))
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


def _remarks(comparison: Comparison) -> list[Text]:
    lines = [f"{mean}." for mean in _means(comparison)]
    lines.append(wording.conditions(comparison))
    lines += [f"Note: {note}." for note in comparison.notes]
    mentions = "; ".join(wording.mentions(comparison))
    if mentions:
        lines.append(f"Also different: {mentions}.")
    lines += [f"Skipped: {one}." for one in comparison.skipped]
    return [Text(text=line) for line in lines]
