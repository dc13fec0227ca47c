"""Values and steps in words, for all outputs."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.history.series import Point
from cnnbench.history.steps import MIN_SERIES, Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.report.document import figure
from cnnbench.text.numbers import count

_FACTS_TOLD = 4


def value_text(value: float, metric: Metric, unit: bool = True) -> str:
    """A value with its unit."""
    if metric.unit == "bytes":
        return f"{value / 2**20:,.1f}" + (" MiB" if unit else "")
    if metric.unit.startswith("share"):
        return f"{100 * value:.2f}" + (" %" if unit else "")
    return figure(value) + (f" {metric.unit}" if unit else "")


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
    return f"{'+' if change >= 0 else ''}{figure(change)} {metric.unit}"


def range_text(values: Sequence[float], metric: Metric) -> str:
    """From the smallest value to the largest; "" for a single one."""
    if len(values) < 2:
        return ""
    low, high = (value_text(end, metric, unit=False) for end in (min(values), max(values)))
    return f"{low} to {high}"


def time_text(point: Point) -> str:
    """When a point's first run began."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def mark(step: Step) -> str:
    """A step by a sign and a word."""
    return "- worse" if step.worse else "+ better"


def step_text(step: Step, metric: Metric) -> str:
    """A step in a sentence."""
    kind = "worse" if step.worse else "better"
    change = change_text(step.change, metric)
    levels = f"{value_text(step.before.value, metric, unit=False)} -> "
    levels += value_text(step.after.value, metric)
    ends = ("last good", "first bad") if step.worse else ("last without", "first with")
    text = f"{kind}: {change} ({levels}); {ends[0]} {step.last_good.short}, "
    text += f"{ends[1]} {step.first_bad.short}"
    if step.earliest is not step.latest:
        text += f" (95 %: {step.earliest.short} to {step.latest.short})"
    return text + ("" if step.stands else "; undone since")


def facts_text(step: Step) -> str:
    """What else changed at a step, or ""."""
    told = [f"{name} {before} -> {after}" for name, before, after in step.facts[:_FACTS_TOLD]]
    more = len(step.facts) - _FACTS_TOLD
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def outcome(found: Trend) -> str:
    """What the points of a series come to, without the steps themselves."""
    if not found.enough:
        points = count(len(found.series.points), "point", "points")
        return f"{points}; steps are looked for from {MIN_SERIES} on"
    return "" if found.steps else "no step"
