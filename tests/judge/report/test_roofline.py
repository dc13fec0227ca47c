"""Charts of profiles, from rows put together by hand.

Tests cnnbench/judge/report/sections/roofline.py.
"""

import dataclasses

import pytest
from pages import report_of

from cnnbench.base.charts import HIGHER, LOWER
from cnnbench.base.document import ChartGroup, Table
from cnnbench.judge.report.sections.roofline import roofline_chart, roofline_sections
from cnnbench.records.profiles import FORWARD, TO_KERNEL
from cnnbench.records.roofline import Machine, Roofline, RooflineRow, sort_roofline_rows

MACHINE = Machine(flops_per_sec=100e9, bytes_per_sec=10e9)


def row(layer, kind, direction, seconds, flops=10**9):
    return RooflineRow(layer, kind, direction, seconds, flops, 10**8, 0.001, seconds)


@pytest.fixture
def roofline(lenet_runs):
    """Convolutions of 100, 25 and 4 ms, six products of about 0.9 ms, and a row without FLOPs."""
    rows = [
        row("a", "convolution", FORWARD, 0.100),
        row("a", "convolution", TO_KERNEL, 0.025),
        row("b", "convolution", FORWARD, 0.004),
        *(row(f"c{number}", "product", FORWARD, 0.0009 + number * 1e-6) for number in range(6)),
        row("d", "ReLU", FORWARD, 0.050, flops=0),
    ]
    return Roofline(sort_roofline_rows(rows), MACHINE, 0.2, 0.2, lenet_runs()(100))


def test_the_area_of_a_point_is_its_time(roofline):
    _, forward, to_kernel, products = roofline_chart(roofline, "title").series
    # 5 pixels and up to 15 more: the square root of the share of the longest time.
    assert forward.diameters == (20, 8)
    assert to_kernel.diameters == (12,)
    assert set(products.diameters) == {6}


def test_points_have_the_colour_of_their_kind_and_the_mark_of_their_direction(roofline):
    chart = roofline_chart(roofline, "title")
    styles = [(one.name, one.style, one.mark) for one in chart.series[1:]]
    assert styles == [
        (f"convolution, {FORWARD}", 0, 0),
        (f"convolution, {TO_KERNEL}", 0, 1),
        (f"product, {FORWARD}", 1, 0),
    ]


def test_the_six_longest_points_are_named(roofline):
    chart = roofline_chart(roofline, "title")
    named = [text for one in chart.series[1:] for text in one.texts if text]
    assert sorted(named) == ["a", "a", "b", "c3", "c4", "c5"]
    assert len(chart.series[3].texts) == 6
    assert " 6 " in chart.note


def test_the_roof_bends_where_memory_is_as_fast_as_arithmetic(roofline):
    roof, *_ = roofline_chart(roofline, "title").series
    # 10 FLOP per byte; a quarter and four times of it are the least that the roof spans.
    assert roof.points == ((2.5, 25.0), (10.0, 100.0), (40.0, 100.0))
    assert roof.reference


def test_the_roof_spans_all_points(roofline):
    rows = [row("a", "product", FORWARD, 0.1, flops) for flops in (10**8, 10**10)]
    roof, *_ = roofline_chart(dataclasses.replace(roofline, rows=tuple(rows)), "title").series
    # 1 and 100 FLOP per byte.
    assert roof.points == ((1.0, 10.0), (10.0, 100.0), (100.0, 100.0))


def test_points_are_rates_and_times(roofline):
    _, forward, *_ = roofline_chart(roofline, "title").series
    assert forward.points == ((10.0, pytest.approx(10.0)), (10.0, pytest.approx(250.0)))
    assert forward.hints == (
        "a: 100.0 ms, 1.0 % of the estimate",
        "b: 4.000 ms, 25.0 % of the estimate",
    )


@pytest.mark.parametrize(
    ("most", "full", "shown", "title", "more"),
    [
        (2, False, 2, "rows, the 2 with the most time to win", "8 rows more, with 27.00 ms to win"),
        (9, False, 9, "rows, the 9 with the most time to win", "1 row more, "),
        (10, False, 10, "rows, all", ""),
        (0, False, 10, "rows, all", ""),
        (2, True, 2, "net: rows, the 2 with the most time to win", ""),
    ],
)
def test_rows_of_a_result(roofline, most, full, shown, title, more):
    rows = dataclasses.replace(roofline, rows=sort_roofline_rows(roofline.rows))
    _, listed, *_ = roofline_sections(rows, "net", most, full)
    table, *text = listed.blocks
    assert (len(table.rows), table.title, table.folded) == (shown, title, full)
    assert bool(text) == bool(more)
    assert more in "".join(one.text for one in text)


def cells(document, table, row, most=0, full=False):
    """Cells of a row of a table by title of the column."""
    tables = [
        block
        for one in roofline_sections(document, "net", most, full)
        for block in one.blocks
        if isinstance(block, Table)
    ]
    titles = [title for title, _, _ in tables[table].columns]
    return dict(zip(titles, tables[table].rows[row], strict=True))


