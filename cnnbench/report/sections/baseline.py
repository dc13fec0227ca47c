"""The verdicts of `cnnbench compare` against a baseline."""

from __future__ import annotations

from cnnbench.charts import HIGHER, LOWER, Axis, Dots, Row
from cnnbench.compare import Comparison, Entry, Result, Verdict
from cnnbench.metrics.registry import Metric
from cnnbench.report.document import (
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    section,
    table,
    text_cell,
)
from cnnbench.report.renderers import wording as said
from cnnbench.report.results import Results

_TONES = {
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.FAILED: "bad",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.NOT_COMPARABLE: "unsure",
    Verdict.MISSING: "unsure",
}


def baseline(results: Results) -> Section | None:
    """A table per metric, as compare judges it, and the changes with their intervals."""
    comparison = results.comparison
    if comparison is None:
        return None
    ending = f"{said.ENDINGS[comparison.exit_code]} ({said.outcome(comparison)})"
    labels = f"Baseline {comparison.base_label}; {comparison.new_label} is judged against it"
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    charts = (_changes(comparison, metric) for metric in comparison.leading)
    also = said.also(comparison)
    tables = [
        table(_columns(comparison, metric), [_row(*pair) for pair in comparison.about(metric)])
        for metric in comparison.leading
    ]
    for metric in comparison.metrics:
        rows = [_row(entry, result) for entry, result in also if result.metric is metric]
        if rows:
            tables.append(table(_columns(comparison, metric), rows, title=f"Also {metric.name}"))
    return section(
        "baseline",
        "Against the baseline",
        Text(text=f"{labels}: {ending}.", tone=tone),
        Charts(charts=tuple(chart for chart in charts if chart is not None)),
        *tables,
        *_remarks(comparison),
    )


def _columns(comparison: Comparison, metric: Metric) -> tuple[Column, ...]:
    unit = metric.unit_text
    return (
        Column("configuration"),
        Column(metric.name),
        Column(f"baseline median, {unit}", number=True),
        Column(f"new median, {unit}", number=True),
        Column("change", number=True),
        Column(f"{said.confidence(comparison)} interval", number=True),
        Column("p", number=True),
        Column("processes", number=True),
        Column("why", prose=True),
    )


def _row(entry: Entry, result: Result) -> tuple[Cell, ...]:
    judgement, metric = result.judgement, result.metric
    return (
        text_cell(entry.name),
        Cell(f"{said.MARKS[result.verdict]} {result.word}", tone=_TONES.get(result.verdict, "")),
        number(judgement.base_median, lambda value: metric.value_text(value, unit=False)),
        number(judgement.new_median, lambda value: metric.value_text(value, unit=False)),
        number(judgement.change, said.change(result)),
        number(judgement.low, said.interval(result)),
        number(judgement.p_adjusted, said.p_value(result)),
        number(len(entry.base) + len(entry.new), said.runs(entry)),
        text_cell(judgement.reason),
    )


def _changes(comparison: Comparison, metric: Metric) -> Dots | None:
    """The change of a leading metric, a row per configuration, the worst first."""
    rows = []
    for entry, result in comparison.about(metric):
        judgement = result.judgement
        if judgement.change is None:
            continue
        rows.append(
            Row(
                label=entry.name,
                values=((judgement.change, f"{entry.name}: {said.change(result)}"),),
                low=judgement.low,
                high=judgement.high,
                text=f"{said.MARKS[result.verdict]} {result.word} {said.change(result)}",
            )
        )
    if not rows:
        return None
    return Dots(
        title=f"Change of {metric.name} against the baseline",
        x=Axis(
            label=f"change of {metric.name}",
            format="percent" if metric.relative else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
        ),
        rows=tuple(rows),
        limit=0.0,
        limit_label="no change",
        note=f"A dot is the estimated change, the band its {said.confidence(comparison)} interval.",
    )


def _remarks(comparison: Comparison) -> list[Text]:
    lines = [f"{mean[0].upper()}{mean[1:]}." for mean in said.mean_sentences(comparison)]
    lines.append(f"Judged with {said.conditions(comparison)}.")
    lines += [f"Note: {note}." for note in comparison.notes]
    lines += [
        f"Also different, and not held against the comparison: {mention}."
        for mention in said.mentions(comparison)
    ]
    lines += [f"Skipped: {one}." for one in comparison.skipped]
    return [Text(text=line) for line in lines]
