"""Charts: titles, captions, values in their places, nothing that a strict page refuses.

Tests cnnbench/base/charts/__init__.py, cnnbench/base/charts/axes.py,
cnnbench/base/charts/draw.py and cnnbench/base/charts/figure.py.
"""

import dataclasses
import itertools
import re
import sys
from xml.etree import ElementTree as xml

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from forked import finished
from matplotlib.font_manager import fontManager

from cnnbench.base.charts import (
    HIGHER,
    LOWER,
    Axis,
    ChartEvent,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    legend_text,
)
from cnnbench.base.charts.axes import NOT_FROM_ZERO, axis_limits, begins_above_zero, choose_ticks
from cnnbench.base.charts.draw import (
    FORMATS,
    HALF,
    HEAD,
    NARROW,
    WIDE,
    chart_to_svg,
    render_chart_file,
)
from cnnbench.base.charts.figure import (
    CHARACTER,
    characters_in_width,
    palette,
    pixel_width,
    shorten_text,
    theme_css,
    wrap_label,
    wrap_note,
)

HOSTILE = "</title><script>alert(1)</script>\" onload='x' &amp; $\\frac{ \x00\u202e"


def font_with(character, family, path):
    """Writes a font whose only character is a black rectangle."""
    builder = FontBuilder(1000, isTTF=True)
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (900, 700), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    builder.setupGlyphOrder([".notdef", "one"])
    builder.setupCharacterMap({ord(character): "one"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "one": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "one": (1000, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


@pytest.mark.parametrize("format", ["png", "svg"])
def test_pictures_use_installed_fonts_for_names_in_other_scripts(format, tmp_path, monkeypatch):
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])
    known = {font.name for font in fontManager.ttflist}
    pictures = {name: render_chart_file([dots(name)], format) for name in ("lenet", "訓練")}
    font_with("訓", "Unifont", tmp_path / "font.ttf")
    fontManager.addfont(str(tmp_path / "font.ttf"))
    again = {name: render_chart_file([dots(name)], format) for name in pictures}
    assert again["lenet"] == pictures["lenet"]
    assert (again["訓練"] == pictures["訓練"]) == (format == "svg" or "Noto Sans CJK JP" in known)


def variable(name):
    """A colour of the page, with that of its light variant for pages without styles."""
    return f"var(--{name},{palette()[name]})"


def tree(chart):
    """The chart as parsed XML: whatever is in it, it is well-formed."""
    return xml.fromstring(chart_to_svg(chart))


def texts(root):
    return [one.text for one in root.iter("text")]


def titles(root):
    return [one.text for one in root.iter("title")]


def dots(name="lenet", **more):
    row = DistributionRow(
        label=name, values=((1.0, name), (3.0, name)), centre=2.0, low=1.0, high=3.0
    )
    return RowChart(title=name, x=Axis(label="images/sec", better=HIGHER), rows=(row,), **more)


def lines(name="lenet", **more):
    series = ChartSeries(name=name, points=((1.0, 10.0), (2.0, 20.0)), hints=(name, name))
    y = Axis(label="images/sec", zero=True, better=HIGHER)
    return LineChart(
        **{"title": name, "x": Axis(label="devices"), "y": y, "series": (series,), **more}
    )


def boxes(name="lenet", **more):
    box = {"low": 1.0, "box": (2.0, 4.0), "centre": 3.0, "high": 5.0, "hint": name}
    row = DistributionRow(**{"label": name, "values": ((9.0, ""),), **box, **more})
    return RowChart(title=name, x=Axis(label="time, ms", better=LOWER), rows=(row,))


KINDS = [lines, boxes]


@pytest.mark.parametrize(
    ("label", "caption"),
    [
        ("images/sec", "images/sec (higher is better)"),
        ("images/sec at the median step", "images/sec at the median step, ↑ better"),
        ("throughput, images/sec at a median step", "throughput, images/sec at a median step"),
        ("x" * 60, "x" * 30 + "…" + "x" * 16),
    ],
)
def test_captions_fit_a_phone(label, caption):
    axis = Axis(label=label, better=HIGHER)
    root = tree(RowChart(title="t", x=axis, rows=dots().rows))
    (found,) = [one for one in root.iter("text") if one.text == caption]
    half = len(caption) * 7.2 / 2
    assert half - 1 <= float(found.get("x")) <= NARROW + 1 - half


def test_texts_beside_points_and_ticks_at_the_ends_stay_inside():
    name = "stage3_block12_conv0"
    series = ChartSeries(name="a", points=((1.0, 1.0), (2.0, 1.0)), texts=(f"{name}a", f"{name}b"))
    long = ChartSeries(name="a", points=((1.0, 1.0),), texts=(name * 4,))
    x = Axis(label="x", ticks=(1.0, 2.0), tick_texts=("the first", "the last"))
    rows = dataclasses.replace(dots(bars=True), x=Axis(label="share", zero=True, format="percent"))
    for chart in (lines(series=(series,), x=x), lines(series=(long,)), rows):
        for one in tree(chart).iter("text"):
            width, x = len(one.text) * 7.2, float(one.get("x"))
            left = x - width * {"end": 1, "middle": 0.5}.get(one.get("text-anchor"), 0)
            assert -1 <= left < left + width <= NARROW + 1, one.text


def test_texts_beside_near_points_do_not_cover_each_other():
    near = [(1.0 + 0.01 * i, 1.0 + 0.01 * i) for i in range(5)]
    series = [
        ChartSeries(name="", points=(point,), texts=(f"conv{i}",)) for i, point in enumerate(near)
    ]
    root = tree(lines(series=(*series, ChartSeries(name="far", points=((2.0, 2.0),)))))
    boxes = []
    for one in root.iter("text"):
        if (one.text or "").startswith("conv"):
            left = float(one.get("x")) - (36.0 if one.get("text-anchor") == "end" else 0.0)
            boxes.append((left, float(one.get("y"))))
    assert len(boxes) == 5
    for index, (x, y) in enumerate(boxes):
        assert all(abs(x - u) >= 36 or abs(y - v) >= 11.5 for u, v in boxes[index + 1 :])


def test_notes_beside_events_do_not_cover_each_other():
    points = tuple((float(x), 1.0) for x in range(20))
    series = (ChartSeries(name="a", points=points),)
    marks = {5.0: "- worse", 5.5: "+ better", 6.0: "+ third", 16.0: "- last"}
    events = tuple(ChartEvent(x=x, label="", mark=mark) for x, mark in marks.items())
    root = tree(lines(series=series, events=events))
    boxes = []
    for one in root.iter("text"):
        if one.text in marks.values():
            width, x = len(one.text) * 6.0, float(one.get("x"))
            left = x - width if one.get("text-anchor") == "end" else x
            boxes.append((float(one.get("y")), left, left + width))
    assert len(boxes) == 4
    for index, (y, left, right) in enumerate(boxes):
        assert 0 <= left < right <= NARROW
        assert all(y != v or right <= a or left >= b for v, a, b in boxes[index + 1 :])


@pytest.mark.parametrize("make", KINDS)
def test_hostile_names_stay_text(make):
    root = tree(make(HOSTILE))
    allowed = {"svg", "g", "defs", "use", "path", "text", "title"}
    assert {one.tag for one in root.iter()} <= allowed
    for one in root.iter():
        assert not any(name.startswith("on") or name == "style" for name in one.attrib)
        assert one.get("href", "#").startswith("#")
    assert any("alert(1)" in title for title in titles(root))
    assert any("$\\frac{" in title for title in titles(root))


@pytest.mark.parametrize("make", KINDS)
def test_the_keyboard_reaches_what_has_a_title_and_hears_it(make):
    root = tree(make())
    stops = [one for one in root.iter() if one.get("tabindex") == "0"]
    assert stops
    assert root.get("role") == "group"
    for one in stops:
        assert one.get("role") == "img"
        assert "point" in one.get("class").split()
        assert one.get("aria-label") == one.find("title").text


def test_letters_of_charts_in_pages_are_large_enough_on_a_phone():
    # 350 of 390 pixels are left beside the margins of page and figure.
    root = tree(lines())
    width = float(root.get("viewBox").split()[2])
    sizes = [float(one.get("font-size").removesuffix("px")) for one in root.iter("text")]
    assert min(sizes) * 350 / width >= 11


@pytest.mark.parametrize("make", KINDS)
def test_colours_are_variables_of_the_theme(make):
    text = chart_to_svg(make())
    assert not re.search(r'"#[0-9a-f]{6}"', text)
    # With the colour itself for pages whose policy lets no style in.
    used = set(re.findall(r"var\(--([\w-]+),#[0-9a-f]{6}\)", text))
    assert text.count("var(") == len(re.findall(r"var\(--[\w-]+,#[0-9a-f]{6}\)", text))
    light, dark = theme_css().split("prefers-color-scheme: dark")
    assert used >= {"ink", "soft", "rule", "c0"}
    assert all(f"--{name}:" in light and f"--{name}:" in dark for name in used)
    # Colours are told apart by their values.
    values = re.findall(r"#[0-9a-f]{6}", light)
    assert len(values) == len(set(values))


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_charts_are_the_same_bytes(format):
    first = render_chart_file([lines()], format, "all")
    assert render_chart_file([lines()], format, "all") == first
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[format])
    assert chart_to_svg(boxes()) == chart_to_svg(boxes())


