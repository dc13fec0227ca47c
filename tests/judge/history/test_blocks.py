"""Limits of the tables and charts of a history: rows, marks, links and axes.

Tests cnnbench/judge/history/blocks.py and cnnbench/judge/history/page.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnnbench.base.charts import HIGHER, LOWER
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.base.levels import SeriesLevel
from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.blocks import (
    blocks,
    build_page,
    commit_link,
    history_answers,
    history_section,
    is_commit,
    series_charts,
    trends_to_draw,
)
from cnnbench.judge.history.page import HistoryDocument, csv_rows, history_metrics, make_history
from cnnbench.judge.history.phrases import no_step_text
from cnnbench.judge.history.steps import LevelChange, Outlier, Trend
from cnnbench.judge.metrics.rules import Acceptance, Rules
from cnnbench.records.subject import Subject

SPEED = METRICS["throughput"]


@pytest.fixture
def flat(by_commit, series_of):
    """flat(COUNT): a series of runs of 100, 101, ... images/sec without changes, by commit."""

    def make(count, metric="throughput", per_commit=1, **parts):
        records = [
            by_commit(100.0 + index, f"c{index:02}", **parts)
            for index in range(count)
            for _ in range(per_commit)
        ]
        (series,) = series_of(records, metric)
        values = tuple(point.value for point in series.points)
        level = SeriesLevel(0, count, 100.0)
        return Trend(series=series, enough=True, levels=(level,), fitted=values, steps=())

    return make


def changed(found, index, change=-0.1, **more):
    """The series with a change of its level at a point."""
    points = found.series.points
    levels = SeriesLevel(0, index, 100.0), SeriesLevel(index, len(points), 100 * (1 + change))
    values = {
        "index": index,
        "change": change,
        "before": levels[0],
        "after": levels[1],
        "worse": change < 0,
        "stands": True,
        "last_good": points[index - 1],
        "first_bad": points[index],
        "range_start": points[index - 1],
        "earliest": points[index],
        "latest": points[index],
        "facts": (),
        **more,
    }
    return replace(found, levels=levels, steps=(*found.steps, LevelChange(**values)))


def section(document, key, **more):
    return next((one for one in blocks(document, drawn=False, **more) if one.key == key), None)


def names_of(table):
    return [row[0].text for row in table.rows]


# Tables


@pytest.mark.parametrize(
    ("last", "rows", "hidden"), [(0, 5, None), (1, 1, "4"), (4, 4, "1"), (5, 5, None), (9, 5, None)]
)
def test_the_last_points_of_a_series(flat, last, rows, hidden):
    table, *more = section(HistoryDocument(SPEED, [flat(5)]), "points", last=last).blocks
    assert names_of(table) == [f"c0{number}" for number in range(5 - rows, 5)]
    assert [hidden in text.text for text in more] == [True] * (hidden is not None)


@pytest.mark.parametrize(("most", "rows"), [(None, (3, 3)), (6, (3, 3)), (5, (2, 3)), (2, (2,))])
def test_the_newest_points_of_all_series(flat, most, rows):
    document = HistoryDocument(SPEED, [flat(3), flat(3, flags={"batch_size": 4})])
    contents = section(document, "points", most=most).blocks
    tables = [block for block in contents if isinstance(block, Table)]
    assert tuple(len(table.rows) for table in tables) == rows
    texts = [block.text for block in contents if isinstance(block, Paragraph)]
    assert [(str(most) in text, "6" in text) for text in texts] == [(True, True)] * (sum(rows) < 6)
    assert names_of(tables[-1])[-1] == "c02"


def test_a_range_needs_two_processes(by_commit, series_of):
    records = [by_commit(100.0, "a"), by_commit(110.0, "b"), by_commit(120.0, "b")]
    found = trend(series_of(records)[0], SPEED)
    (table,) = section(HistoryDocument(SPEED, [found]), "points").blocks
    titles = [title for title, _, _ in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [row["range"].value for row in rows] == [None, pytest.approx(10)]
    assert [row["processes"].value for row in rows] == [1, 2]
    assert [row["median, images/sec"].value for row in rows] == pytest.approx([100, 115])


def test_marks_of_points(flat):
    found = changed(flat(6), 2)
    found = changed(found, 4, 0.2, kind="trend")
    found = replace(found, outliers=(Outlier(2, -0.3), Outlier(5, 0.25)))
    (table,) = section(HistoryDocument(SPEED, [found]), "points").blocks
    marks = [row[-1] for row in table.rows]
    assert [(mark.tone, mark.mark) for mark in marks] == [
        *(("", ""), ("", ""), ("bad", "-"), ("", ""), ("good", "+"), ("unsure", "?"))
    ]
    assert ("step -10.0 %" in marks[2].text, "outlier -30.0 %" in marks[2].text) == (True, True)
    assert marks[4].text == "trend +20.0 %"
    assert marks[5].text == "outlier +25.0 %"


def test_series_that_are_too_short_are_told_once(flat):
    short = replace(flat(3), enough=False)
    document = HistoryDocument(SPEED, [short])
    assert section(document, "steps") is None
    # A section of a report has no answer that says it.
    toned = [getattr(block, "tone", "") for block in history_section(document).blocks]
    assert toned == ["", "unsure", ""]
    mixed = section(HistoryDocument(SPEED, [short, flat(6)]), "steps").blocks
    assert [block.tone for block in mixed] == ["", "unsure"]


# Answers


def test_answers_name_five_changes(flat):
    def answer(count, **more):
        trends = [
            changed(flat(9, flags={"batch_size": number}), 2 + number % 7, -0.1, **more)
            for number in range(1, count + 1)
        ]
        return history_answers(HistoryDocument(SPEED, trends))[0]

    assert len(answer(5).details) == 5
    assert len(answer(6).details) == 6
    assert "1" in answer(6).details[-1]
    assert answer(6).tone == "bad"
    assert answer(6, stands=False).tone == "good"


def test_gains_are_answers_if_they_are_asked_for(flat):
    trends = [changed(flat(6), 2), changed(flat(6, flags={"batch_size": 4}), 3, 0.2)]
    plain = HistoryDocument(SPEED, trends)
    assert (plain.regressions, plain.gains, plain.failed_on) == ((0,), (), ())
    assert len(history_answers(plain)[0].details) == 1
    asked = HistoryDocument(SPEED, trends, fail_on=("slower", "faster"))
    assert (asked.regressions, asked.gains) == ((0,), (1,))
    assert asked.failed_on == ("slower", "faster")
    assert len(history_answers(asked)[0].details) == 2
    better = HistoryDocument(SPEED, trends[1:], fail_on=("slower", "faster"))
    assert (better.gains, better.failed_on) == ((0,), ("faster",))
    undone = [changed(flat(6), 3, 0.2, stands=False)]
    assert HistoryDocument(SPEED, undone, fail_on=("faster",)).failed_on == ()


@pytest.mark.parametrize(("until", "accepted"), [("2999-01-01", True), ("2020-01-01", False)])
def test_accepted_regressions_do_not_count(flat, until, accepted):
    rules = Rules(accept=(Acceptance(commit="c02", reason="x", until=until),))
    trends = [changed(flat(6), 2), changed(flat(6, flags={"batch_size": 4}), 3)]
    found = HistoryDocument(SPEED, trends, rules=rules)
    assert found.accepted == ((0,) if accepted else ())
    assert found.regressions == ((1,) if accepted else (0, 1))
    alone = history_answers(HistoryDocument(SPEED, trends[:1], rules=rules))[0]
    assert alone.tone == ("good" if accepted else "bad")


def test_the_head_of_a_page(flat, by_commit, series_of):
    trends = [flat(6), flat(4, flags={"batch_size": 4})]
    report = build_page(HistoryDocument(SPEED, trends))
    assert dict(report.highlights)["points"] == "10"
    assert report.title.endswith(", 2026-11-20")
    assert [one.key for one in report.sections] == ["steps", "series", "points"]
    later = by_commit(100.0, "d", started_at="2027-01-02T00:00:00+00:00")
    first = by_commit(100.0, "c", started_at="2026-12-31T00:00:00+00:00")
    both = [trend(one, SPEED) for one in series_of([first, later])]
    report = build_page(HistoryDocument(SPEED, both))
    assert report.title.endswith(", 2026-12-31 to 2027-01-02")
    assert not build_page(HistoryDocument(SPEED, [])).title.endswith(", ")


# Links


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("a" * 6, False),
        ("a" * 7, True),
        ("0123456789abcdef", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("abcdefg", False),
        ("A" * 7, False),
    ],
)
def test_names_of_commits(by_commit, series_of, name, is_one):
    (point,) = series_of([by_commit(100.0, name)])[0].points
    assert is_commit(point) == is_one
    link = commit_link(point, "https://x.org/{commit}/{commit}")
    assert link == (f"https://x.org/{name}/{name}" if is_one else "")
    assert commit_link(point, "") == ""
    # The name of a day is no commit, whatever was measured.
    (day,) = series_of([by_commit(100.0, name)], by="day")[0].points
    assert not is_commit(day)


@pytest.mark.parametrize(
    ("repository", "is_hosted"),
    [
        ("git.example.org/deep/er/nets.py", True),
        ("nets", False),  # the name of a folder
        ("javascript:alert(1)//a.b/c", False),
        ('a.b/c"><script>alert(1)</script>', False),
        ("a.b/c?x={commit}", False),
        ("user@a.b/c", False),
        ("..//a", False),
    ],
)
def test_without_an_address_commits_lead_to_the_repository_of_their_records(
    by_commit, series_of, repository, is_hosted
):
    subject = Subject(repository=repository, revision="a" * 40)
    (point,) = series_of([by_commit(100.0, subject=subject)])[0].points
    assert commit_link(point, "") == (f"https://{repository}/commit/{'a' * 40}" * is_hosted)


# Charts


def test_the_most_important_series_are_drawn(flat):
    def series(number, **more):
        started = f"2026-11-{10 + number:02}T00:00:00+00:00"
        return flat(3, flags={"batch_size": number}, started_at=started, **more)

    plain = [series(number) for number in range(1, 14)]
    assert trends_to_draw(plain) == plain[1:]
    assert trends_to_draw(plain[:12]) == plain[:12]
    gain = changed(plain[0], 1, 0.1)
    assert trends_to_draw([gain, *plain[1:]]) == [gain, *plain[2:]]
    # A regression comes before gains, even the newest ones.
    gains = [changed(one, 1, 0.1) for one in plain[1:]]
    worse = changed(plain[0], 1)
    assert trends_to_draw([worse, *gains]) == [worse, *gains[1:]]
    undone = changed(plain[0], 1, stands=False)
    assert trends_to_draw([undone, *gains]) == gains


def test_all_charts_together_have_at_most_so_many_marks(flat):
    found = flat(10)
    counts = {
        most: [len(chart.series[0].points) for chart in series_charts([found] * 2, SPEED, "", most)]
        for most in (None, 20, 19, 10, 4)
    }
    assert counts == {None: [10, 10], 20: [10, 10], 19: [5, 5], 10: [5, 5], 4: [2, 2]}
    assert series_charts([], SPEED, "", 10) == ()


def test_marks_of_several_points(flat):
    found = changed(flat(7), 3)
    (chart,) = series_charts([found], SPEED, "", 4)
    (measured, level) = chart.series
    # Groups of two end with a level: 0 and 1, 2, 3 and 4, 5 and 6.
    assert measured.points == ((0.5, 100.5), (2.0, 102.0), (3.5, 103.5), (5.5, 105.5))
    assert [span and pytest.approx(span) for span in measured.spans] == [
        *((100, 101), None, (103, 104), (105, 106))
    ]
    assert measured.links == ("",) * 4
    assert [*level.points] == [
        (place, pytest.approx(100 + place)) for place in (0.0, 2.0, 3.0, 6.0)
    ]
    assert (level.reference, measured.reference) == (True, False)
    (event,) = chart.events
    assert (event.x, event.gain) == (2.5, False)
    (gain,) = series_charts([changed(flat(7), 3, 0.1)], SPEED)
    assert gain.events[0].gain
    assert gain.events[0].mark != event.mark


def test_marks_of_outliers(flat):
    found = replace(flat(7), outliers=(Outlier(2, -0.25),))
    (chart,) = series_charts([found], SPEED)
    measured, _, outlier = chart.series
    assert outlier.points == ((2.0, 102.0),)
    assert not outlier.line
    assert [bool(hint) for hint in measured.hints] == [True, True, False, *[True] * 4]
    assert len(series_charts([flat(7)], SPEED)[0].series) == 2


@pytest.mark.parametrize(
    ("metric", "format", "better", "least"),
    [
        ("throughput", "number", HIGHER, 0.1),
        ("step_seconds", "number", LOWER, 0.1),
        ("final_loss", "number", None, None),
    ],
)
def test_axes_of_values(flat, metric, format, better, least):
    (chart,) = series_charts([flat(4, metric)], METRICS[metric])
    assert chart.y.format == format
    if better is not None:
        assert (chart.y.better, chart.y.least_span) == (better, least)
    else:
        assert chart.y.better in (HIGHER, LOWER)


def test_memory_is_drawn_in_mebibytes(lenet_runs, series_of):
    records = lenet_runs().with_memory(100, 200)
    (series,) = series_of(records, "peak_memory_bytes", by="run")
    found = trend(series, METRICS["peak_memory_bytes"])
    (chart,) = series_charts([found], METRICS["peak_memory_bytes"])
    assert [value for _, value in chart.series[0].points] == [100, 200]
    assert {value for _, value in chart.series[1].points} <= {100, 150, 200}
    (one,) = series_charts([found], METRICS["peak_memory_bytes"], "", 1)
    assert one.series[0].spans == ((100, 200),)
    assert chart.y.format == "number"


@pytest.mark.parametrize(
    ("days", "form"),
    [
        # Times are shown if there are at least two points of each day, of up to six ticks.
        (("20", "20"), "11-20 00:00"),
        (("20", "21"), "2026-11-20"),
        (("20", "20", "21", "21"), "11-20 00:00"),
        (("20", "20", "21"), "2026-11-20"),
        (("20", "21", "22") * 2, "11-20 00:00"),
        (("20", "20", "21", "22", "23", "23", "23", "23"), "2026-11-20"),
    ],
)
def test_days_and_times_on_the_axis(by_commit, series_of, days, form):
    records = [by_commit(100.0, started_at=f"2026-11-{day}T00:00:00+00:00") for day in sorted(days)]
    (series,) = series_of(records, by="run")
    (chart,) = series_charts([trend(series, SPEED)], SPEED)
    assert chart.x.ticks == tuple(float(number) for number in range(len(days)))
    assert (chart.x.tick_texts[0], len(chart.x.tick_texts)) == (form, len(days))


@pytest.mark.parametrize(("year", "form"), [("2026", "11-20"), ("2027", "2026-11-20")])
def test_commits_of_several_years_have_the_year(by_commit, series_of, year, form):
    records = [
        by_commit(100.0, f"{number}" * 40, started_at=f"{year}-11-2{number}T00:00:00+00:00")
        for number, year in enumerate(("2026", year))
    ]
    (series,) = series_of(records)
    (chart,) = series_charts([trend(series, SPEED)], SPEED)
    assert chart.x.tick_texts[0] == f"{'0' * 7}, {form}"


def test_charts_are_made_unless_they_are_not_shown(flat):
    document = HistoryDocument(SPEED, [flat(6)])
    assert "series" in [one.key for one in blocks(document)]
    assert "series" not in [one.key for one in blocks(document, drawn=False)]
    groups = [block for block in history_section(document).blocks if isinstance(block, ChartGroup)]
    assert [len(group.charts) for group in groups] == [1]
    assert groups[0].note == ""


# The document and its rows


def test_rows_of_points(flat):
    found = changed(flat(4, per_commit=2), 2, 0.2, stands=False)
    found = replace(found, outliers=(Outlier(3, 0.5),))
    rows = [*csv_rows(HistoryDocument(SPEED, [found]))]
    assert [row["value"] for row in rows] == pytest.approx([100, 101, 102, 103])
    assert [row["processes"] for row in rows] == [2] * 4
    assert [row["step"] for row in rows] == [False, False, True, False]
    assert [row["change"] for row in rows] == [None, None, 0.2, None]
    assert [(row["worse"], row["stands"]) for row in rows][2] == (False, False)
    assert [row["outlier"] for row in rows] == [False, False, False, True]
    assert [row["kind"] for row in rows] == [None, None, "step", "outlier"]
    assert rows[0]["side"] is None
    assert rows[0]["commit"] == "c00"


@pytest.mark.parametrize(("facts", "known"), [({"tensorflow_version": "2.20"}, "2.20"), ({}, None)])
def test_versions_of_tensorflow_are_in_rows(flat, facts, known):
    rows = csv_rows(HistoryDocument(SPEED, [flat(2, facts={"tensorflow_version": None, **facts})]))
    assert [row["tensorflow_version"] for row in rows] == [known] * 2


def test_points_for_other_programs(flat):
    exported = history_metrics(HistoryDocument(SPEED, [flat(3), flat(2, flags={"batch_size": 4})]))
    assert [one.point for one in exported] == ["c00", "c01", "c02", "c00", "c01"]
    assert [one.current for one in exported] == [False, False, True, False, True]


def test_a_history_in_short(flat):
    text = repr(HistoryDocument(SPEED, [changed(flat(5), 2), flat(4)]))
    assert [word in text for word in ("throughput", "2 series", "9 points", "1 step")] == [True] * 4


@pytest.mark.parametrize(("threshold", "steps"), [(None, 1), (5, 1), (30, 0)])
def test_thresholds_of_a_history(by_commit, series_of, threshold, steps):
    records = by_commit.history([100.0] * 8 + [90.0] * 8, scatter=0.001, per_commit=1)
    series = series_of(records)
    found = make_history(series, SPEED, Rules(), None, threshold=threshold)
    assert [len(one.steps) for one in found.series] == [steps]


def test_marks_of_points_and_of_groups_are_named(flat):
    names = [series_charts([flat(7)], SPEED, "", most)[0].series[0].name for most in (None, 7, 4)]
    assert names[0] == names[1]
    assert ["consecutive" in name for name in names] == [False, False, True]


def test_a_series_without_changes_says_why(flat):
    long, short = flat(6), replace(flat(3), enough=False)
    assert no_step_text(long, SPEED) == "no step"
    assert no_step_text(short, SPEED).startswith("3 points; ")
    assert no_step_text(changed(flat(6), 3), SPEED) == ""
