"""Where charts have their texts, marks and lines, in whole pixels, and how they are drawn.

Tests cnnbench/base/charts/axes.py, cnnbench/base/charts/draw.py and
cnnbench/base/charts/figure.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from golden import golden

from cnnbench.base.charts import (
    HIGHER,
    LOWER,
    Axis,
    ChartEvent,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    TimelineChart,
    TimelineSpan,
)
from cnnbench.base.charts.draw import HALF, NARROW, WIDE, chart_to_svg, render_chart_file

ROWS = RowChart(
    title="Rows",
    x=Axis(label="ms", better=LOWER),
    limit=(6.0, "most"),
    note="a note " * 15,
    rows=(
        DistributionRow(
            label="first",
            values=((1.0, "a"), (9.0, "b")),
            centre=2.0,
            low=1.0,
            high=3.0,
            text="2.0",
            tone="bad",
        ),
        DistributionRow(
            label="second of two, which has a long label with many words that need two lines",
            values=((5.0, "c"),),
            centre=3.0,
            low=1.0,
            high=9.0,
            box=(2.0, 4.0),
            hint="box",
        ),
        DistributionRow(label="third", centre=9.5, low=2.0, ignored=(5.5, 6.5)),
    ),
)

BARS = RowChart(
    title="Bars",
    x=Axis(label="images/sec", better=HIGHER),
    bars=True,
    rows=(
        DistributionRow(label="a", centre=5.0, text="5"),
        DistributionRow(label="b", values=((3.0, ""),)),
    ),
)

LINES = LineChart(
    title="Lines",
    x=Axis(label="step"),
    y=Axis(label="images/sec", better=HIGHER),
    shaded=(0.0, 2.0, "warm-up"),
    events=(
        ChartEvent(x=3.0, label="event", mark="worse"),
        ChartEvent(x=3.3, label="next", mark="worse again"),
        ChartEvent(x=3.6, label="third", mark="has no room"),
        ChartEvent(x=5.0, label="gain", mark="better", gain=True),
    ),
    series=(
        ChartSeries(
            name="speed",
            points=((1.0, 10.0), (4.0, 20.0), (6.0, 15.0)),
            hints=("a", "b", "c"),
            spans=((9.0, 12.0), None, (14.0, 16.0)),
            texts=("one", "", "three"),
        ),
        ChartSeries(name="limit", points=((1.0, 18.0), (6.0, 18.0)), reference=True),
        ChartSeries(
            name="other", points=((2.0, 12.0), (5.0, 13.0)), marks=False, diameters=(5.0, 12.0)
        ),
    ),
)

NEAR = tuple((4.0 + place / 50, 100.0 + place) for place in range(4))

LOGARITHMS = LineChart(
    title="Logarithms",
    x=Axis(label="devices", log=True, base=2, ticks=(1.0, 2.0, 4.0, 8.0)),
    y=Axis(label="memory", format="bytes", log=True, base=4, better=LOWER, limit=3000.0),
    shaded=(6.0, 99.0, "more than there are"),
    events=(ChartEvent(x=1.1, label="", mark="first"), ChartEvent(x=7.0, label="")),
    note="one line",
    series=(
        ChartSeries(
            name="points with texts at nearly the same place",
            points=NEAR,
            texts=("first", "second", "third", "fourth"),
            line=False,
            style=13,
            mark=2,
        ),
        ChartSeries(
            name="beyond", points=((1.0, 200.0), (8.0, 5000.0)), spans=(None, (1000.0, 9000.0))
        ),
        ChartSeries(name="alone", points=((2.0, 400.0),), links=("https://x.y",), hints=("a",)),
    ),
)

SHARES = LineChart(
    title="A title that is longer than the sixty-four characters for which there is room",
    x=Axis(label="commit", ticks=(0.0, 1.0, 2.0), tick_texts=("aaaaaaa", "bbbbbbb", "ccccccc")),
    y=Axis(label="share", format="percent", zero=True, least_span=0.5),
    series=tuple(
        ChartSeries(name=f"series {place}", points=((0.0, 0.5), (2.0, 0.5 + place / 40)))
        for place in range(8)
    ),
)

LANES = TimelineChart(
    title="Lanes",
    x=Axis(label="ms"),
    kinds=("forward", "reduction"),
    note="a note",
    lanes=(
        ("cpu:0", (TimelineSpan(0.0, 2.0, 0, "conv0"), TimelineSpan(2.0, 3.0, 1))),
        ("cpu:1", (TimelineSpan(1.0, 4.0, 1), TimelineSpan(3.0, 3.5, 0, "conv1"))),
    ),
)


def colour(value):
    return re.sub(r"var\(--([\w-]+),.*\)", r"\1", value or "")


def drawn(root):
    """A line for each text, mark and path of a chart, in their order."""
    view = " ".join(f"{float(number):.0f}" for number in root.get("viewBox").split())
    yield " ".join((root.get("role"), view, root.get("width", "-"), root.get("aria-label")))
    for one in root.iter():
        tag = one.tag.rpartition("}")[2]
        if tag == "text":
            names = ("text-anchor", "font-size", "font-weight")
            style = [one.get(name, "-") for name in names]
            where = f"{float(one.get('x')):.0f} {float(one.get('y')):.0f}"
            yield " ".join(("text", where, *style, colour(one.get("fill")), one.text))
        elif tag == "use":
            where = f"{float(one.get('x')):.0f} {float(one.get('y')):.0f}"
            yield f"mark {where} {colour(one.get('fill'))}"
        elif tag == "path":
            names = ("stroke-width", "stroke-dasharray", "opacity", "fill-opacity")
            style = [one.get(name, "-") for name in (*names, "stroke-opacity")]
            line = re.sub(r"-?\d+\.\d+", lambda n: f"{float(n.group()) + 0.0:.0f}", one.get("d"))
            line = line.replace("-0 ", "0 ")
            # The outline of a mark is as large as its first points say.
            outline = " ".join(line.split()[:12])
            yield " ".join(
                ("path", colour(one.get("stroke")), colour(one.get("fill")), *style, outline)
            )
        elif tag == "title":
            yield f"title {one.text}"
        elif tag in ("g", "a") and one.get("class"):
            names = ("href", "tabindex")
            yield " ".join((tag, one.get("class"), *(one.get(name, "-") for name in names)))


@pytest.mark.parametrize(
    ("name", "chart", "widths"),
    [
        ("rows", ROWS, (NARROW, HALF)),
        ("bars", BARS, (NARROW,)),
        ("lines", LINES, (NARROW,)),
        ("logarithms", LOGARITHMS, (NARROW, WIDE)),
        ("shares", SHARES, (NARROW,)),
        ("lanes", LANES, (NARROW, HALF)),
    ],
)
def test_drawings(name, chart, widths):
    text = ""
    for width in widths:
        root = xml.fromstring(chart_to_svg(chart, width))
        text += "\n".join((f"== {width:.0f}", *drawn(root), ""))
    root = xml.fromstring(render_chart_file([chart, BARS], "svg"))
    # In a file, titles and notes are added; what else moves is the same.
    added = [line for line in drawn(root) if line.startswith(("text", "img", "group"))]
    text += "\n".join(("== file", *added, ""))
    golden(Path(__file__).parent / "golden" / f"{name}.txt", text)
