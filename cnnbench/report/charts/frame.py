"""What all charts have: a title, axes with ticks and captions, and a frame around it all."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.report.charts.scale import FORMATS, Scale, tick_unit
from cnnbench.report.charts.spec import Axis
from cnnbench.report.charts.svg import Svg, element, join, shorten, text

WIDTH = 560.0
"""Of a chart, in units of which a screen shows about one as a pixel."""

TOP = 30.0
LEFT = 70.0
RIGHT = 18.0
_TICK_GAP = 16.0
_CAPTION_GAP = 36.0
AXIS_HEIGHT = 46.0
"""Below the plot, for ticks and caption."""

LINE = 18.0
"""Height of a line of text."""

_SIGN_WIDTH = 7.2
"""Of a wide face: the fonts of a reader are not known."""

_TITLE_SIGNS = 64


def fitting(width: float) -> int:
    """How many signs of the usual size fit."""
    return max(4, int(width / _SIGN_WIDTH))


def width(content: str) -> float:
    """That a text of the usual size may take."""
    return len(content) * _SIGN_WIDTH


def document(title: str, description: str, height: float, parts: Sequence[Svg]) -> Svg:
    """The chart itself, which takes the width it is given."""
    heading = element(
        "text",
        element("title", title),
        element("tspan", shorten(title, _TITLE_SIGNS)),
        x=0.0,
        y=16.0,
        class_="chart-title",
    )
    return element(
        "svg",
        heading,
        join(list(parts)),
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=f"{title}: {description}",
        class_="chart",
    )


def tick_texts(axis: Axis, ticks: Sequence[float]) -> list[str]:
    """What is written at the ticks."""
    if axis.ticks and axis.tick_texts:
        return list(axis.tick_texts)
    return [FORMATS[axis.format](value) for value in ticks]


def x_axis(axis: Axis, scale: Scale, top: float, bottom: float) -> list[Svg]:
    """Grid, ticks and caption of a horizontal axis."""
    ticks = [v for v in axis.ticks or _ticks(axis, scale, 6) if scale.low <= v <= scale.high]
    parts = [
        element("line", x1=scale(v), x2=scale(v), y1=top, y2=bottom, class_="grid") for v in ticks
    ]
    parts.append(element("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="axis"))
    free = 0.0
    for value, written in zip(ticks, tick_texts(axis, ticks), strict=True):
        half = len(written) * _SIGN_WIDTH / 2
        place = min(max(scale(value), half), WIDTH - half)
        if place - half < free:
            continue  # would run into its neighbour
        free = place + half + 8
        parts.append(text(written, place, bottom + _TICK_GAP, "tick middle"))
    middle = (scale.start + scale.end) / 2
    parts.append(text(axis.caption, middle, bottom + _CAPTION_GAP, "caption middle"))
    return parts


def y_axis(axis: Axis, scale: Scale, left: float, right: float) -> list[Svg]:
    """Grid, ticks and caption of a vertical axis; the caption stands upright above it."""
    ticks = [v for v in axis.ticks or _ticks(axis, scale, 5) if scale.low <= v <= scale.high]
    parts = [
        element("line", x1=left, x2=right, y1=scale(v), y2=scale(v), class_="grid") for v in ticks
    ]
    parts += [
        text(written, left - 8, scale(value) + 4, "tick end")
        for value, written in zip(ticks, tick_texts(axis, ticks), strict=True)
    ]
    parts.append(text(axis.caption, 0.0, scale.end - 10, "caption"))
    return parts


def _ticks(axis: Axis, scale: Scale, about: int) -> list[float]:
    return scale.ticks(about, tick_unit(axis.format, scale.high))


def note(content: str, top: float) -> list[Svg]:
    """Lines that say what the signs mean."""
    room = fitting(WIDTH) + 8
    return [
        text(line, 0.0, top + index * 15.0, "note")
        for index, line in enumerate(_lines(content, room))
    ]


def note_height(content: str) -> float:
    """Of `note`, with the gap above it."""
    return len(_lines(content, fitting(WIDTH) + 8)) * 15.0 if content else 0.0


def _lines(content: str, room: int) -> list[str]:
    lines: list[str] = []
    for word in content.split():
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
