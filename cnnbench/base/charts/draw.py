"""Draws charts with matplotlib, as SVG elements in pages, or as SVG, PNG or PDF files.

Equal charts result in equal bytes.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from cnnbench.base.charts import (
    Chart,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    TimelineChart,
)
from cnnbench.base.charts.axes import NOT_FROM_ZERO, begins_above_zero, draw_x_axis, draw_y_axis
from cnnbench.base.charts.figure import (
    TICK_SIZE,
    TITLE_SIZE,
    ChartFigure,
    characters_in_width,
    fallback_fonts,
    palette,
    pixel_width,
    reproducible_settings,
    shorten_text,
    theme_css,
    wrap_label,
    wrap_note,
)
from cnnbench.base.escapes import to_plain_line

FORMATS = ("svg", "png", "pdf")
"""Formats of chart files."""

NARROW, HALF, WIDE = 340.0, 540.0, 1100.0
"""Widths of charts in pages: for phones or three per row; for two per row; for one per row."""

_WIDTH = 560.0
HEAD = 24.0
_TOP, _LEFT, _RIGHT = 30.0, 58.0, 18.0
_AXIS_HEIGHT = 46.0
_PLOT_TOP, _PLOT = 52.0, 230.0
_LINE = 18.0
NOTE_LINE = 15.0
_ROW, _WIDE_ROW = 40.0, 28.0
_LANE = 20.0
# In charts of at least this width, row labels are to the left of the rows, otherwise above them.
_LABELLED_BESIDE = 500.0
_MOST_OF_LABEL = 0.34
_MARGIN = 12.0
GAP = 24.0
_KEY, _SQUARE = 30.0, 20.0
_LEGEND_COLUMN, _LEGEND_GAP, _NAME_LINE = 260.0, 8.0, 14.0


# The first twelve curves of a chart differ in colour and mark; further curves repeat them.
_COLOURS = tuple(f"c{index}" for index in range(12))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "d", "p", "h", "8", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)), (0, (12, 4)), "--")
_ALONE = ":root { --panel: var(--ground); }\n.chart { font-family: sans-serif; }\n"
_PLOT_PART, _BESIDE = "plot", "beside"
_NOTE_ROOM, _MOST_LINES = 0.07, 2
_BESIDE_GAP, _SHIFTS = 7.0, (4.0, -13.0, 18.0, -27.0)


def chart_to_svg(chart: Chart, width: float = NARROW) -> str:
    """Draws a chart as an SVG element of the given width. The page must add the style sheet
    `theme_css`, and the title and the note of the chart.
    """
    axes = chart.x.caption
    if isinstance(chart, LineChart):
        axes = f"{chart.y.caption} over {axes}"
    with reproducible_settings(f"{chart.title} {width:g}"):
        sheet = _draw_charts([chart], width=width, captions=False)
        return sheet.to_svg_element(aria_label=f"{chart.title}: {axes}")


def render_chart_file(charts: Sequence[Chart], format: str, label: str = "") -> bytes:
    """Draws charts one below the other, as the content of a file in the format "svg", "png" or
    "pdf".

    An SVG file adapts to light and dark mode.
    """
    # The program that shows an SVG file chooses the fonts, so no fallback fonts are searched for
    # one.
    with reproducible_settings(label, () if format == "svg" else fallback_fonts()):
        sheet = _draw_charts(charts, margin=_MARGIN)
        if format != "svg":
            buffer = io.BytesIO()
            dates = {"CreationDate": None} if format == "pdf" else None
            sheet.figure.savefig(buffer, format=format, dpi=144, metadata=dates)
            return buffer.getvalue()
        text = sheet.to_svg_element(
            f"{theme_css()}{_ALONE}", aria_label=label, width=f"{1.5 * sheet.width:g}"
        )
        text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _draw_charts(
    charts: Sequence[Chart],
    *,
    margin: float = 0.0,
    width: float = _WIDTH,
    captions: bool = True,
) -> ChartFigure:
    heights = [_height(chart, width, captions) for chart in charts]
    height = sum(heights) + GAP * max(0, len(charts) - 1)
    sheet = ChartFigure(width, height, margin, 0.0 if captions else -HEAD)
    for chart, height in zip(charts, heights, strict=True):
        if captions:
            sheet.text(0, 16, shorten_text(chart.title, 64), size=TITLE_SIZE, bold=True)
        if isinstance(chart, RowChart):
            _draw_rows(sheet, chart)
        elif isinstance(chart, TimelineChart):
            _draw_lanes(sheet, chart)
        else:
            _draw_lines(sheet, chart)
        for index, line in enumerate(wrap_note(chart.note) if captions else ()):
            below = height - NOTE_LINE * (len(wrap_note(chart.note)) - index - 1) - 4
            sheet.text(0, below, line, size=TICK_SIZE, colour="soft")
        sheet.top += height + GAP
    return sheet


def _height(chart: Chart, width: float, captions: bool) -> float:
    if isinstance(chart, LineChart):
        height = _PLOT_TOP + _PLOT + _AXIS_HEIGHT + _line_legend(chart, width).height
    elif isinstance(chart, TimelineChart):
        layout = _RowLabelLayout([label for label, _ in chart.lanes], width, _LANE, _LANE + 16)
        height = _TOP + layout.height + _AXIS_HEIGHT + _lane_legend(chart, width).height
    else:
        height = _top_of_rows(chart) + _row_labels(chart, width).height + _AXIS_HEIGHT
    if not captions:
        return height - HEAD
    return height + NOTE_LINE * len(wrap_note(chart.note)) + (4 if chart.note else 0)


class _RowLabelLayout:
    """Computes the positions of row labels: to the left of the rows in wide charts, otherwise above
    the rows.

    `middle` is the vertical centre of a row's drawing, from the top of the row.
    """

    def __init__(
        self,
        labels: Sequence[str],
        width: float,
        pitch: float,
        narrow_pitch: float,
    ) -> None:
        self._beside = width >= _LABELLED_BESIDE
        longest = max(map(pixel_width, labels), default=0.0) + 12
        self._indent = 0.0 if self._beside else 8.0
        room = min(longest, _MOST_OF_LABEL * width) if self._beside else width - self._indent
        self.left = room if self._beside else 8.0
        self._lines = [wrap_label(label, characters_in_width(room - 12), 2) for label in labels]
        more = 14 * (max(map(len, self._lines), default=1) - 1)
        self.pitch = max(pitch, 14 + more + 4) if self._beside else narrow_pitch + more
        self.height = self.pitch * len(labels) + 4
        self.middle = self.pitch / 2 + 2 if self._beside else self.pitch - narrow_pitch / 3

    def write(self, sheet: ChartFigure, index: int, top: float) -> None:
        """Writes the label of a row that begins at `top`."""
        lines = self._lines[index]
        first = self.middle + 4 - 7 * (len(lines) - 1) if self._beside else 15.0
        for place, line in enumerate(lines):
            sheet.text(self._indent, top + first + 14 * place, line)


def _row_labels(chart: RowChart, width: float) -> _RowLabelLayout:
    return _RowLabelLayout([row.label for row in chart.rows], width, _WIDE_ROW, _ROW)


class _LegendLayout:
    """Computes the positions of the entries of a legend below a chart: from left to right, in as
    many columns as the longest name permits. A name that is longer than a line has two lines.

    Attributes:
      height: of the legend, in pixels.
      places: left end and baseline of each entry, from the top left of the legend.
      lines: the lines of each name.
    """

    def __init__(self, names: Sequence[str], width: float, key: float) -> None:
        """Positions the names in `width` pixels, each to the right of a mark of `key` pixels."""
        longest = max(map(pixel_width, names), default=0.0)
        columns = max(1, int(width / max(_LEGEND_COLUMN, key + longest + _LEGEND_GAP)))
        self.key, self.height = key, 0.0
        room = characters_in_width(width / columns - key)
        self.lines = [wrap_label(name, room, 2) for name in names]
        self.places: list[tuple[float, float]] = []
        for first in range(0, len(names), columns):
            row = self.lines[first : first + columns]
            self.places += [
                (place * width / columns, self.height + 11) for place in range(len(row))
            ]
            self.height += _LINE + _NAME_LINE * (max(map(len, row)) - 1)

    def write(self, sheet: ChartFigure, index: int, top: float) -> tuple[float, float]:
        """Writes the name of an entry of a legend that begins at `top`. Returns the left end and
        the baseline of the entry.
        """
        left, base = self.places[index]
        for place, line in enumerate(self.lines[index]):
            sheet.text(left + self.key, top + base + _NAME_LINE * place, line)
        return left, top + base


def _line_legend(chart: LineChart, width: float) -> _LegendLayout:
    names = [series.name for series in chart.series]
    note = [NOT_FROM_ZERO] if begins_above_zero(chart.y, _y_values(chart)) else []
    return _LegendLayout([*names, *note], width, _KEY + 8)


def _lane_legend(chart: TimelineChart, width: float) -> _LegendLayout:
    return _LegendLayout(chart.kinds, width, _SQUARE)


# Draws `RowChart`: dots are values, strokes are medians, bands are intervals, boxes show quartiles.


def _top_of_rows(chart: RowChart) -> float:
    return _TOP + (0.0 if chart.limit is None else 14.0)


def _draw_rows(sheet: ChartFigure, chart: RowChart) -> None:
    top = _top_of_rows(chart)
    labels = _row_labels(chart, sheet.inner)
    bottom = top + labels.height
    right = max(_RIGHT, 12 + max((pixel_width(row.text) for row in chart.rows), default=0.0))
    axes = sheet.axes(labels.left, sheet.inner - right, top, bottom)
    ends = [end for row in chart.rows for end in (row.centre, row.low, row.high)]
    ends += [end for row in chart.rows for end in row.ignored or ()]
    values = [value for row in chart.rows for value, _ in row.values]
    values += [end for end in ends if end is not None]
    values += [] if chart.limit is None else chart.limit[:1]
    draw_x_axis(sheet, axes, chart.x, [*values, 0.0] if chart.bars else values, bottom)
    axes.set_ylim(bottom - top, 0)
    axes.yaxis.set_visible(False)
    if chart.limit is not None:
        limit, name = chart.limit
        dashes = {"color": palette()["ink"], "linewidth": 1.5, "linestyle": (0, (5, 4))}
        axes.plot([limit] * 2, [-8, bottom - top], clip_on=False, **dashes)
        # If there is enough space to the left of a limit's line, its name is written there.
        x = max(sheet.x_position(axes, limit), pixel_width(name))
        sheet.text(x, top - 10, name, size=TICK_SIZE, colour="soft", align="right")
    for index, row in enumerate(chart.rows):
        start = labels.pitch * index
        middle = start + labels.middle
        if row.ignored is not None:
            low, high = row.ignored
            grey = {"color": palette()["soft"], "alpha": 0.18, "linewidth": 0, "zorder": 0}
            axes.barh(start + labels.pitch / 2 + 2, high - low, labels.pitch, low, **grey)
        labels.write(sheet, index, top + start)
        sheet.text(sheet.inner, top + middle + 4, row.text, bold=True, align="right")
        _draw_row(sheet, axes, row, middle, chart.bars)


def _draw_row(sheet: ChartFigure, axes: Any, row: DistributionRow, y: float, bars: bool) -> None:
    ink = palette()["ink"]
    colour = palette()[row.tone] if row.tone else _series_colour(0)
    drawn = []
    if bars and row.centre is not None:
        (bar,) = axes.barh(y, row.centre, 14, color=colour, alpha=0.35)
        sheet.set_svg_hints(bar)
    if row.box is not None:
        whiskers = [row.low or 0.0, row.high or 0.0]
        drawn += axes.plot(whiskers, [y, y], color=colour, linewidth=1.5, clip_on=False, zorder=2)
        first, third = row.box
        (body,) = axes.barh(y, third - first, 14, first, color=(colour, 0.35), clip_on=False)
        body.set(linewidth=1.2, edgecolor=colour, zorder=2.1)
        drawn.append(body)
    elif row.low is not None and row.high is not None:
        width = max(row.high - row.low, 1e-12)
        axes.barh(y, width, 12, row.low, color=colour, alpha=0.2, clip_on=False)
    if row.values:
        style = {"size": 7.2, "edge": 0.6, "alpha": 0.8}
        values = [value for value, _ in row.values]
        dots = _draw_marks(axes, values, [y] * len(values), 0, colour, **style)
        sheet.set_svg_hints(dots, texts=[hint for _, hint in row.values])
    if row.centre is not None:
        stroke = {"color": ink, "linewidth": 2.2, "clip_on": False, "zorder": 4}
        drawn += axes.plot([row.centre] * 2, [y - 9, y + 9], **stroke)
    for place, artist in enumerate(drawn if row.hint else ()):
        sheet.set_svg_hints(artist, texts=row.hint, stop=place == len(drawn) - 1)


def _mark_style(
    index: int, colour: str, size: float = 8.0, edge: float = 0.8, alpha: float = 1.0
) -> dict[str, Any]:
    return {
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": size,
        "color": colour,
        "markeredgecolor": palette()["ground"],
        "markeredgewidth": edge,
        "alpha": alpha,
    }


def _draw_marks(
    axes: Any, xs: Sequence[float], ys: Sequence[float], index: int, colour: str, **style: float
) -> Any:
    mark = _mark_style(index, colour, **style)
    (artist,) = axes.plot(xs, ys, clip_on=False, zorder=3, linestyle="none", **mark)
    return artist


def _series_colour(index: int) -> str:
    return palette()[_COLOURS[index % len(_COLOURS)]]


# Draws `LineChart`: curves with a legend below the plot.


def _draw_lines(sheet: ChartFigure, chart: LineChart) -> None:
    bottom = _PLOT_TOP + _PLOT
    axes = sheet.axes(_LEFT, sheet.inner - _RIGHT, _PLOT_TOP, bottom)
    xs = [x for series in chart.series for x, _ in series.points]
    draw_x_axis(sheet, axes, chart.x, xs + [event.x for event in chart.events], bottom)
    notes = [(event.x, event.mark, 7.0) for event in chart.events]
    if chart.shaded is not None:
        notes.insert(0, (max(chart.shaded[0], axes.get_xlim()[0]), chart.shaded[2], 3.0))
    room = _NOTE_ROOM * _write_notes(sheet, axes, notes)
    draw_y_axis(sheet, axes, chart.y, _y_values(chart), _PLOT_TOP, room)
    if chart.shaded is not None:
        start, end = axes.get_xlim()
        first, last = max(chart.shaded[0], start), min(chart.shaded[1], end)
        axes.axvspan(first, last, color=palette()["soft"], alpha=0.12, linewidth=0, zorder=0)
    for event in chart.events:
        colour, dashes = ("good", (1.5, 3)) if event.gain else ("bad", (4, 3))
        line = axes.axvline(event.x, color=palette()[colour], linewidth=1.5, linestyle=(0, dashes))
        sheet.set_svg_hints(line, _PLOT_PART, event.label, stop=True)
    index, legend = 0, _line_legend(chart, sheet.inner)
    for place, series in enumerate(chart.series):
        style = index if series.style is None else series.style
        _draw_series(sheet, axes, series, style)
        _draw_legend_mark(sheet, series, style, legend.write(sheet, place, bottom + _AXIS_HEIGHT))
        index += not series.reference
    for place in range(len(chart.series), len(legend.lines)):
        legend.write(sheet, place, bottom + _AXIS_HEIGHT)
    _write_texts(sheet, axes, chart.series)


def _y_values(chart: LineChart) -> list[float]:
    """Returns the values that the vertical axis of a chart must contain."""
    values = [y for series in chart.series for _, y in series.points]
    spans = (span for series in chart.series for span in series.spans if span)
    return [*values, *(end for span in spans for end in span)]


def _write_notes(sheet: ChartFigure, axes: Any, notes: Iterable[tuple[float, str, float]]) -> int:
    """Writes notes at the top of a plot so that they do not overlap. Returns the number of lines
    used.

    A note, (x, text, distance), is written next to its line, or below other notes. If there is no
    space, it is omitted.
    """
    taken: list[tuple[float, float, float]] = []
    start, end = axes.get_xlim()
    style: Any = {"size": TICK_SIZE, "colour": "soft", "kind": _BESIDE}
    for x, text, gap in notes:
        place, width = sheet.x_position(axes, x), pixel_width(text)
        to_left = gap > 3 and x > (start + end) / 2
        lines = range(_MOST_LINES if text else 0)
        for line, left in itertools.product(lines, (to_left, not to_left)):
            at, align = (place - gap, "right") if left else (place + gap, "left")
            low = at - width if left else at
            box = (low, low + width, _PLOT_TOP + 12 + 14 * line)
            inside = low >= 0 and low + width <= sheet.inner
            if inside and not any(_texts_overlap(box, other) for other in taken):
                taken.append(box)
                sheet.text(at, box[2], text, align=align, **style)
                break
    return len({line for _, _, line in taken})


def _line_style(series: ChartSeries, index: int) -> dict[str, Any]:
    dashes = (0, (6, 4)) if series.reference else _DASHES[index % len(_DASHES)]
    colour = palette()["soft"] if series.reference else _series_colour(index)
    return {"color": colour, "linestyle": dashes, "linewidth": 1.7}


def _dot_size(index: int) -> float:
    """Size of the marks of a curve. Later curves have smaller marks, so that marks at the same
    position remain visible.
    """
    return max(5.5, 9.0 - 0.6 * index)


def _draw_series(sheet: ChartFigure, axes: Any, series: ChartSeries, index: int) -> None:
    line = _line_style(series, index)
    colour = line["color"]
    top = axes.get_ylim()[1]
    xs = [x for x, _ in series.points]
    ys = [min(y, top) for _, y in series.points]
    if series.line and len(xs) > 1:
        (artist,) = axes.plot(xs, ys, clip_on=False, **line)
        sheet.set_svg_hints(artist, _PLOT_PART, series.name)
    for x, span in zip(xs, series.spans, strict=False):
        if span is not None:
            (stroke,) = axes.plot([x, x], [span[0], min(span[1], top)], color=colour, lw=1.5)
            sheet.set_svg_hints(stroke, _PLOT_PART)
    if series.reference:
        return
    hints = series.hints or ("",) * len(xs)
    links = series.links or ("",) * len(xs)
    sizes = series.diameters or (_dot_size(index),) * len(xs)
    inside = [i for i, (_, y) in enumerate(series.points) if y <= top]
    beyond = [i for i, (_, y) in enumerate(series.points) if y > top]
    if not series.marks:
        # Only one point of the curve gets a mark, which explains the mark in the legend.
        inside = inside[-1:]
    mark = index if series.mark is None else series.mark
    for shown, kind in ((inside, mark), (beyond, _MARKERS.index("^"))):
        for size in dict.fromkeys(sizes[i] for i in shown):
            alike = [i for i in shown if sizes[i] == size]
            places = [xs[i] for i in alike], [ys[i] for i in alike]
            marks = _draw_marks(axes, *places, kind, colour, size=size, alpha=0.85)
            sheet.set_svg_hints(
                marks, "marks", [hints[i] for i in alike], links=[links[i] for i in alike]
            )


def _write_texts(sheet: ChartFigure, axes: Any, series: Iterable[ChartSeries]) -> None:
    """Writes texts next to the points of curves. A text that would overlap another text is
    omitted.
    """
    taken: list[tuple[float, float, float]] = []
    top = axes.get_ylim()[1]
    for each_series in series:
        for (x, y), text in zip(each_series.points, each_series.texts, strict=False):
            point = (x, min(y, top))
            place, height = sheet.x_position(axes, x), axes.transData.transform(point)[1]
            rooms = (sheet.inner - place - _BESIDE_GAP, place - _BESIDE_GAP)
            text = shorten_text(to_plain_line(text), characters_in_width(max(rooms)))
            width = pixel_width(text)
            for shift, side in itertools.product(_SHIFTS, (0, 1)):
                left = place - _BESIDE_GAP - width if side else place + _BESIDE_GAP
                box = (left, left + width, height + shift)
                if (
                    not text
                    or width > rooms[side]
                    or any(_texts_overlap(box, other) for other in taken)
                ):
                    continue
                taken.append(box)
                at, align = (-_BESIDE_GAP, "right") if side else (_BESIDE_GAP, "left")
                where: Any = {"xytext": (at, shift), "textcoords": "offset points", "ha": align}
                style: Any = {"fontsize": TICK_SIZE, "zorder": 4, "annotation_clip": False}
                axes.annotate(text, point, **where, **style)
                break


def _texts_overlap(first: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether two texts overlap. Each text is given by its left end, right end and baseline in
    pixels.
    """
    return first[0] < other[1] and other[0] < first[1] and abs(first[2] - other[2]) < TICK_SIZE


