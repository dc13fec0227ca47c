"""Charts of profiles, from rows put together by hand.

Tests cnnbench/judge/report/sections/roofline.py.
"""

import dataclasses

import pytest

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
