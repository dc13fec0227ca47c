"""The history as text for a terminal, and values and steps as all outputs write them."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.history.series import Point
from cnnbench.history.steps import MIN_SERIES, Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.text.escape import plain
from cnnbench.text.numbers import count
from cnnbench.text.table import aligned

_MOST_FACTS = 4


def render(trends: Sequence[Trend], metric: Metric, last: int = 0) -> str:
    """A block per series: its points, and the steps between them.

    Args:
      trends: series with their steps.
      metric: of the values.
      last: how many points to list; 0 for all.
    """
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"{metric.name}, {metric.unit_text}; {direction} is better"]
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
        mark = f"{'-' if step.worse else '+'} step {metric.change_text(step.change)}"
    return (
        time_text(point),
        plain(point.short),
        metric.value_text(point.value, unit=False),
        range_text(point.values, metric),
        f"n={len(point.values)}" + (f", {point.failed} failed" if point.failed else ""),
        mark,
    )


def range_text(values: Sequence[float], metric: Metric) -> str:
    """From the smallest value to the largest; "" for a single one."""
    if len(values) < 2:
        return ""
    low, high = (metric.value_text(end, unit=False) for end in (min(values), max(values)))
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
    change = metric.change_text(step.change)
    before = metric.value_text(step.before.value, unit=False)
    text = f"{kind}: {change} ({before} -> {metric.value_text(step.after.value)}); "
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