def test_a_file_needs_nothing_else():
    text = render_chart_file([dots(), lines()], "svg", "both").decode()
    root = xml.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert text.count("http") == 1
    assert "prefers-color-scheme" in text
    assert render_chart_file([], "svg").startswith(b"<?xml")


def test_values_are_where_the_axis_says():
    points = ((0.0, 0.0), (5.0, 4.0), (10.0, 8.0))
    chart = lines(
        x=Axis(label="x", ticks=(0.0, 10.0)),
        series=(ChartSeries(name="s", points=points, hints="abc"),),
    )
    root = tree(chart)
    places = [(float(one.get("x")), float(one.get("y"))) for one in root.iter("use")][:3]
    assert places[1] == pytest.approx([(places[0][i] + places[2][i]) / 2 for i in (0, 1)], abs=0.1)
    ticks = {one.text: float(one.get("x")) for one in root.iter("text") if one.text in ("0", "10")}
    assert ticks["10"] == pytest.approx(places[2][0], abs=0.1)
    hinted = [g[0].text for g in root.iter("g") if len(g) == 2 and g[1].tag == "use"]
    assert hinted == ["a", "b", "c"]


def test_a_grey_zone_reaches_from_end_to_end_behind_its_row():
    rows = [
        DistributionRow(label=name, values=((low, "a"), (high, "b")), ignored=(low, high))
        for name, low, high in (("first", -1.0, 2.0), ("second", 0.0, 1.0))
    ]
    root = tree(RowChart(title="t", x=Axis(label="change"), rows=tuple(rows)))
    dots = [float(one.get("x")) for one in root.iter("use")]
    filled = [one for one in root.iter("path") if "soft" in (one.get("fill") or "")]
    zones = [[float(word) for word in one.get("d").split() if word not in "MLz"] for one in filled]
    sides = [[min(zone[::2]), max(zone[::2])] for zone in zones]
    assert sides == [pytest.approx(sorted(dots[at : at + 2]), abs=0.1) for at in (0, 2)]
    assert max(zones[0][1::2]) == pytest.approx(min(zones[1][1::2]))


