"""Charts drawn with matplotlib: SVG for pages, and SVG, PNG or PDF files.

Everything is laid out in units of about a pixel, from the top left. The colours are those of
theme.css in its light variant; in SVG they become its variables, so that charts follow the
reader's light or dark setting. Equal charts give equal bytes. No style attribute is left, so
that a page with the strictest content policy can hold them.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any

from cnnbench.base.charts import Axis, Chart, Event, Lines, Row, Rows, Series
from cnnbench.base.charts.markup import Hint, element
from cnnbench.base.text.escape import plain
from cnnbench.base.text.numbers import binary

FORMATS = ("svg", "png", "pdf")
"""Of files."""

NARROW, WIDE = 300.0, 1250.0
"""Widths of charts in pages: of a phone, which several beside each other have on a desk, and of
the whole page."""

_WIDTH = 560.0
_HEAD = 24.0
_TOP, _LEFT, _RIGHT = 30.0, 58.0, 18.0
_AXIS_HEIGHT = 46.0
_PLOT_TOP, _PLOT = 52.0, 230.0
_LINE = 18.0
_NOTE_LINE = 15.0
_ROW = 40.0
_MARGIN = 12.0
_GAP = 24.0
_KEY = 30.0

_TITLE_SIZE, _SIZE, _TICK_SIZE = 14.0, 12.0, 11.5
_CHARACTER = 7.2
"""Width of a character in a wide face: the reader's fonts are not known."""

_COLOURS = tuple(f"c{index}" for index in range(7))
# No two of the first twelve series have the same mark.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "d", "p", "h", "8", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)), (0, (12, 4)), "--")
_ALONE = ":root { --panel: var(--ground); }\n.chart { font-family: sans-serif; }\n"
_PLOT_PART, _BESIDE = "plot", "beside"
_NOTE_ROOM, _MOST_LINES = 0.07, 2
_UNITS = (1.0, 1024.0, 1024.0**2, 1024.0**3, 1024.0**4)


def svg(chart: Chart, width: float = NARROW) -> str:
    """The chart as an SVG element for a page, which brings `theme`, the title and the note.

    Args:
      chart: to be drawn.
      width: in pixels; letters have their size at this width.
    """
    with _settings(f"{chart.title} {width:g}"):
        sheet = _Sheet([chart], width=width, captions=False)
        return _markup(sheet, aria_label=f"{chart.title}: {_description(chart)}")


def render(charts: Sequence[Chart], format: str, label: str = "") -> bytes:
    """The charts below each other as a file; an SVG file follows light and dark by itself.

    Args:
      charts: at least one.
      format: one of `FORMATS`.
      label: description of an SVG file.
    """
    with _settings(label):
        sheet = _Sheet(charts, margin=_MARGIN)
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


@functools.cache
def theme() -> str:
    """The style sheet that names the colours."""
    return resources.files("cnnbench.base.charts").joinpath("theme.css").read_text("utf-8")