def test_numbers_of_a_row(roofline):
    found = cells(roofline, 0, 0)
    numbers = {name: cell.value for name, cell in found.items() if cell.value is not None}
    # 99 ms of 100 are above the estimate of 1 ms.
    assert numbers == {
        "ms": pytest.approx(100),
        "of the step": pytest.approx(0.1),
        "GFLOP": pytest.approx(1),
        "moved": 10**8,
        "FLOP/byte": pytest.approx(10),
        "GFLOP/s": pytest.approx(10),
        "estimate, ms": pytest.approx(1),
        "of the estimate": pytest.approx(0.01),
        "to win, ms": pytest.approx(99),
    }
    place = [one.layer for one in roofline.rows].index("d")
    without = cells(roofline, 0, place)
    assert [without[name].value for name in ("GFLOP", "FLOP/byte", "GFLOP/s")] == [None] * 3


@pytest.mark.parametrize("full", [False, True])
def test_sums_of_kinds_end_with_all_operations(roofline, full):
    first = cells(roofline, 1, 0, full=full)
    assert (first["kind"].text, first["direction"].text) == ("convolution", FORWARD)
    assert first["ms"].value == pytest.approx(104)
    last = cells(roofline, 1, -1, full=full)
    assert last["ms"].value == pytest.approx(184.415)


def test_a_row_without_time_has_no_rate(roofline):
    rows = (*roofline.rows, row("z", "product", FORWARD, 0.0))
    document = dataclasses.replace(roofline, rows=rows)
    assert cells(document, 0, -1)["GFLOP/s"].value is None
    assert len(roofline_chart(document, "title").series) == len(
        roofline_chart(roofline, "title").series
    )


@pytest.mark.parametrize(("count", "drawn"), [(12, 12), (13, 12)])
def test_twelve_layers_are_bars(roofline, count, drawn):
    rows = [row(f"l{n:02}", "product", FORWARD, 0.001 * (20 - n)) for n in range(count)]
    document = dataclasses.replace(roofline, rows=tuple(rows))
    first, *_ = roofline_sections(document, "net", 0)
    (group,) = [block for block in first.blocks if isinstance(block, ChartGroup)]
    roof, bars = group.charts
    assert len(bars.rows) == drawn
    assert (bars.bars, bars.x.zero, bars.x.better) == (True, True, LOWER)
    assert (bars.rows[0].label, bars.rows[0].centre) == ("l00", pytest.approx(20))
    assert bars.rows[0].values[0][0] == pytest.approx(1)
    assert (roof.x.log, roof.y.log, roof.y.better) == (True, True, HIGHER)
    assert [one.line for one in roof.series[1:]] == [False]
    assert ("12" in bars.title) == (count >= 12)
    assert ("13" in bars.title) == (count == 13)
    assert group.pairs


def answers(*documents):
    report = report_of(studies=documents)
    return [one for one in report.answers if one.name.startswith("Roofline")]


def test_answers_of_one_roofline_and_of_several(lenet_runs):
    runs = lenet_runs()
    rows = (
        row("a", "product", FORWARD, 0.05),
        row("b", "product", FORWARD, 0.04),
        row("c", "product", FORWARD, 0.03),
        row("d", "product", FORWARD, 0.02),
    )
    made = [Roofline(rows, MACHINE, 0.2, 0.19, runs(100)) for _ in range(2)]
    (alone,) = answers(made[0])
    # A sentence on the step, and three layers with time to win: each could take 10 ms.
    assert len(alone.details) == 4
    assert [text.split()[0] for text in alone.details[1:]] == ["40.00", "30.00", "20.00"]
    assert ("200.0" in alone.text, "40.00" in alone.text) == (True, True)
    assert [value in alone.details[0] for value in ("140.0", "60.00", "30.0", "190.0")] == [
        *(True, True, True, True)
    ]
    assert [len(one.details) for one in answers(*made)] == [1, 1]
    # As fast as estimated, there is nothing to win.
    quick = (row("a", "product", FORWARD, 0.001), row("b", "product", FORWARD, 0.0009))
    (none,) = answers(dataclasses.replace(made[0], rows=quick))
    assert len(none.details) == 1


def test_processes_of_rooflines_are_rows(lenet_runs):
    document = Roofline(
        (row("a", "product", FORWARD, 0.05),), MACHINE, 0.2, 0.19, lenet_runs()(100)
    )
    (found,) = rows_of(document)
    assert [found[name].value for name in found if name.endswith("ms")] == pytest.approx(
        [190, 200, 150, 10]
    )
    assert found["of the estimate"].value == pytest.approx(0.2)
    assert found["GFLOP per step"].value == pytest.approx(1)
    assert found["they meet at, FLOP/byte"].value == pytest.approx(10)
    # Operations may overlap, so that their sum is longer than the step.
    over = dataclasses.replace(document, step_seconds=0.04)
    (found,) = rows_of(over)
    assert found["no operation runs, ms"].value == 0


def rows_of(*documents):
    report = report_of(studies=documents)
    (found,) = [one for one in report.sections if one.key == "roofline"]
    table = next(block for block in found.blocks if isinstance(block, Table))
    titles = [title for title, _, _ in table.columns]
    return [dict(zip(titles, cells, strict=True)) for cells in table.rows]
