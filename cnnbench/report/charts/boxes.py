"""Box charts: quartiles and whiskers, a row for each distribution."""

from __future__ import annotations

from cnnbench.report.charts import frame, marks
from cnnbench.report.charts.scale import Scale, scale_for
from cnnbench.report.charts.spec import Box, Boxes
from cnnbench.report.charts.svg import Svg, element, join, shorten, text

_ROWS = 170.0
_LEAST, _MOST = 26.0, 44.0
_LABEL = 98.0


def draw(chart: Boxes) -> Svg:
    """The chart as SVG."""
    values = [v for box in chart.boxes for v in (box.low, box.high, *box.outermost)]
    limit = chart.x.limit
    if limit is not None:
        values = [min(value, limit) for value in values]
    scale = scale_for(values, _LABEL, frame.WIDTH - frame.RIGHT, zero=chart.x.zero)
    row = min(max(_ROWS / len(chart.boxes), _LEAST), _MOST)
    top = frame.TOP
    bottom = top + row * len(chart.boxes) + 4
    parts = frame.x_axis(chart.x, scale, top, bottom)
    parts += [
        _box(box, scale, top + row * (index + 0.5) + 2) for index, box in enumerate(chart.boxes)
    ]
    height = bottom + frame.AXIS_HEIGHT
    parts += frame.note(chart.note, height + 8)
    return frame.document(
        chart.title, chart.x.caption, height + frame.note_height(chart.note), parts
    )


def _box(box: Box, scale: Scale, y: float) -> Svg:
    colour = marks.colour(box.series)

    def at(value: float) -> float:
        return min(scale(value), scale.end)

    parts = [
        element("title", box.hint or box.label),
        marks.mark(8.0, y, box.series),
        text(shorten(box.label, frame.fitting(_LABEL - 20)), 18.0, y + 4, "tick"),
        element("line", x1=at(box.low), x2=at(box.high), y1=y, y2=y, class_=f"whisker {colour}"),
        element(
            "rect",
            x=at(box.first),
            y=y - 7,
            width=max(1.0, at(box.third) - at(box.first)),
            height=14.0,
            class_=f"box {colour}",
        ),
        element("line", x1=at(box.middle), x2=at(box.middle), y1=y - 9, y2=y + 9, class_="centre"),
    ]
    parts += [
        element("circle", cx=at(value), cy=y, r=2.0, class_=f"outlier {colour}")
        for value in box.outermost
        if value <= scale.high
    ]
    beyond = sum(value > scale.high for value in box.outermost)
    if beyond:
        parts.append(text(f"{beyond} ▸", frame.WIDTH - 2, y - 6, "note end"))
    return element("g", join(parts))
