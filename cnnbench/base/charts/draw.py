"""Charts drawn with matplotlib: SVG for pages, and SVG, PNG or PDF files.

Everything is laid out in units of about a pixel, from the top left. The colours are those of
theme.css in its light variant; in SVG they become its variables, so that charts follow the
reader's light or dark setting. Equal charts give equal bytes. No style attribute is left, so
that a page with the strictest content policy can hold them.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any

from cnnbench.base.charts import Chart, ChartEvent, ChartSeries, DistributionRow, Lines, Rows
from cnnbench.base.charts.markup import element
from cnnbench.base.charts.sheet import (
    CHARACTER,
    TICK_SIZE,
    TITLE_SIZE,
    Sheet,
    fitting,
    palette,
    settings,
    shortened,
    theme,
    wrapped_note,
    x_axis,
    y_axis,
)

FORMATS = ("svg", "png", "pdf")
"""Of files."""

NARROW, WIDE = 300.0, 1250.0
"""Widths of charts in pages: of a phone, which several beside each other have on a desk, and of
the whole page."""

_WIDTH = 560.0
HEAD = 24.0
_TOP, _LEFT, _RIGHT = 30.0, 58.0, 18.0
_AXIS_HEIGHT = 46.0
_PLOT_TOP, _PLOT = 52.0, 230.0
_LINE = 18.0
NOTE_LINE = 15.0
_ROW = 40.0
_MARGIN = 12.0
GAP = 24.0
_KEY = 30.0


_COLOURS = tuple(f"c{index}" for index in range(7))
# No two of the first twelve series have the same mark.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "d", "p", "h", "8", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)), (0, (12, 4)), "--")
_ALONE = ":root { --panel: var(--ground); }\n.chart { font-family: sans-serif; }\n"
_PLOT_PART, _BESIDE = "plot", "beside"
_NOTE_ROOM, _MOST_LINES = 0.07, 2


def svg(chart: Chart, width: float = NARROW) -> str:
    """The chart as an SVG element for a page, which brings `theme`, the title and the note.

    Args:
      width: in pixels; letters have their size at this width.
    """
    with settings(f"{chart.title} {width:g}"):
        sheet = _drawn([chart], width=width, captions=False)
        return _markup(sheet, aria_label=f"{chart.title}: {_description(chart)}")


def render(charts: Sequence[Chart], format: str, label: str = "") -> bytes:
    """The charts one below the other as a file; SVG adapts to light and dark mode.

    Args:
      charts: at least one.
      format: one of `FORMATS`.
    """
    with settings(label):
        sheet = _drawn(charts, margin=_MARGIN)
        if format != "svg":
            buffer = io.BytesIO()
            dates = {"CreationDate": None} if format == "pdf" else None
            sheet.figure.savefig(buffer, format=format, dpi=144, metadata=dates)
            return buffer.getvalue()
        text = _markup(
            sheet, f"{theme()}{_ALONE}", aria_label=label, width=f"{1.5 * sheet.width:g}"
        )
        text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _drawn(
    charts: Sequence[Chart],
    *,
    margin: float = 0.0,
    width: float = _WIDTH,
    captions: bool = True,
) -> Sheet:
    """The charts one below the other, with titles and notes as captions."""
    heights = [_height(chart, captions) for chart in charts]
    height = sum(heights) + GAP * max(0, len(charts) - 1)
    sheet = Sheet(width, height, margin, 0.0 if captions else -HEAD)
    for chart, height in zip(charts, heights, strict=True):
        if captions:
            sheet.text(0, 16, shortened(chart.title, 64), size=TITLE_SIZE, bold=True)
        if isinstance(chart, Rows):
            _draw_rows(sheet, chart)
        else:
            _draw_lines(sheet, chart)
        for index, line in enumerate(wrapped_note(chart.note) if captions else ()):
            below = height - NOTE_LINE * (len(wrapped_note(chart.note)) - index - 1) - 4
            sheet.text(0, below, line, size=TICK_SIZE, colour="soft")
        sheet.advance(height + GAP)
    return sheet


def _description(chart: Chart) -> str:
    if isinstance(chart, Lines):
        return f"{chart.y.caption} over {chart.x.caption}"
    return chart.x.caption


def _height(chart: Chart, captions: bool) -> float:
    if isinstance(chart, Lines):
        height = _PLOT_TOP + _PLOT + _AXIS_HEIGHT + _LINE * len(chart.series)
    else:
        height = _rows_top(chart) + _ROW * len(chart.rows) + 4 + _AXIS_HEIGHT
    if not captions:
        return height - HEAD
    return height + NOTE_LINE * len(wrapped_note(chart.note)) + (4 if chart.note else 0)


# Axes


# Rows: every value a dot, their median a stroke, its interval a band, quartiles a box


def _rows_top(chart: Rows) -> float:
    return _TOP + (0.0 if chart.limit is None else 14.0)


def _draw_rows(sheet: Sheet, chart: Rows) -> None:
    top = _rows_top(chart)
    bottom = top + _ROW * len(chart.rows) + 4
    right = max(_RIGHT, 12 + CHARACTER * max(len(row.text) for row in chart.rows))
    axes = sheet.axes(8, sheet.inner - right, top, bottom)
    ends = [end for row in chart.rows for end in (row.centre, row.low, row.high, chart.limit)]
    values = [value for row in chart.rows for value, _ in row.values]
    x_axis(sheet, axes, chart.x, [*values, *(end for end in ends if end is not None)], bottom)
    axes.set_ylim(bottom - top, 0)
    axes.yaxis.set_visible(False)
    if chart.limit is not None:
        limit = {"color": palette()["ink"], "linewidth": 1.5, "linestyle": (0, (5, 4))}
        axes.plot([chart.limit] * 2, [-8, bottom - top], clip_on=False, **limit)
        # Ends at the line, where there is room before it.
        x = axes.transData.transform((chart.limit, 0))[0] - sheet._left
        x = max(x, CHARACTER * len(chart.limit_label))
        sheet.text(x, top - 10, chart.limit_label, size=TICK_SIZE, colour="soft", align="right")
    for index, row in enumerate(chart.rows):
        y = top + _ROW * index
        left = 8 if row.style is None else 28
        if row.style is not None:
            sheet.line([18], y + 11, linestyle="none", **_mark(row.style, _colour(row.style)))
        sheet.text(left, y + 15, shortened(row.label, fitting(sheet.inner - left)))
        sheet.text(sheet.inner, y + 31, row.text, bold=True, align="right")
        beyond = sum(value > axes.get_xlim()[1] for value, _ in row.values)
        if beyond:
            sheet.text(
                sheet.inner, y + 31, f"{beyond} ▸", size=TICK_SIZE, colour="soft", align="right"
            )
        _draw_row(sheet, axes, row, _ROW * index + 27)


def _draw_row(sheet: Sheet, axes: Any, row: DistributionRow, y: float) -> None:
    ink, end = palette()["ink"], axes.get_xlim()[1]
    colour = palette()[row.tone] if row.tone else _colour(row.style or 0)
    drawn = []
    if row.box is not None:
        whiskers = [min(row.low or 0.0, end), min(row.high or 0.0, end)]
        drawn += axes.plot(whiskers, [y, y], color=colour, linewidth=1.5, clip_on=False, zorder=2)
        first, third = (min(value, end) for value in row.box)
        (body,) = axes.barh(y, third - first, 14, first, color=(colour, 0.35), clip_on=False)
        body.set(linewidth=1.2, edgecolor=colour, zorder=2.1)
        drawn.append(body)
    elif row.low is not None and row.high is not None:
        width = max(row.high - row.low, 1e-12)
        axes.barh(y, width, 12, row.low, color=colour, alpha=0.2, clip_on=False)
    shown = [(value, hint) for value, hint in row.values if value <= end]
    if shown:
        single = {"size": 7.2, "edge": 0.6, "alpha": 0.8}
        outlying = {"size": 4.0, "edge": 0.0, "alpha": 0.6}
        style = single if row.box is None else outlying
        dots = _marks(axes, [value for value, _ in shown], [y] * len(shown), 0, colour, **style)
        sheet.mark(dots, texts=[hint for _, hint in shown])
    if row.centre is not None:
        stroke = {"color": ink, "linewidth": 2.2, "clip_on": False, "zorder": 4}
        drawn += axes.plot([min(row.centre, end)] * 2, [y - 9, y + 9], **stroke)
    for place, artist in enumerate(drawn if row.hint else ()):
        sheet.mark(artist, texts=row.hint, stop=place == len(drawn) - 1)


def _mark(
    index: int, colour: str, size: float = 8.0, edge: float = 0.8, alpha: float = 1.0
) -> dict[str, Any]:
    """Style of the marks of a series."""
    return {
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": size,
        "color": colour,
        "markeredgecolor": palette()["ground"],
        "markeredgewidth": edge,
        "alpha": alpha,
    }


def _marks(
    axes: Any, xs: Sequence[float], ys: Sequence[float], index: int, colour: str, **style: float
) -> Any:
    mark = _mark(index, colour, **style)
    (artist,) = axes.plot(xs, ys, clip_on=False, zorder=3, linestyle="none", **mark)
    return artist


def _colour(index: int) -> str:
    return palette()[_COLOURS[index % len(_COLOURS)]]


# Line charts, with a legend below


def _draw_lines(sheet: Sheet, chart: Lines) -> None:
    bottom = _PLOT_TOP + _PLOT
    axes = sheet.axes(_LEFT, sheet.inner - _RIGHT, _PLOT_TOP, bottom)
    points = [point for one in chart.series for point in one.points]
    spans = [end for one in chart.series for span in one.spans if span for end in span]
    x_axis(sheet, axes, chart.x, [x for x, _ in points] + [e.x for e in chart.events], bottom)
    notes = _Notes(sheet, axes)
    if chart.shaded is not None:
        notes.write(max(chart.shaded[0], axes.get_xlim()[0]), chart.shaded[2], 3)
    for event in chart.events:
        notes.write(event.x, event.mark, 7)
    room = _NOTE_ROOM * notes.lines
    y_axis(sheet, axes, chart.y, [y for _, y in points] + spans, _PLOT_TOP, room)
    if chart.shaded is not None:
        start, end = axes.get_xlim()
        first, last = max(chart.shaded[0], start), min(chart.shaded[1], end)
        axes.axvspan(first, last, color=palette()["soft"], alpha=0.12, linewidth=0, zorder=0)
    for event in chart.events:
        _draw_event(sheet, axes, event)
    index = 0
    for place, one in enumerate(chart.series):
        style = index if one.style is None else one.style
        _draw_series(sheet, axes, one, style, bottom + _AXIS_HEIGHT + 11 + place * _LINE)
        index += not one.reference


class _Notes:
    """Notes at the top of a plot, placed without overlaps.

    Attributes:
      lines: that have notes.
    """

    def __init__(self, sheet: Sheet, axes: Any) -> None:
        self._sheet = sheet
        self._axes = axes
        self._taken: list[tuple[int, float, float]] = []

    @property
    def lines(self) -> int:
        return len({line for line, _, _ in self._taken})

    def write(self, x: float, text: str, gap: float) -> None:
        """Places a note beside its line, else below other notes, else not at all."""
        if not text:
            return
        start, end = self._axes.get_xlim()
        place = self._axes.transData.transform((x, self._axes.get_ylim()[0]))[0] - self._sheet._left
        width = len(text) * CHARACTER
        to_left = gap > 3 and x > (start + end) / 2
        for line, left in itertools.product(range(_MOST_LINES), (to_left, not to_left)):
            low = place - gap - width if left else place + gap
            inside = low >= 0 and low + width <= self._sheet.inner
            if inside and all(
                line != other or low + width <= a or low >= b for other, a, b in self._taken
            ):
                self._taken.append((line, low, low + width))
                at, align = (place - gap, "right") if left else (place + gap, "left")
                style: Any = {"size": TICK_SIZE, "colour": "soft", "kind": _BESIDE}
                self._sheet.text(at, _PLOT_TOP + 12 + 14 * line, text, align=align, **style)
                return


def _draw_event(sheet: Sheet, axes: Any, event: ChartEvent) -> None:
    colour, dashes = ("good", (1.5, 3)) if event.gain else ("bad", (4, 3))
    line = axes.axvline(event.x, color=palette()[colour], linewidth=1.5, linestyle=(0, dashes))
    sheet.mark(line, _PLOT_PART, event.label, stop=True)


def _draw_series(sheet: Sheet, axes: Any, one: ChartSeries, index: int, key: float) -> None:
    """A curve, and its line in the legend with the base line at `key`."""
    colour = palette()["soft"] if one.reference else _colour(index)
    dashes = (0, (6, 4)) if one.reference else _DASHES[index % len(_DASHES)]
    line = {"color": colour, "linestyle": dashes, "linewidth": 1.7}
    top = axes.get_ylim()[1]
    xs = [x for x, _ in one.points]
    ys = [min(y, top) for _, y in one.points]
    if one.line and len(xs) > 1:
        (artist,) = axes.plot(xs, ys, clip_on=False, **line)
        sheet.mark(artist, _PLOT_PART, one.name)
    for x, span in zip(xs, one.spans, strict=False):
        if span is not None:
            (stroke,) = axes.plot([x, x], [span[0], min(span[1], top)], color=colour, lw=1.5)
            sheet.mark(stroke, _PLOT_PART)
    if not one.reference:
        hints = one.hints or ("",) * len(xs)
        inside = [i for i, (_, y) in enumerate(one.points) if y <= top]
        beyond = [i for i, (_, y) in enumerate(one.points) if y > top]
        if not one.marks:
            inside = inside[-1:]  # enough to recognise the curve
        for shown, mark in ((inside, index), (beyond, _MARKERS.index("^"))):
            if shown:
                places = [xs[i] for i in shown], [ys[i] for i in shown]
                marks = _marks(axes, *places, mark, colour)
                sheet.mark(marks, "marks", [hints[i] for i in shown])
    if one.line:
        sheet.line([2, _KEY], key - 4, **line)
    if not one.reference:
        sheet.line([(2 + _KEY) / 2], key - 4, **_mark(index, colour))
    sheet.text(_KEY + 8, key, shortened(one.name, fitting(sheet.inner - _KEY - 10)))


def _markup(sheet: Sheet, style: str = "", **attributes: str) -> str:
    """The sheet as an SVG element; see `cnnbench.base.charts.markup.element`."""
    buffer = io.StringIO()
    sheet.figure.savefig(buffer, format="svg", metadata={"Date": None})
    variables = {colour: f"var(--{name})" for name, colour in palette().items()}
    return element(buffer.getvalue(), sheet.hints, variables, style, attributes)