@pytest.mark.parametrize("make", KINDS)
def test_a_file_has_room_for_title_and_note(make):
    """Both are beside a chart in a page; of a note, the last line stands 4 above the end."""

    def height_of(root):
        return float(root.get("viewBox").split()[3])

    def of(note):
        root = xml.fromstring(render_chart_file([dataclasses.replace(make(), note=note)], "svg"))
        written = root.iter("{http://www.w3.org/2000/svg}text")
        ends = [float(one.get("y")) for one in written if "note" in one.text]
        return height_of(root), ends

    assert len(wrap_note("a note " * 20)) == 2
    bare, none = of("")
    assert (bare, none) == (
        height_of(xml.fromstring(chart_to_svg(make(), 560))) + HEAD + 2 * 12,
        [],
    )
    one, (end,) = of("a note")
    assert (one, end) == (bare + 15 + 4, bare - 12 + 15)
    assert of("a note " * 20) == (one + 15, [end, end + 15])


def across(root, vertical):
    """Places of the grid lines that run this way."""
    paths = [
        one.get("d").split() for one in root.iter("path") if "rule" in (one.get("stroke") or "")
    ]
    ends = [[float(word) for word in path if word not in "ML"] for path in paths if len(path) == 6]
    return [x if vertical else y for x, y, to, _ in ends if (x == to) == vertical]


