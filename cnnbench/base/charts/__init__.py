"""Describes charts as data, which `cnnbench.base.charts.draw` draws with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cnnbench.base import text as numbers

HIGHER = "higher is better"
LOWER = "lower is better"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a chart: its label, scale and ticks.

    Attributes:
      label: quantity and unit.
      format: format of the ticks: "number", "bytes" (binary units) or "percent" (of shares).
      base: base of the ticks of a logarithmic axis.
      zero: whether a linear axis begins at 0.
      better: which values are better: `HIGHER`, `LOWER` or "".
      ticks: values of the ticks; if empty, they are chosen automatically.
      tick_texts: texts of the ticks; if empty, the values are shown.
      limit: values of curves above the limit are drawn as arrows at the end of the axis; None for
        no limit.
      least_span: minimum range of the axis, as a share of the middle of the values.
    """

    label: str
    format: str = "number"
    log: bool = False
    base: int = 10
    zero: bool = False
    better: str = ""
    ticks: tuple[float, ...] = ()
    tick_texts: tuple[str, ...] = ()
    limit: float | None = None
    least_span: float = 0.0

    @property
    def caption(self) -> str:
        """The label of the axis, followed by whether higher or lower values are better."""
        return f"{self.label} ({self.better})" if self.better else self.label

    def format_value(self, value: float | None) -> str:
        """Formats a value as a text, in the format of this axis."""
        if self.format == "bytes":
            return numbers.format_bytes(value)
        return numbers.percent(value) if self.format == "percent" else numbers.number(value)


@dataclass(frozen=True, kw_only=True)
class DistributionRow:
    """A row in a chart: shows, for example, the values of one configuration as dots or as a box
    plot.

    Attributes:
      label: text for the row.
      values: value and hint of each dot.
      centre: median of the values.
      low, high: ends of the median's interval, or of the whiskers of a box.
      box: first and third quartile.
      hint: shown on hover over a box.
      text: text at the end of the row.
      tone: tone of a verdict, "good", "bad" or "unsure", which sets the colour; "" for none.
      ignored: ends of the changes that are too small to matter, which have a grey background.
    """

    label: str
    values: tuple[tuple[float, str], ...] = ()
    centre: float | None = None
    low: float | None = None
    high: float | None = None
    box: tuple[float, float] | None = None
    hint: str = ""
    text: str = ""
    tone: str = ""
    ignored: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class RowChart:
    """A chart with one row for each of several configurations or devices, on a common scale.

    Attributes:
      rows: the rows from top to bottom.
      limit: a value that is marked with a line, and the name of the line.
      note: legend of the marks; see `legend_text`.
      bars: whether a bar reaches from 0 to each centre.
    """

    title: str
    x: Axis
    rows: tuple[DistributionRow, ...]
    limit: tuple[float, str] | None = None
    note: str = ""
    bars: bool = False


_TONES = {"good": "green is better", "bad": "red worse", "unsure": "amber undecided", "": "blue"}


def legend_text(
    rows: Sequence[DistributionRow],
    *,
    dot: str = "",
    centre: str = "",
    band: str = "",
    ignored: str = "",
) -> str:
    """Writes the legend of a chart with rows. Each argument says what a mark means, such as dot="a
    process".
    """
    marks = (
        (f"a dot is {dot}", dot and any(row.values for row in rows)),
        (f"the stroke {centre}", centre and any(row.centre is not None for row in rows)),
        (f"the band {band}", band and any(row.low is not None for row in rows)),
        (f"the grey zone {ignored}", ignored and any(row.ignored is not None for row in rows)),
    )
    text = ", ".join(words for words, shown in marks if shown)
    tones = [words for tone, words in _TONES.items() if any(row.tone == tone for row in rows)]
    if tones != [_TONES[""]]:
        text += f"; {', '.join(tones)}{' neither' if _TONES[''] in tones else ''}"
    return f"{text[:1].upper()}{text[1:]}." if text else ""


@dataclass(frozen=True, kw_only=True)
class ChartSeries:
    """A curve in a chart, with its points, marks and hints.

    Attributes:
      points: (x, y), sorted by x.
      hints: one for each point, shown on hover; "" for no hint.
      links: address to which the mark of each point leads, "" for none. Only marks with a hint can
        have a link.
      marks: whether all points have marks; otherwise, only the last point has one.
      line: whether points are connected by a line.
      reference: whether it is a reference, drawn as a dashed grey line.
      spans: (low, high) of each point's interval, or None.
      style: index of colour, dashes and mark; if None, the index of the series in the chart.
      mark: index of the mark; if None, `style` determines the mark.
      texts: text next to each point; "" for no text.
      diameters: of the marks in pixels, one for each point; if empty, all are equal.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    hints: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    marks: bool = True
    line: bool = True
    reference: bool = False
    spans: tuple[tuple[float, float] | None, ...] = ()
    style: int | None = None
    mark: int | None = None
    texts: tuple[str, ...] = ()
    diameters: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChartEvent:
    """A vertical line in a chart that marks an event on the x axis.

    `label` is shown on hover. `mark`, one or two words, is shown next to the line. `gain` means
    that the event is an improvement.
    """

    x: float
    label: str
    mark: str = ""
    gain: bool = False


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """A chart with one or more curves over a common x axis.

    Attributes:
      shaded: (from, to, label) of a part of the x axis with grey background.
      note: text below the legend.
      labels: labels on the x axis for the points of the first series. In pages, a chart with labels
        is as wide as possible, and users can zoom into it.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...]
    shaded: tuple[float, float, str] | None = None
    events: tuple[ChartEvent, ...] = ()
    note: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A period of time in a row of a `TimelineChart`. `kind` is an index into `kinds` of the
    chart.

    `hint` is shown on hover.
    """

    start: float
    end: float
    kind: int
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class TimelineChart:
    """A chart that shows what several devices do over time. Its x axis begins at 0.

    Attributes:
      lanes: label and spans of each device, from top to bottom. If spans overlap, a later span
        covers an earlier one.
    """

    title: str
    x: Axis
    lanes: tuple[tuple[str, tuple[TimelineSpan, ...]], ...]
    kinds: tuple[str, ...]
    note: str = ""


Chart: TypeAlias = RowChart | LineChart | TimelineChart
