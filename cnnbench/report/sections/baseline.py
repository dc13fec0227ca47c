"""The verdicts of `cnnbench compare` against a baseline."""

from __future__ import annotations

from cnnbench.comparison import Comparison, Entry, Result, Verdict
from cnnbench.comparison.metrics import Metric
from cnnbench.comparison.render import words as said
from cnnbench.report.charts import HIGHER, LOWER, Axis, Dots, Row
from cnnbench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    table,
    words,
)
from cnnbench.report.material import Material

_TONES = {
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.FAILED: "bad",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.NOT_COMPARABLE: "unsure",
    Verdict.MISSING: "unsure",
}


def section(material: Material) -> Section | None:
    """A table per metric, as compare judges it, and the changes with their intervals."""
    comparison = material.comparison
    if comparison is None:
        return None
    main = comparison.metrics[0]
    ending = said.ENDINGS[comparison.exit_code]
    tally = said.tally(comparison, main) or "nothing was compared"
    blocks: list[Block] = [
        Text(
            text=f"Baseline {comparison.base_label}; {comparison.new_label} is judged against "
            f"it: {ending} ({tally}).",
            tone={0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure"),
        )
    ]
    chart = _changes(comparison)
    if chart is not None:
        blocks.append(Charts(charts=(chart,)))
    rows = [_row(entry, entry.main) for entry in comparison.by_severity()]
    blocks.append(table(_columns(comparison, main), rows))
    further = said.also(comparison)
    for metric in comparison.metrics[1:]:
        found = [_row(entry, result) for entry, result in further if result.metric is metric]
        if found:
            blocks.append(table(_columns(comparison, metric), found, title=f"{metric.name} too"))
    blocks += _remarks(comparison)
    return Section(key="baseline", title="Against the baseline", blocks=tuple(blocks))


def _columns(comparison: Comparison, metric: Metric) -> tuple[Column, ...]:
    unit = "MiB" if metric.unit == "bytes" else metric.unit
    return (
        Column("configuration"),
        Column(metric.name),
        Column(f"baseline, {unit}", number=True),
        Column(f"now, {unit}", number=True),
        Column("change", number=True),
        Column(f"{said.confidence(comparison)} interval", number=True),
        Column("p", number=True),
        Column("processes", number=True),
        Column("why", prose=True),
    )


def _row(entry: Entry, result: Result) -> tuple[Cell, ...]:
    judgement, metric = result.judgement, result.metric
    return (
        words(entry.name),
        Cell(f"{said.MARKS[result.verdict]} {result.word}", tone=_TONES.get(result.verdict, "")),
        _value(judgement.base_median, metric),
        _value(judgement.new_median, metric),
        _told(judgement.change, said.change(result)),
        _told(judgement.low, said.interval(result)),
        _told(judgement.p_adjusted, said.p_value(result)),
        number(len(entry.base) + len(entry.new), said.runs(entry)),
        words(judgement.reason),
    )


def _value(value: float | None, metric: Metric) -> Cell:
    return _told(value, said.value_text(value, metric, unit=False))


def _told(value: float | None, text: str) -> Cell:
    return number(None) if value is None else number(value, text)


def _changes(comparison: Comparison) -> Dots | None:
    """The change of the first metric, a row per configuration, the worst first."""
    rows = []
    metric = comparison.metrics[0]
    for entry in comparison.by_severity():
        judgement = entry.main.judgement
        if judgement.change is None:
            continue
        rows.append(
            Row(
                label=entry.name,
                values=((judgement.change, f"{entry.name}: {said.change(entry.main)}"),),
                low=judgement.low,
                high=judgement.high,
                text=f"{said.MARKS[entry.main.verdict]} {entry.main.word} "
                f"{said.change(entry.main)}",
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


def _remarks(comparison: Comparison) -> list[Block]:
    mean = said.mean_sentence(comparison)
    lines = [f"{mean[0].upper()}{mean[1:]}."] if mean else []
    lines.append(f"Judged with {said.conditions(comparison)}.")
    lines += [f"Note: {note}." for note in comparison.notes]
    lines += [
        f"Also different, and not held against the comparison: {mention}."
        for mention in said.mentions(comparison)
    ]
    lines += [f"Skipped: {one}." for one in comparison.skipped]
    return [Text(text=line) for line in lines]
