"""Dot charts: every value a dot, their median a bar, its interval a band."""

from __future__ import annotations

from cnnbench.report.charts import frame
from cnnbench.report.charts.scale import Scale, scale_for
from cnnbench.report.charts.spec import Dots, Row
from cnnbench.report.charts.svg import Svg, element, join, shorten, text

_ROW = 40.0
_LEFT = 8.0


def draw(chart: Dots) -> Svg:
    """The chart as SVG."""
    values = [value for row in chart.rows for value in _all(row)]
    if chart.limit is not None:
        values.append(chart.limit)
    scale = scale_for(
        values,
        _LEFT,
        frame.WIDTH - _figures_width(chart),
        log=chart.x.log,
        base=chart.x.base,
        zero=chart.x.zero,
    )
    top = frame.TOP + (14.0 if chart.limit is not None else 0.0)
    bottom = top + _ROW * len(chart.rows) + 4
    parts = frame.x_axis(chart.x, scale, top, bottom)
    if chart.limit is not None:
        x = scale(chart.limit)
        parts.append(element("line", x1=x, x2=x, y1=top - 8, y2=bottom, class_="limit"))
        parts.append(text(chart.limit_label, x, top - 10, "note end"))
    for index, row in enumerate(chart.rows):
        parts.append(_row(row, scale, top + _ROW * index))
    height = bottom + frame.AXIS_HEIGHT
    parts += frame.note(chart.note, height + 8)
    return frame.document(
        chart.title, chart.x.caption, height + frame.note_height(chart.note), parts
    )


def _all(row: Row) -> list[float]:
    ends = (row.centre, row.low, row.high)
    return [value for value, _ in row.values] + [end for end in ends if end is not None]


def _figures_width(chart: Dots) -> float:
    """Of the figures beside the plot, with the gap between."""
    return max(frame.RIGHT, 12.0 + frame.width(max((row.text for row in chart.rows), key=len)))


def _row(row: Row, scale: Scale, top: float) -> Svg:
    figure = row.text
    room = frame.fitting(scale.end - _LEFT)
    middle = top + 27
    label = element(
        "text",
        element("title", row.label),
        element("tspan", shorten(row.label, room)),
        x=_LEFT,
        y=top + 15,
        class_="label",
    )
    parts = [label]
    if figure:
        parts.append(text(figure, frame.WIDTH, middle + 4, "figure end"))
    if row.low is not None and row.high is not None:
        width = max(1.0, scale(row.high) - scale(row.low))
        parts.append(
            element("rect", x=scale(row.low), y=middle - 6, width=width, height=12.0, class_="band")
        )
    for value, hint in row.values:
        inside = (element("title", hint),) if hint else ()
        parts.append(element("circle", *inside, cx=scale(value), cy=middle, r=3.6, class_="dot c0"))
    if row.centre is not None:
        x = scale(row.centre)
        parts.append(element("line", x1=x, x2=x, y1=middle - 9, y2=middle + 9, class_="centre"))
    return element("g", join(parts))