@functools.cache
def _palette() -> dict[str, str]:
    """The light colours by name."""
    light = theme().partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    import matplotlib

    settings = {
        "svg.hashsalt": f"cnnbench {plain(salt)}",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "path.simplify": False,
        "font.size": _SIZE,
        "text.color": _palette()["ink"],
        "lines.solid_joinstyle": "round",
        "lines.scale_dashes": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the measuring font lacks
        yield


class _Sheet:
    """A figure with charts below each other, and what is shown on hover.

    Attributes:
      figure: matplotlib's.
      width, height: of it.
      inner: width of a chart.
      hints: what the artists show, by their group ids.
    """

    def __init__(
        self,
        charts: Sequence[Chart],
        *,
        margin: float = 0.0,
        width: float = _WIDTH,
        captions: bool = True,
    ) -> None:
        from matplotlib.figure import Figure

        heights = [_height(chart, captions) for chart in charts]
        self.inner = width
        self.width = width + 2 * margin
        self.height = sum(heights) + _GAP * max(0, len(charts) - 1) + 2 * margin
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
        self.figure.patch.set_visible(margin > 0)
        self.hints: dict[str, Hint] = {}
        self._left, self._top = margin, margin - (0.0 if captions else _HEAD)
        for chart, height in zip(charts, heights, strict=True):
            if captions:
                self.text(0, 16, _shorten(chart.title, 64), size=_TITLE_SIZE, bold=True)
            if isinstance(chart, Rows):
                _draw_rows(self, chart)
            else:
                _draw_lines(self, chart)
            for index, line in enumerate(_wrapped(chart.note) if captions else ()):
                below = height - _NOTE_LINE * (len(_wrapped(chart.note)) - index - 1) - 4
                self.text(0, below, line, size=_TICK_SIZE, colour="soft")
            self._top += height + _GAP

    def _place(self, x: float, y: float) -> tuple[float, float]:
        return (self._left + x) / self.width, 1 - (self._top + y) / self.height

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = _SIZE,
        colour: str = "ink",
        bold: bool = False,
        align: str = "left",
        kind: str = "",
    ) -> None:
        """A line of text with its base line at y; `kind` as of `mark`."""
        weight = "bold" if bold else "normal"
        style: Any = {"fontsize": size, "color": _palette()[colour], "fontweight": weight}
        where = self._place(x, y)
        artist = self.figure.text(*where, plain(content), ha=align, va="baseline", **style)
        if kind:
            self.mark(artist, kind)

    def line(self, xs: Sequence[float], y: float, **style: Any) -> None:
        """A horizontal line, or marks, outside of the axes."""
        from matplotlib.lines import Line2D

        places = [self._place(x, y) for x in xs]
        self.figure.add_artist(Line2D(*zip(*places, strict=True), **style))

    def axes(self, left: float, right: float, top: float, bottom: float) -> Any:
        """Axes between these places, without a frame."""
        x, y = self._place(left, bottom)
        size = ((right - left) / self.width, (bottom - top) / self.height)
        axes = self.figure.add_axes((x, y, *size), facecolor="none")
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(True, color=_palette()["rule"], linewidth=1)
        axes.tick_params(length=0, pad=6, labelsize=_TICK_SIZE, labelcolor=_palette()["soft"])
        return axes

    def mark(
        self, artist: Any, kind: str = "", texts: str | Sequence[str] = "", *, stop: bool = False
    ) -> None:
        """Gives an artist a class and what it shows.

        Args:
          artist: matplotlib's.
          kind: class in the SVG; "" for none.
          texts: on hover over it, or one over each of its marks.
          stop: whether the keyboard reaches it; marks with a text always are.
        """
        key = f"hint{len(self.hints)}"
        self.hints[key] = Hint(kind, texts, stop)
        artist.set_gid(key)


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
        return height - _HEAD
    return height + _NOTE_LINE * len(_wrapped(chart.note)) + (4 if chart.note else 0)


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(plain(note), 84)


def _shorten(content: str, characters: int) -> str:
    """Text that fits, with an ellipsis in its middle where needed: both ends matter."""
    if len(content) <= characters:
        return content
    head = (characters - 1) * 2 // 3
    return f"{content[:head]}…{content[len(content) - (characters - 1 - head) :]}"


def _fitting(width: float) -> int:
    """How many characters of the usual size fit."""
    return max(4, int(width / _CHARACTER))


# Axes


def _x_axis(sheet: _Sheet, axes: Any, axis: Axis, values: Sequence[float], bottom: float) -> None:
    """Scale, grid, ticks and caption of a horizontal axis."""
    low, high = _limits(axis, values)
    if axis.log:
        axes.set_xscale("log", base=axis.base)
    axes.set_xlim(low, high)
    ticks, texts = _ticks(axis, low, high, 6)
    box = axes.get_position()
    start, end = box.x0 * sheet.width, box.x1 * sheet.width
    free, shown = 0.0, []
    places = axes.transData.transform([(tick, low) for tick in ticks])[:, 0]
    for x, text in zip(places, texts, strict=True):
        half = len(text) * _CHARACTER / 2
        place = min(max(x, half), sheet.width - half)
        fits = place - half >= free  # clear of its neighbour
        shown.append(text if fits else "")
        free = place + half + 8 if fits else free
    if axis.tick_texts:  # names of points: no lines for those without
        ticks = [tick for tick, text in zip(ticks, shown, strict=True) if text]
        shown = [text for text in shown if text]
    axes.set_xticks(ticks, shown, minor=False)
    axes.set_xticks([], minor=True)
    axes.spines["bottom"].set(visible=True, color=_palette()["soft"], linewidth=1)
    caption = _caption(axis, sheet.inner)
    half = len(caption) * _CHARACTER / 2
    middle = min(max((start + end) / 2 - sheet._left, half), sheet.inner - half)
    sheet.text(middle, bottom + 36, caption, colour="soft", align="center")


def _y_axis(
    sheet: _Sheet, axes: Any, axis: Axis, values: Sequence[float], top: float, room: float
) -> None:
    """Scale, grid and ticks of a vertical axis; the caption stands above it.

    Args:
      sheet, axes, axis: to draw on, and what to draw.
      values: that must be shown.
      top: of the plot.
      room: share of the height to leave free above the values, for notes.
    """
    low, high = _limits(axis, values)
    if axis.limit is None:
        free = room / (1 - room)
        high = high * (high / low) ** free if axis.log else high + (high - low) * free
    if axis.log:
        axes.set_yscale("log", base=axis.base)
    axes.set_ylim(low, high)
    axes.set_yticks(*_ticks(axis, low, high, 5), minor=False)
    axes.set_yticks([], minor=True)
    sheet.text(0, top - 10, _caption(axis, sheet.inner), colour="soft")


