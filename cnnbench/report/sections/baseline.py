"""The verdicts of `cnnbench compare` against a baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cnnbench.charts import HIGHER, LOWER, Axis, Row, Rows
from cnnbench.compare import Comparison, Entry, Result
from cnnbench.metrics.registry import Metric
from cnnbench.report.document import Cell, Charts, Column, Section, Text, number, section, table
from cnnbench.report.renderers import wording
from cnnbench.report.results import Results

_Judged: TypeAlias = tuple[Entry, Result]


def baseline(results: Results) -> Section | None:
    """A table per metric, as compare judges it, and the changes with their intervals."""
    comparison = results.comparison
    if comparison is None:
        return None
    ending = f"{wording.ending(comparison)} ({wording.outcome(comparison)})"
    labels = f"Baseline {comparison.base_label}; {comparison.new_label} is judged against it"
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    charts = (_changes(comparison, metric) for metric in comparison.leading)
    leading = [
        table(_columns(comparison, metric), comparison.about(metric))
        for metric in comparison.leading
    ]
    further = [
        table(_columns(comparison, metric), rows, title=f"Also {metric.name}")
        for metric, rows in wording.further_tables(comparison)
    ]
    return section(
        "baseline",
        "Against the baseline",
        Text(text=f"{labels}: {ending}.", tone=tone),
        Charts(charts=tuple(chart for chart in charts if chart is not None)),
        *leading,
        *further,
        *_remarks(comparison),
    )


def _columns(comparison: Comparison, metric: Metric) -> tuple[Column[_Judged], ...]:
    unit = metric.unit_text

    def value(found: float | None) -> Cell:
        return number(found, lambda known: metric.value_text(known, unit=False))

    def numeric(title: str, cell: Callable[[Entry, Result], Cell]) -> Column[_Judged]:
        return Column(title, lambda row: cell(*row), "number")

    return (
        Column("configuration", lambda row: row[0].name),
        Column(metric.name, _verdict),
        numeric(f"baseline median, {unit}", lambda _, found: value(found.judgement.base_median)),
        numeric(f"new median, {unit}", lambda _, found: value(found.judgement.new_median)),
        numeric("change", lambda _, found: number(found.judgement.change, wording.change(found))),
        numeric(
            f"{wording.confidence(comparison)} interval",
            lambda _, found: number(found.judgement.low, wording.interval(found)),
        ),
        numeric("p", lambda _, found: number(found.judgement.p_adjusted, wording.p_value(found))),
        numeric(
            "processes", lambda one, _: number(len(one.base) + len(one.new), wording.runs(one))
        ),
        Column("why", lambda row: row[1].judgement.reason, "prose"),
    )


def _verdict(row: _Judged) -> Cell:
    result = row[1]
    return Cell(wording.verdict(result), tone=wording.SIGNS[result.verdict].tone)


def _changes(comparison: Comparison, metric: Metric) -> Rows | None:
    """The change of a leading metric, a row per configuration, the worst first."""
    rows = []
    for entry, result in comparison.about(metric):
        judgement = result.judgement
        if judgement.change is None:
            continue
        rows.append(
            Row(
                label=entry.name,
                values=((judgement.change, f"{entry.name}: {wording.change(result)}"),),
                low=judgement.low,
                high=judgement.high,
                text=f"{wording.verdict(result)} {wording.change(result)}",
            )
        )
    if not rows:
        return None
    return Rows(
        title=f"Change of {metric.name} against the baseline",
        x=Axis(
            label=f"change of {metric.name}",
            format="percent" if metric.relative else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
        ),
        rows=tuple(rows),
        limit=0.0,
        limit_label="no change",
        note="A dot is the estimated change, the band its "
        f"{wording.confidence(comparison)} interval.",
    )


def _remarks(comparison: Comparison) -> list[Text]:
    lines = [f"{mean[0].upper()}{mean[1:]}." for mean in wording.mean_sentences(comparison)]
    lines.append(f"Judged with {wording.conditions(comparison)}.")
    lines += [f"Note: {note}." for note in comparison.notes]
    lines += [
        f"Also different, and not held against the comparison: {mention}."
        for mention in wording.mentions(comparison)
    ]
    lines += [f"Skipped: {one}." for one in comparison.skipped]
    return [Text(text=line) for line in lines]