def test_labels_are_broken_and_shortened():
    assert wrap_label("one two three", 9, 2) == ["one two", "three"]
    assert wrap_label("one two three four", 9, 2) == ["one two", "three…our"]
    assert wrap_label("one two three four five", 9, 1) == ["one t…ive"]
    assert wrap_label("", 9, 2) == [""]
    assert wrap_label("batch-norm x", 7, 2) == ["batch-n", "orm x"]
    assert (shorten_text("abcdef", 6), shorten_text("abcdefg", 6)) == ("abcdef", "abc…fg")
    assert [characters_in_width(width) for width in (0, CHARACTER * 10.5)] == [4, 10]
    # A text always fits into its own width.
    assert all(characters_in_width(CHARACTER * count) == count for count in range(4, 99))
    # Wide characters count as two.
    assert wrap_label("日本 語の 名前", 9, 2) == ["日本 語の", "名前"]
    assert shorten_text("日本語の名前です", 9) == "日本…です"
    assert pixel_width("日本a") == 5 * CHARACTER


def test_ticks_without_room_for_their_text_are_drawn_unless_the_chart_names_them():
    points = tuple((float(place), 1.0) for place in range(60))
    series = (ChartSeries(name="s", points=points, marks=False),)

    def chart(**names):
        ticks = tuple(float(place) for place in range(60))
        return tree(lines(x=Axis(label="x", ticks=ticks, **names), series=series))

    plain, named = chart(), chart(tick_texts=tuple(f"commit{place}" for place in range(60)))
    assert len(across(plain, vertical=True)) == 60
    shown = [text for text in texts(plain) if text.isdecimal()]
    assert 5 < len(shown) < 30
    shown = [text for text in texts(named) if text.startswith("commit")]
    assert len(across(named, vertical=True)) == len(shown) > 2
    assert shown[0] == "commit0"


@pytest.mark.parametrize(
    ("parts", "values", "ends"),
    [
        ({}, [], (0.995, 1.005)),
        ({}, [5.0, 5.0], (4.975, 5.025)),
        ({}, [0.0, 0.0], (-0.05, 0.05)),
        ({}, [-2.0, -2.0], (-2.01, -1.99)),
        ({}, [0.0, 10.0], (-0.5, 10.5)),
        ({"zero": True}, [-5.0, 5.0], (-5.5, 5.5)),
        ({"log": True}, [8.0], (8 / 2**0.5, 8 * 2**0.5)),
        ({"log": True}, [1.0, 100.0], (10**-0.1, 10**2.1)),
        ({"limit": 4.0}, [1.0, 9.0], (0.85, 4.15)),
        ({"zero": True}, [5.0, 10.0], (0.0, 10.5)),
        ({"least_span": 0.1}, [100.0, 100.1], (94.54725, 105.55275)),
    ],
)
def test_ends_of_axes(parts, values, ends):
    assert axis_limits(Axis(label="x", **parts), values) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("axis", "low", "high", "expected"),
    [
        ({}, 0, 100, ["0", "20", "40", "60", "80", "100"]),
        ({}, 0, 3.5e8, ["0", "1e+08", "2e+08", "3e+08"]),
        ({"log": True}, 0.9, 11, ["1", "2", "5", "10"]),
        ({"log": True}, 0.9, 2e4, ["1", "10", "100", "1,000", "10,000"]),
        ({"log": True}, 1.2, 1.8, "1.2|1.4|1.6|1.8"),
        ({"log": True, "base": 4, "format": "bytes"}, 1e3, 7e4, "1 KiB|4 KiB|16 KiB|64 KiB"),
        ({"format": "bytes"}, 0, 900 * 2**20, "0 B|200 MiB|400 MiB|600 MiB|800 MiB"),
        ({"format": "percent"}, 0, 1, ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        ({"ticks": (1.0, 2.0, 9.0), "tick_texts": ("a", "b", "c")}, 0, 5, ["a", "b"]),
    ],
)
def test_ticks(axis, low, high, expected):
    expected = expected.split("|") if isinstance(expected, str) else expected
    assert choose_ticks(Axis(label="x", **axis), low, high, 5)[1] == expected


