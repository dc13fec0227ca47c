"""Charts as SVG without any colour of their own: a style sheet gives them day and night.

`spec` says what a chart shows; `draw` makes it. No dependency, no script, no style attribute,
so that a page with the strictest content policy can hold them.
"""

from __future__ import annotations

from cnnbench.report.charts import boxes, dots, lines
from cnnbench.report.charts.spec import (
    HIGHER,
    LOWER,
    Axis,
    Box,
    Boxes,
    Chart,
    Dots,
    Event,
    Lines,
    Row,
    Series,
)
from cnnbench.report.charts.svg import Svg

__all__ = [
    "HIGHER",
    "LOWER",
    "Axis",
    "Box",
    "Boxes",
    "Chart",
    "Dots",
    "Event",
    "Lines",
    "Row",
    "Series",
    "draw",
]


def draw(chart: Chart) -> Svg:
    """The chart as an SVG element."""
    if isinstance(chart, Dots):
        return dots.draw(chart)
    if isinstance(chart, Boxes):
        return boxes.draw(chart)
    return lines.draw(chart)
