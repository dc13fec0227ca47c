"""What a chart shows, as data; how it is drawn is for the other modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

HIGHER = "higher is better"
LOWER = "lower is better"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis.

    Attributes:
      label: what it shows, with its unit.
      format: of its ticks, a name in `cnnbench.report.charts.scale.FORMATS`.
      log: whether it is logarithmic.
      base: of the logarithm's ticks.
      zero: a linear axis begins at 0.
      better: `HIGHER`, `LOWER` or "".
      ticks: the values to mark; chosen if empty.
      tick_texts: what to write at them, if not the values.
      limit: values above are drawn at the axis' end, as beyond it; None for all.
      least_span: the axis covers at least this share of the values' middle.
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
        """The label with the direction."""
        return f"{self.label} ({self.better})" if self.better else self.label


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a dot chart: one thing with several values.

    Attributes:
      label: of the row.
      values: one per process; (value, hint).
      centre: their median.
      low, high: ends of its interval; None if there is none.
      text: the figure to write beside the label.
    """

    label: str
    values: tuple[tuple[float, str], ...]
    centre: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Values of several things on one scale, a row each.

    Attributes:
      title: of the chart.
      x: the axis.
      rows: top to bottom.
      limit: a value to mark with a line; None for none.
      limit_label: what it is.
      note: what the signs mean.
    """

    title: str
    x: Axis
    rows: tuple[Row, ...]
    limit: float | None = None
    limit_label: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A row of a box chart: five numbers of a distribution.

    Attributes:
      label: of the row.
      low, high: ends of the whiskers.
      first, middle, third: quartiles.
      outermost: values beyond the whiskers that are worth a mark.
      hint: shown when pointed at.
      series: index of colour and mark.
    """

    label: str
    low: float
    first: float
    middle: float
    third: float
    high: float
    outermost: tuple[float, ...] = ()
    hint: str = ""
    series: int = 0


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Distributions beside each other.

    Attributes:
      title: of the chart.
      x: the axis.
      boxes: top to bottom.
      note: what the parts of a box are.
    """

    title: str
    x: Axis
    boxes: tuple[Box, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve.

    Attributes:
      name: for the legend.
      points: (x, y), in order of x.
      hints: one per point, shown when pointed at; "" for none.
      marks: whether all points get marks; else the last one does, as for long series.
      line: whether points are joined.
      reference: a line to compare with, dashed and without a colour.
      spans: (low, high) of each point's interval, or None.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    hints: tuple[str, ...] = ()
    marks: bool = True
    line: bool = True
    reference: bool = False
    spans: tuple[tuple[float, float] | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened at a place of the x axis.

    Attributes:
      x: the place.
      label: what.
      mark: a word or two, written beside the line.
      gain: whether it was for the better.
    """

    x: float
    label: str
    mark: str = ""
    gain: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over a common axis.

    Attributes:
      title: of the chart.
      x, y: the axes.
      series: the curves.
      shaded: part of the x axis with a grey ground, and what it is; None for none.
      events: vertical lines.
      note: what else to know.
      wide: takes the whole width of a page.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    shaded: tuple[float, float, str] | None = None
    events: tuple[Event, ...] = ()
    note: str = ""
    wide: bool = False


Chart: TypeAlias = Dots | Boxes | Lines