def test_twelve_series_have_marks_and_colours_of_their_own_and_none_is_hidden():
    many = tuple(ChartSeries(name=str(i), points=((1.0, 1.0), (2.0, 2.0))) for i in range(12))
    root = tree(lines(series=many))
    shapes = [one.get("d") for defs in root.iter("defs") for one in defs]
    assert len(set(shapes)) == 12
    assert {variable(f"c{i}") for i in range(12)} <= {
        one.get("stroke") for one in root.iter("path")
    }
    values = [[float(value) for value in re.findall(r"-?[\d.]+", shape)] for shape in shapes[:3]]
    widths = [max(one) - min(one) for one in values]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[2]


DOT = {"values": ((1.0, ""),)}
BAND = {**DOT, "low": 0.0, "high": 2.0, "tone": "bad"}
GREY = {**DOT, "ignored": (-1.0, 1.0)}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        *(({}, ""), (DOT, "A dot is a process.")),
        ({**DOT, "centre": 1.0}, "A dot is a process, the stroke the median."),
        (BAND, "A dot is a process, the band its interval; red worse."),
        (GREY, "A dot is a process, the grey zone small changes."),
    ],
)
def test_the_key_names_only_marks_that_there_are(parts, expected):
    rows = (DistributionRow(label="a", **parts),)
    marks = {"centre": "the median", "band": "its interval", "ignored": "small changes"}
    assert legend_text(rows, dot="a process", **marks) == expected


def test_marks_are_links_only_to_addresses_of_the_web():
    addresses = ('https://x.y/a?b=<c>&d="e"', "javascript:alert(1)", "", "data:text/html,x", "/a")
    series = ChartSeries(
        name="speed",
        points=tuple((float(place), 1.0) for place in range(5)),
        hints=("first", "second", "third", "fourth", "fifth"),
        links=addresses,
    )
    chart = LineChart(title="t", x=Axis(label="x"), y=Axis(label="y"), series=(series,))
    root = tree(chart)
    points = [one for one in root.iter() if one.get("class") == "point"]
    assert [one.tag for one in points] == ["a", "g", "g", "g", "g"]
    first, *others = points
    assert first.get("href") == addresses[0]
    assert first.get("rel") == "noopener noreferrer"
    assert (first.get("role"), first.get("tabindex")) == (None, "0")
    assert first.find("title").text == first.get("aria-label") == "first"
    assert first.find("use") is not None
    assert not any("href" in one.attrib for one in others)
    assert chart_to_svg(chart) == chart_to_svg(chart)
    plain = dataclasses.replace(chart, series=(dataclasses.replace(series, links=()),))
    assert [one.tag for one in tree(plain).iter() if one.get("class") == "point"] == ["g"] * 5


NAMES = ("median over a point's processes; the stroke is their range", "level", "outlier")


