"""Answers, curves and rows of reductions, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from pages import report_of, rows, section

from cnnbench.base.charts import HIGHER
from cnnbench.base.document import Paragraph
from cnnbench.records.all_reduce import Copying


@pytest.mark.parametrize(("count", "details"), [(2, 2), (3, 3), (4, 4)])
def test_three_sizes_are_named(reductions, count, details):
    points = [reductions.point(bytes=4096 * (1 + n)) for n in range(count)]
    (answer,) = report_of(reductions=[reductions(*points)]).answers
    assert f"{count} sizes" in answer.text
    assert len(answer.details) == details
    if count > 3:
        assert answer.details[-1].startswith(f"and {count - 3} more")


def test_failures_come_before_the_fastest(reductions):
    point = reductions.point
    made = [point(bytes=4096), point(bytes=8192), point(bytes=4096, spec="copy", wrong=2)]
    (answer,) = report_of(reductions=[reductions(*made)]).answers
    assert answer.tone == "bad"
    assert len(answer.details) == 3
    assert "2 sizes" in answer.details[0]
    report = report_of(reductions=[reductions(*made, point(error="x"))])
    (first, *_) = [one for one in section(report, "allreduce").blocks if isinstance(one, Paragraph)]
    assert [one.tone for one in section(report, "allreduce").blocks if isinstance(one, Paragraph)][
        1:
    ] == ["bad"]
    assert "2 reductions" in report.answers[0].text
    assert first.tone == ""


def test_records_of_several_starts_are_told_apart(reductions):
    one = report_of(reductions=[reductions(6.0)])
    both = report_of(reductions=[reductions(6.0), reductions(7.0)])
    assert [answer.name for answer in one.answers] == ["All-reduce"]
    assert len({answer.name for answer in both.answers}) == 2
    titles = [chart.title for chart in both.charts]
    assert len({*titles}) == len(titles) == 2
    assert "2026" not in one.charts[0].title
    assert "measured (UTC)" not in rows(one, "allreduce")[0]


@pytest.mark.parametrize(
    ("placed", "title"), [(True, "4 cpu devices, float32"), (False, "4 devices, float32")]
)
def test_titles_of_charts(reductions, placed, title):
    record = reductions(6.0)
    record = record if placed else dataclasses.replace(record, placement=None)
    (chart,) = report_of(reductions=[record]).charts
    assert chart.title.startswith(title)


def test_estimates_by_copies(reductions):
    # Four devices copy 4096 bytes each in 4 us: 4.096 GB/s. 6 S bytes take 6 us.
    copies = [
        Copying(bytes=size, devices=4, seconds=(1e-6 * size / 1024,)) for size in (4096, 8192)
    ]
    point = reductions.point
    made = [point(None, bytes=size, seconds=(12e-6 * size / 4096,)) for size in (4096, 8192, 16384)]
    report = report_of(reductions=[reductions(*made, copies=tuple(copies))])
    bus, algorithm = report.charts
    *_, estimate = bus.series
    assert estimate.reference
    # 4096 bytes in 12 us are 0.3413 GB/s, the bus bandwidth is 1.5 times as much.
    shares = [row.get("of the copy estimate") for row in rows(report, "allreduce")]
    assert shares == ["50 %", "50 %", "-"]
    assert [*estimate.points] == [
        (size, pytest.approx(2 * 1.5 * 4096 / 12e-6 / 1e9)) for size in (4096, 8192)
    ]
    assert [*algorithm.series[-1].points] == [
        (size, pytest.approx(2 * 4096 / 12e-6 / 1e9)) for size in (4096, 8192)
    ]
    assert (bus.x.base, bus.x.log, bus.y.log, bus.y.better) == (4, True, True, HIGHER)
    single = report_of(reductions=[reductions(made[0], copies=tuple(copies))])
    (bars,) = single.charts
    assert bars.limit[0] == pytest.approx(2 * 1.5 * 4096 / 12e-6 / 1e9)


def test_times_of_a_row(reductions):
    seconds = tuple(1e-6 * (1 + number) for number in range(100))
    (row,) = rows(
        report_of(reductions=[reductions(reductions.point(None, seconds=seconds))]), "allreduce"
    )
    assert [row[name] for name in ("median time, µs", "99 %, µs", "longest, µs")] == [
        *("50.50", "99.00", "100.0")
    ]
    assert row["tensors"] == "1"
    wrong = reductions.point(wrong=1234567)
    (row,) = rows(report_of(reductions=[reductions(wrong)]), "allreduce")
    assert row["#wrong"] == "1,234,567"
