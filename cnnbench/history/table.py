"""The history for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.history import words
from cnnbench.history.steps import Trend
from cnnbench.metrics.registry import Metric
from cnnbench.text.escape import plain
from cnnbench.text.numbers import count

_LEFT = 2
"""Columns aligned to the left: time and point."""


def render(trends: Sequence[Trend], metric: Metric, last: int = 0) -> str:
    """A block per series: its points, and the steps between them.

    Args:
      trends: series with their steps.
      metric: what is followed.
      last: how many points to list; 0 for all.
    """
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"{metric.name}, {words.unit_text(metric)}; {direction} is better"]
    for found in trends:
        lines += ["", *_series(found, metric, last)]
    return "\n".join(lines) + "\n"


def _series(found: Trend, metric: Metric, last: int) -> list[str]:
    series = found.series
    lines = [f"{plain(series.configuration)} on {plain(series.machine)}"]
    marks = {step.index: step for step in found.steps}
    points = list(enumerate(series.points))
    hidden = max(0, len(points) - last) if last else 0
    if hidden:
        lines.append(
            f"  ... {count(hidden, 'earlier point', 'earlier points')}; --last=0 lists all"
        )
    rows = []
    for index, point in points[hidden:]:
        step = marks.get(index)
        mark = ""
        if step is not None:
            sign = "-" if step.worse else "+"
            mark = f"{sign} step {words.change_text(step.change, metric)}"
        rows.append(
            (
                words.time_text(point),
                plain(point.short),
                words.value_text(point.value, metric, unit=False),
                words.range_text(point.values, metric),
                f"n={len(point.values)}" + (f", {point.failed} failed" if point.failed else ""),
                mark,
            )
        )
    lines += _aligned(rows)
    for point in series.empty:
        runs = count(len(point.runs), "run", "runs")
        lines.append(f"  no value: {plain(point.short)}, {runs}{_error(point.runs[0].error)}")
    for step in found.steps:
        lines.append(f"  {'-' if step.worse else '+'} {plain(words.step_text(step, metric))}")
        facts = words.facts_text(step)
        if facts:
            lines.append(f"    changed there too: {plain(facts)}")
    said = words.outcome(found)
    if said:
        lines.append(f"  = {said}")
    return lines


def _error(error: str) -> str:
    return f": {plain(error)[:120]}" if error else ""


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i < _LEFT or i > _LEFT + 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