@pytest.mark.parametrize(("width", "rows"), [(NARROW, 4), (HALF, 3), (WIDE, 2)])
def test_names_in_a_legend_are_whole_where_there_is_room_and_stay_inside(width, rows):
    points = ((1.0, 10.0), (2.0, 20.0))
    series = tuple(ChartSeries(name=name, points=points) for name in NAMES)
    root = xml.fromstring(chart_to_svg(lines(series=series), width))
    found = [one for one in root.iter("text") if one.text and one.text in " ".join(NAMES)]
    assert " ".join(one.text for one in found) == " ".join(NAMES)
    assert len({one.get("y") for one in found}) == rows
    assert all(float(one.get("x")) + len(one.text) * CHARACTER <= width for one in found)
    assert max(float(one.get("y")) for one in found) < float(root.get("viewBox").split()[3])


def test_names_longer_than_two_lines_are_shortened():
    series = (ChartSeries(name="word " * 40, points=((1.0, 1.0),)),)
    found = [one for one in texts(tree(lines(series=series))) if "word" in one]
    assert len(found) == 2
    assert "…" in found[1]


@pytest.mark.parametrize(
    ("axis", "values", "begins"),
    [
        ({}, (90.0, 100.0), True),
        ({"zero": True}, (90.0, 100.0), False),
        ({"log": True}, (90.0, 100.0), False),
        ({}, (0.0, 100.0), False),
        ({}, (-2.0, -1.0), False),
    ],
)
def test_a_chart_says_that_its_axis_does_not_begin_at_zero(axis, values, begins):
    series = ChartSeries(name="speed", points=tuple(enumerate(values)))
    root = tree(lines(y=Axis(label="y", **axis), series=(series,)))
    assert (NOT_FROM_ZERO in texts(root)) == begins
    assert begins_above_zero(Axis(label="y", **axis), values) == begins


def test_spans_count_as_values_of_an_axis():
    series = ChartSeries(name="speed", points=((1.0, 90.0),), spans=((0.0, 100.0),))
    assert NOT_FROM_ZERO not in texts(tree(lines(y=Axis(label="y"), series=(series,))))


@pytest.mark.parametrize("number", [35, 38, 41, 44])
def test_texts_of_ticks_keep_clear_of_one_that_ends_at_the_border(number):
    names = tuple(f"{place:07x}, 11-20" for place in range(number))
    points = tuple((float(place), 1.0) for place in range(number))
    axis = Axis(label="x", ticks=tuple(x for x, _ in points), tick_texts=names)
    root = tree(lines(x=axis, series=(ChartSeries(name="s", points=points, marks=False),)))
    ends = []
    for one in root.iter("text"):
        if one.text in names:
            width, x = len(one.text) * CHARACTER, float(one.get("x"))
            left = x - width * {"end": 1, "middle": 0.5}.get(one.get("text-anchor"), 0)
            ends.append((left, left + width))
    assert len(ends) > 1
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (500, ["0 B", "200 B", "400 B"]),
        (3 * 2**10, ["0 B", "1 KiB", "2 KiB", "3 KiB"]),
        (3 * 2**20, ["0 B", "1 MiB", "2 MiB", "3 MiB"]),
        (3 * 2**30, ["0 B", "1 GiB", "2 GiB", "3 GiB"]),
        (3 * 2**40, ["0 B", "1 TiB", "2 TiB", "3 TiB"]),
    ],
)
def test_ticks_of_bytes_are_whole_in_their_unit(high, expected):
    assert choose_ticks(Axis(label="x", format="bytes"), 0, high, 3)[1] == expected


def test_matplotlib_says_nothing_of_its_cache(tmp_path):
    """It would, if there is no home."""
    code = "from cnnbench.base.charts.figure import fallback_fonts; fallback_fonts()"
    (tmp_path / "none").write_text("")
    home = {"HOME": str(tmp_path / "none"), "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None}
    done = finished([sys.executable, "-c", code], environment={**home, "MPLCONFIGDIR": None})
    assert (done.stdout, done.stderr) == ("", "")