def _caption(axis: Axis, width: float) -> str:
    """The caption of an axis, or what of it fits."""
    fitting = _fitting(width)
    return next(
        (one for one in (axis.caption, axis.short_caption) if len(one) <= fitting),
        _shorten(axis.label, fitting),
    )


def _limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that shows all values with some room beyond."""
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


def _ticks(axis: Axis, low: float, high: float, about: int) -> tuple[list[float], list[str]]:
    """Values of the ticks within the limits and their texts."""
    from matplotlib.ticker import MaxNLocator

    unit = max((u for u in _UNITS if u <= high), default=1.0) if axis.format == "bytes" else 1.0
    found: Sequence[float] = axis.ticks
    if not found and axis.log:
        found = _powers(axis.base, low, high, about)
    if len(found) < 2 and not axis.ticks:
        linear = MaxNLocator(about, steps=[1, 2, 2.5, 5, 10])
        found = [tick * unit for tick in linear.tick_values(low / unit, high / unit)]
    texts = axis.tick_texts or [_tick_text(axis.format, value) for value in found]
    kept = [pair for pair in zip(found, texts, strict=True) if low <= pair[0] <= high]
    return [value for value, _ in kept], [plain(text) for _, text in kept]


def _powers(base: int, low: float, high: float, about: int) -> list[float]:
    """Powers of a base between limits, at even distances; on short axes of ten more values."""
    # Powers of ten alone would leave most of a short axis without a tick.
    factors = (1, 2, 5) if base == 10 and high / low < 1000 else (1,)
    least = math.floor(math.log(low, base))
    most = math.ceil(math.log(high, base))
    powers = [k for k in range(least, most + 1) if low <= float(base) ** k <= high]
    every = 1 if len(factors) > 1 else max(1, math.ceil(len(powers) / about))
    values = [
        f * float(base) ** k for k in range(least, most + 1) if k % every == 0 for f in factors
    ]
    return [value for value in values if low <= value <= high]


def _tick_text(format: str, value: float) -> str:
    if format == "bytes":
        return binary(value)
    if format == "percent":
        return f"{100 * value:.4g} %"
    if value and (abs(value) >= 1e7 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.6g}"


# Rows: every value a dot, their median a stroke, its interval a band, quartiles a box


def _rows_top(chart: Rows) -> float:
    return _TOP + (0.0 if chart.limit is None else 14.0)


def _draw_rows(sheet: _Sheet, chart: Rows) -> None:
    top = _rows_top(chart)
    bottom = top + _ROW * len(chart.rows) + 4
    right = max(_RIGHT, 12 + _CHARACTER * max(len(row.text) for row in chart.rows))
    axes = sheet.axes(8, sheet.inner - right, top, bottom)
    ends = [end for row in chart.rows for end in (row.centre, row.low, row.high, chart.limit)]
    values = [value for row in chart.rows for value, _ in row.values]
    _x_axis(sheet, axes, chart.x, [*values, *(end for end in ends if end is not None)], bottom)
    axes.set_ylim(bottom - top, 0)
    axes.yaxis.set_visible(False)
    if chart.limit is not None:
        limit = {"color": _palette()["ink"], "linewidth": 1.5, "linestyle": (0, (5, 4))}
        axes.plot([chart.limit] * 2, [-8, bottom - top], clip_on=False, **limit)
        # Ends at the line, where there is room before it.
        x = axes.transData.transform((chart.limit, 0))[0] - sheet._left
        x = max(x, _CHARACTER * len(chart.limit_label))
        sheet.text(x, top - 10, chart.limit_label, size=_TICK_SIZE, colour="soft", align="right")
    for index, row in enumerate(chart.rows):
        y = top + _ROW * index
        left = 8 if row.style is None else 28
        if row.style is not None:
            sheet.line([18], y + 11, linestyle="none", **_mark(row.style, _colour(row.style)))
        sheet.text(left, y + 15, _shorten(row.label, _fitting(sheet.inner - left)))
        sheet.text(sheet.inner, y + 31, row.text, bold=True, align="right")
        beyond = sum(value > axes.get_xlim()[1] for value, _ in row.values)
        if beyond:
            sheet.text(
                sheet.inner, y + 31, f"{beyond} ▸", size=_TICK_SIZE, colour="soft", align="right"
            )
        _draw_row(sheet, axes, row, _ROW * index + 27)


def _draw_row(sheet: _Sheet, axes: Any, row: Row, y: float) -> None:
    ink, end = _palette()["ink"], axes.get_xlim()[1]
    colour = _palette()[row.tone] if row.tone else _colour(row.style or 0)
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
    """The style of marks of a series."""
    return {
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": size,
        "color": colour,
        "markeredgecolor": _palette()["ground"],
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
    return _palette()[_COLOURS[index % len(_COLOURS)]]


# Line charts, with a legend below


def _draw_lines(sheet: _Sheet, chart: Lines) -> None:
    bottom = _PLOT_TOP + _PLOT
    axes = sheet.axes(_LEFT, sheet.inner - _RIGHT, _PLOT_TOP, bottom)
    points = [point for one in chart.series for point in one.points]
    spans = [end for one in chart.series for span in one.spans if span for end in span]
    _x_axis(sheet, axes, chart.x, [x for x, _ in points] + [e.x for e in chart.events], bottom)
    notes = _Notes(sheet, axes)
    if chart.shaded is not None:
        notes.write(max(chart.shaded[0], axes.get_xlim()[0]), chart.shaded[2], 3)
    for event in chart.events:
        notes.write(event.x, event.mark, 7)
    room = _NOTE_ROOM * notes.lines
    _y_axis(sheet, axes, chart.y, [y for _, y in points] + spans, _PLOT_TOP, room)
    if chart.shaded is not None:
        start, end = axes.get_xlim()
        first, last = max(chart.shaded[0], start), min(chart.shaded[1], end)
        axes.axvspan(first, last, color=_palette()["soft"], alpha=0.12, linewidth=0, zorder=0)
    for event in chart.events:
        _draw_event(sheet, axes, event)
    index = 0
    for place, one in enumerate(chart.series):
        style = index if one.style is None else one.style
        _draw_series(sheet, axes, one, style, bottom + _AXIS_HEIGHT + 11 + place * _LINE)
        index += not one.reference


class _Notes:
    """Notes at the top of a plot beside places, where none covers another.

    Attributes:
      lines: that have notes.
    """

    def __init__(self, sheet: _Sheet, axes: Any) -> None:
        self._sheet = sheet
        self._axes = axes
        self._taken: list[tuple[int, float, float]] = []

    @property
    def lines(self) -> int:
        return len({line for line, _, _ in self._taken})

    def write(self, x: float, text: str, gap: float) -> None:
        """A note on the side with more room, else on the other, else a line below; or none."""
        if not text:
            return
        start, end = self._axes.get_xlim()
        place = self._axes.transData.transform((x, self._axes.get_ylim()[0]))[0] - self._sheet._left
        width = len(text) * _CHARACTER
        to_left = gap > 3 and x > (start + end) / 2
        for line, left in itertools.product(range(_MOST_LINES), (to_left, not to_left)):
            low = place - gap - width if left else place + gap
            inside = low >= 0 and low + width <= self._sheet.inner
            if inside and all(
                line != other or low + width <= a or low >= b for other, a, b in self._taken
            ):
                self._taken.append((line, low, low + width))
                at, align = (place - gap, "right") if left else (place + gap, "left")
                style: Any = {"size": _TICK_SIZE, "colour": "soft", "kind": _BESIDE}
                self._sheet.text(at, _PLOT_TOP + 12 + 14 * line, text, align=align, **style)
                return


def _draw_event(sheet: _Sheet, axes: Any, event: Event) -> None:
    colour, dashes = ("good", (1.5, 3)) if event.gain else ("bad", (4, 3))
    line = axes.axvline(event.x, color=_palette()[colour], linewidth=1.5, linestyle=(0, dashes))
    sheet.mark(line, _PLOT_PART, event.label, stop=True)


def _draw_series(sheet: _Sheet, axes: Any, one: Series, index: int, key: float) -> None:
    """A curve, and its line in the legend with the base line at `key`."""
    colour = _palette()["soft"] if one.reference else _colour(index)
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
    sheet.text(_KEY + 8, key, _shorten(one.name, _fitting(sheet.inner - _KEY - 10)))


def _markup(sheet: _Sheet, style: str = "", **attributes: str) -> str:
    """The sheet as an SVG element; see `cnnbench.base.charts.markup.element`."""
    buffer = io.StringIO()
    sheet.figure.savefig(buffer, format="svg", metadata={"Date": None})
    variables = {colour: f"var(--{name})" for name, colour in _palette().items()}
    return element(buffer.getvalue(), sheet.hints, variables, style, attributes)
