"""The history as text for a terminal, and values and steps as all outputs write them."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.history.series import Point
from cnnbench.history.steps import MIN_SERIES, Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.text.escape import plain
from cnnbench.text.numbers import count, number, percent
from cnnbench.text.table import aligned

_MIB = 2**20
_MOST_FACTS = 4


def render(trends: Sequence[Trend], metric: Metric, last: int = 0) -> str:
    """A block per series: its points, and the steps between them.

    Args:
      trends: series with their steps.
      metric: of the values.
      last: how many points to list; 0 for all.
    """
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"{metric.name}, {unit_text(metric)}; {direction} is better"]
    for found in trends:
        lines += ["", *_block(found, metric, last)]
    return "\n".join(lines) + "\n"


def _block(found: Trend, metric: Metric, last: int) -> list[str]:
    series = found.series
    lines = [f"{plain(series.configuration)} on {plain(series.machine)}"]
    steps = {step.index: step for step in found.steps}
    hidden = max(0, len(series.points) - last) if last else 0
    if hidden:
        points = count(hidden, "earlier point", "earlier points")
        lines.append(f"  ... {points}; --last=0 lists all")
    rows = [
        _row(point, metric, steps.get(index))
        for index, point in enumerate(series.points)
        if index >= hidden
    ]
    lines += [f"  {line}" for line in aligned(rows, left=(0, 1, 4, 5))]
    for point in series.empty:
        error = plain(point.runs[0].error)[:120]
        runs = count(len(point.runs), "run", "runs")
        lines.append(f"  no value: {plain(point.short)}, {runs}{': ' if error else ''}{error}")
    for step in found.steps:
        lines.append(f"  {'-' if step.worse else '+'} {plain(step_text(step, metric))}")
        facts = facts_text(step)
        if facts:
            lines.append(f"    changed there too: {plain(facts)}")
    summary = outcome(found)
    return [*lines, f"  = {summary}"] if summary else lines


def _row(point: Point, metric: Metric, step: Step | None) -> tuple[str, ...]:
    mark = ""
    if step is not None:
        mark = f"{'-' if step.worse else '+'} step {change_text(step.change, metric)}"
    return (
        time_text(point),
        plain(point.short),
        value_text(point.value, metric, unit=False),
        range_text(point.values, metric),
        f"n={len(point.values)}" + (f", {point.failed} failed" if point.failed else ""),
        mark,
    )


def value_text(value: float, metric: Metric, unit: bool = True) -> str:
    """A value, with its unit if asked for."""
    if metric.unit == "bytes":
        return f"{value / _MIB:,.1f}" + (" MiB" if unit else "")
    if metric.unit.startswith("share"):
        return percent(value, 2) if unit else f"{100 * value:.2f}"
    return number(value) + (f" {metric.unit}" if unit else "")


def unit_text(metric: Metric) -> str:
    """The unit that `value_text` writes."""
    if metric.unit == "bytes":
        return "MiB"
    return "%" if metric.unit.startswith("share") else metric.unit


def change_text(change: float, metric: Metric) -> str:
    """A change, in per cent if it is a share."""
    if metric.relative:
        return f"{100 * change:+.1f} %"
    if metric.unit.startswith("share"):
        return f"{100 * change:+.2f} points"
    return f"{'+' if change >= 0 else ''}{number(change)} {metric.unit}"


def range_text(values: Sequence[float], metric: Metric) -> str:
    """From the smallest value to the largest; "" for a single one."""
    if len(values) < 2:
        return ""
    low, high = (value_text(end, metric, unit=False) for end in (min(values), max(values)))
    return f"{low} to {high}"


def time_text(point: Point) -> str:
    """Start of a point's first run."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def step_text(step: Step, metric: Metric) -> str:
    """A step in a sentence."""
    kind, *ends = (
        ("worse", "last good", "first bad")
        if step.worse
        else ("better", "last without", "first with")
    )
    change = change_text(step.change, metric)
    before = value_text(step.before.value, metric, unit=False)
    text = f"{kind}: {change} ({before} -> {value_text(step.after.value, metric)}); "
    text += f"{ends[0]} {step.last_good.short}, {ends[1]} {step.first_bad.short}"
    if step.earliest is not step.latest:
        text += f" (95 %: {step.earliest.short} to {step.latest.short})"
    return text + ("" if step.stands else "; undone since")


def facts_text(step: Step) -> str:
    """What else changed at a step, or ""."""
    shown = [f"{name} {before} -> {after}" for name, before, after in step.facts[:_MOST_FACTS]]
    more = len(step.facts) - _MOST_FACTS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def outcome(found: Trend) -> str:
    """Why a series has no steps; "" if it has some."""
    if not found.enough:
        points = count(len(found.series.points), "point", "points")
        return f"{points}; steps are looked for from {MIN_SERIES} on"
    return "" if found.steps else "no step"
