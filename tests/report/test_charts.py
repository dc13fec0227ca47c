"""Charts: every one says what it shows, and draws its values where they belong."""

from xml.etree import ElementTree as xml

import pytest

from cnnbench.report.charts import (
    HIGHER,
    LOWER,
    Axis,
    Box,
    Boxes,
    Dots,
    Event,
    Lines,
    Row,
    Series,
    draw,
)
from cnnbench.report.charts.scale import Scale, bytes_text, number_text, percent_text, scale_for
from cnnbench.report.charts.svg import element, shorten

HOSTILE = "</title><script>alert(1)</script>\" onload='x' &amp; \x00\u202e"


def tree(chart):
    """The chart as parsed XML: whatever is in it, it is well-formed."""
    return xml.fromstring(draw(chart))


def texts(root):
    """What is written, without what is shown when pointed at."""
    return [
        (one.text or "") + "".join(part.text or "" for part in one if part.tag != "title")
        for one in root.iter("text")
    ]


def dots(name="lenet", **more):
    row = Row(label=name, values=((1.0, name), (3.0, name)), centre=2.0, low=1.0, high=3.0)
    return Dots(title=name, x=Axis(label="images/sec", better=HIGHER), rows=(row,), **more)


def lines(name="lenet", **more):
    series = Series(name=name, points=((1.0, 10.0), (2.0, 20.0)), hints=(name, name))
    return Lines(
        title=name,
        x=Axis(label="devices"),
        y=Axis(label="images/sec", zero=True, better=HIGHER),
        series=(series,),
        **more,
    )


def boxes(name="lenet", **more):
    box = Box(label=name, low=1.0, first=2.0, middle=3.0, third=4.0, high=5.0, outermost=(9.0,))
    return Boxes(title=name, x=Axis(label="time, ms", better=LOWER), boxes=(box,), **more)


@pytest.mark.parametrize("make", [dots, lines, boxes])
def test_every_chart_has_a_title_and_names_its_axes_with_their_direction(make):
    root = tree(make())
    written = texts(root)
    assert "lenet" in written
    assert any("better" in one for one in written)
    assert root.get("aria-label").startswith("lenet: ")
    axes = {"images/sec (higher is better)", "time, ms (lower is better)"}
    assert axes & set(written)
    if make is lines:
        assert "devices" in written


@pytest.mark.parametrize("make", [dots, lines, boxes])
def test_hostile_names_stay_text(make):
    root = tree(make(HOSTILE))
    assert {one.tag for one in root.iter()} <= {
        *("svg", "g", "text", "tspan", "title", "line", "rect", "circle", "path", "polyline")
    }
    for one in root.iter():
        assert not any(name.startswith("on") or name in ("style", "href") for name in one.attrib)
    assert "script" in draw(make(HOSTILE))


def test_values_are_where_the_axis_says():
    root = tree(
        Lines(
            title="t",
            x=Axis(label="x", ticks=(0.0, 10.0)),
            y=Axis(label="y", zero=True),
            series=(Series(name="s", points=((0.0, 0.0), (5.0, 4.0), (10.0, 8.0))),),
        )
    )
    (line,) = root.iter("polyline")
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    assert points[1][0] == pytest.approx((points[0][0] + points[2][0]) / 2, abs=0.11)
    assert points[1][1] == pytest.approx((points[0][1] + points[2][1]) / 2, abs=0.11)
    grid = [one for one in root.iter("line") if one.get("class") == "grid"]
    uprights = [float(one.get("x1")) for one in grid if one.get("x1") == one.get("x2")]
    assert uprights == pytest.approx([points[0][0], points[2][0]], abs=0.11)


def test_no_two_of_eleven_series_share_a_mark():
    many = tuple(Series(name=str(i), points=((1.0, 1.0 + i), (2.0, 2.0))) for i in range(11))
    root = tree(Lines(title="t", x=Axis(label="x"), y=Axis(label="y"), series=many))
    shapes = {one.get("d") or one.tag for one in root.iter() if "mark" in one.get("class", "")}
    assert len(shapes) == 11


def test_values_beyond_the_limit_are_arrows_at_the_edge():
    chart = lines().__class__(
        title="t",
        x=Axis(label="x"),
        y=Axis(label="y", zero=True, limit=10.0),
        series=(Series(name="s", points=((1.0, 500.0), (2.0, 9.0), (3.0, 8.0)), marks=False),),
    )
    arrows = [one for one in tree(chart).iter("path") if one.get("d") == "M0 -7L4 0H-4Z"]
    assert len(arrows) == 1


def test_events_and_shades_and_notes_are_told():
    chart = lines(
        shaded=(0.0, 1.0, "warm-up"), events=(Event(x=1.5, label="step"),), note="a note " * 30
    )
    root = tree(chart)
    assert "warm-up" in texts(root)
    assert [one for one in root.iter("line") if one.get("class") == "event"]
    height = float(root.get("viewBox").split()[3])
    assert all(float(one.get("y")) <= height for one in root.iter("text"))


def test_events_for_the_better_look_otherwise_and_say_so():
    events = (
        Event(x=1.1, label="first", mark="- worse"),
        Event(x=1.9, label="second", mark="+ better", gain=True),
    )
    root = tree(lines(events=events))
    drawn = [one.get("class") for one in root.iter("line") if "event" in one.get("class", "")]
    assert drawn == ["event", "event gain"]
    assert {"- worse", "+ better"} < set(texts(root))


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [0.0, 0.0], [], [-3.0, 4.0]])
def test_scales_of_few_and_equal_values(values):
    scale = scale_for(values, 0.0, 100.0)
    assert scale.low < scale.high
    assert all(0.0 <= scale(value) <= 100.0 for value in values)
    assert len(scale.ticks()) >= 2


def test_ticks():
    assert Scale(0, 100, 0, 1).ticks(5) == [0, 20, 40, 60, 80, 100]
    assert Scale(0.9, 11, 0, 1, log=True).ticks() == [1, 2, 5, 10]
    assert Scale(0.9, 2e4, 0, 1, log=True).ticks() == [1, 10, 100, 1000, 10000]
    assert Scale(1000, 70000, 0, 1, log=True, base=4).ticks() == [1024, 4096, 16384, 65536]
    assert Scale(0, 900 * 2**20, 0, 1).ticks(5, 2**20) == [i * 200 * 2**20 for i in range(5)]
    assert (number_text(1234.5), number_text(2e9)) == ("1,234.5", "2e+09")
    assert (bytes_text(4096), bytes_text(3 * 2**20), bytes_text(0)) == ("4 KiB", "3 MiB", "0 B")
    assert percent_text(0.25) == "25 %"


def test_elements_escape_and_names_are_shortened_in_the_middle():
    assert element("a", "<b>", x="\"'<") == '<a x="&quot;&#x27;&lt;">&lt;b&gt;</a>'
    assert element("a", element("b")) == "<a><b/></a>"
    assert shorten("abcdefghij", 7) == "abcd…ij"
    assert len(shorten("x" * 500, 40)) == 40
