"""Draws the axes of charts: ends, ticks, grids and captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cnnbench.base.charts import HIGHER, Axis
from cnnbench.base.charts.figure import (
    ChartFigure,
    characters_in_width,
    palette,
    pixel_width,
    shorten_text,
)
from cnnbench.base.escapes import to_plain_line
from cnnbench.base.text import compact_number, format_bytes, text_width

_UNITS = (1.0, 1024.0, 1024.0**2, 1024.0**3, 1024.0**4)


def draw_x_axis(
    sheet: ChartFigure, axes: Any, axis: Axis, values: Sequence[float], bottom: float
) -> None:
    """Draws the scale, the grid, the ticks and the caption of a horizontal axis."""
    low, high = axis_limits(axis, values)
    if axis.log:
        axes.set_xscale("log", base=axis.base)
    axes.set_xlim(low, high)
    ticks, texts = choose_ticks(axis, low, high, 6)
    box = axes.get_position()
    start, end = box.x0 * sheet.width, box.x1 * sheet.width
    free, shown = 0.0, []
    places = axes.transData.transform([(tick, low) for tick in ticks])[:, 0]
    for tick, x, text in zip(ticks, places, texts, strict=True):
        half = pixel_width(text) / 2
        # At an end of the axis, the border of the drawing would cut off a centred text, so the text
        # is aligned with the border.
        place, align = x, "center"
        if x < half:
            place, align = x + half, "left"
        elif x > sheet.width - half:
            place, align = x - half, "right"
        # If a text would overlap its left neighbour, it is not shown.
        if place - half >= free:
            shown.append((tick, text, align))
            free = place + half + 8
        # Its tick is drawn without a text, unless each tick of the chart has a name of its own.
        elif not axis.tick_texts:
            shown.append((tick, "", "center"))
    axes.set_xticks([tick for tick, _, _ in shown], [text for _, text, _ in shown], minor=False)
    axes.set_xticks([], minor=True)
    for label, (_, _, align) in zip(axes.get_xticklabels(), shown, strict=True):
        label.set_horizontalalignment(align)
    axes.spines["bottom"].set(visible=True, color=palette()["soft"], linewidth=1)
    title = longest_fitting_caption(axis, sheet.inner)
    half = pixel_width(title) / 2
    middle = min(max((start + end) / 2 - sheet.left, half), sheet.inner - half)
    sheet.text(middle, bottom + 36, title, colour="soft", align="center")


def draw_y_axis(
    sheet: ChartFigure, axes: Any, axis: Axis, values: Sequence[float], top: float, room: float
) -> None:
    """Draws a vertical axis and its caption. The share `room` of the height is left free for notes
    at the top.
    """
    low, high = axis_limits(axis, values)
    if axis.limit is None:
        free = room / (1 - room)
        high = high * (high / low) ** free if axis.log else high + (high - low) * free
    if axis.log:
        axes.set_yscale("log", base=axis.base)
    axes.set_ylim(low, high)
    axes.set_yticks(*choose_ticks(axis, low, high, 5), minor=False)
    axes.set_yticks([], minor=True)
    sheet.text(0, top - 10, longest_fitting_caption(axis, sheet.inner), colour="soft")


def longest_fitting_caption(axis: Axis, width: float) -> str:
    """Returns the axis caption, or a shorter variant of it that fits into a width in pixels."""
    most, arrow = characters_in_width(width), "↑" if axis.better == HIGHER else "↓"
    texts = (axis.caption, f"{axis.label}, {arrow} better")
    return next(
        (text for text in texts if text_width(text) <= most), shorten_text(axis.label, most)
    )


def axis_limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Computes the ends of an axis so that all values are visible, with some space around them."""
    known = list(values) or [1.0]
    if axis.limit is not None:
        known = [min(value, axis.limit) for value in known]
    if axis.least_span:
        middle = (min(known) + max(known)) / 2
        known += [middle * (1 + sign * axis.least_span / 2) for sign in (-1, 1)]
    low, high = min(known), max(known)
    if axis.log:
        room = (high / low) ** 0.05 if high > low else math.sqrt(2.0)
        return low / room, high * room
    if axis.zero:
        low = min(0.0, low)
    span = high - low or abs(high) * 0.1 or 1.0
    return (low if axis.zero and low == 0.0 else low - 0.05 * span), high + 0.05 * span


NOT_FROM_ZERO = "the vertical axis does not begin at 0"


def begins_above_zero(axis: Axis, values: Sequence[float]) -> bool:
    """Whether a linear axis begins above 0, so that a distance from its beginning says nothing
    about the size of a value.
    """
    return not axis.log and axis_limits(axis, values)[0] > 0


def choose_ticks(axis: Axis, low: float, high: float, about: int) -> tuple[list[float], list[str]]:
    """Chooses approximately `about` ticks between the ends of an axis. Returns the values and the
    texts of the ticks.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    unit = max((u for u in _UNITS if u <= high), default=1.0) if axis.format == "bytes" else 1.0
    ticks: Sequence[float] = axis.ticks
    if not ticks and axis.log:
        # On a short logarithmic axis, powers of the base would give too few ticks, so multiples of
        # them are used, too.
        factors = (1.0, 2.0, 5.0) if axis.base == 10 and 5 < high / low < 1000 else (1.0,)
        powers = LogLocator(axis.base, factors, numticks=about).tick_values(low, high)
        ticks = [float(tick) for tick in powers if low <= tick <= high]
    if len(ticks) < 2 and not axis.ticks:
        linear = MaxNLocator(about, steps=[1, 2, 2.5, 5, 10])
        ticks = [tick * unit for tick in linear.tick_values(low / unit, high / unit)]
    texts = axis.tick_texts or [_tick_text(axis.format, value) for value in ticks]
    kept = [pair for pair in zip(ticks, texts, strict=True) if low <= pair[0] <= high]
    return [value for value, _ in kept], [to_plain_line(text) for _, text in kept]


def _tick_text(format: str, value: float) -> str:
    if format == "bytes":
        return format_bytes(value)
    if format == "percent":
        return f"{compact_number(100 * value)} %"
    return compact_number(value, 6)