def _draw_legend_mark(
    sheet: ChartFigure, series: ChartSeries, index: int, place: tuple[float, float]
) -> None:
    """Draws the line and the mark of a curve at the left end and baseline of its legend entry."""
    left, base = place
    line = _line_style(series, index)
    if series.line:
        sheet.line([left + 2, left + _KEY], base - 4, **line)
    if not series.reference:
        mark = _mark_style(
            index if series.mark is None else series.mark, line["color"], _dot_size(index)
        )
        sheet.line([left + (2 + _KEY) / 2], base - 4, **mark)


# Draws `TimelineChart`: periods of time, with one colour for each kind of activity.


def _draw_lanes(sheet: ChartFigure, chart: TimelineChart) -> None:
    names = [label for label, _ in chart.lanes]
    labels = _RowLabelLayout(names, sheet.inner, _LANE, _LANE + 16)
    bottom = _TOP + labels.height
    axes = sheet.axes(labels.left, sheet.inner - _RIGHT, _TOP, bottom)
    ends = [span.end for _, spans in chart.lanes for span in spans]
    draw_x_axis(sheet, axes, chart.x, [0.0, *ends], bottom)
    axes.set_ylim(bottom - _TOP, 0)
    axes.yaxis.set_visible(False)
    for index, (_, spans) in enumerate(chart.lanes):
        start = labels.pitch * index
        labels.write(sheet, index, _TOP + start)
        middle = start + labels.middle
        for kind in range(len(chart.kinds)):
            plain_spans = [span for span in spans if span.kind == kind and not span.hint]
            if plain_spans:
                places = [(span.start, span.end - span.start) for span in plain_spans]
                axes.broken_barh(
                    places, (middle - 6.5, 13), color=_series_colour(kind), linewidth=0
                )
        for span in spans:
            if span.hint:
                length = span.end - span.start
                (bar,) = axes.barh(middle, length, 13, span.start, color=_series_colour(span.kind))
                sheet.set_svg_hints(bar, texts=span.hint, stop=True)
    legend = _lane_legend(chart, sheet.inner)
    for index in range(len(chart.kinds)):
        left, base = legend.write(sheet, index, bottom + _AXIS_HEIGHT)
        sheet.line([left + 6], base - 4, marker="s", markersize=10, color=_series_colour(index))
