"""What the history prints, draws and exports; its wording is in golden/*.

Tests cnnbench/judge/history/page.py, cnnbench/judge/history/blocks.py,
cnnbench/judge/history/phrases.py and, by the changes that series share,
cnnbench/judge/history/steps.py. UPDATE_GOLDEN=1 writes the files anew.
"""

import csv
import io
import json
import math
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from golden import golden

from cnnbench import __version__
from cnnbench.base.charts import HIGHER, LineChart
from cnnbench.base.document import ChartGroup
from cnnbench.base.levels import RecognizedNoise
from cnnbench.judge.compare import SkippedFile
from cnnbench.judge.history import METRICS, blocks, trend
from cnnbench.judge.history.blocks import terminal_text
from cnnbench.judge.history.page import (
    HistoryDocument,
    csv_text,
    history_metrics,
    make_history,
)
from cnnbench.judge.history.phrases import (
    accepted_commit_remarks,
    history_remarks,
    other_metric_remarks,
)
from cnnbench.judge.metrics.rules import Acceptance, Rules
from cnnbench.judge.report import exports, render
from cnnbench.records.exports import EXPORTS
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden"
SPEED = METRICS["throughput"]
HOSTILE = "=</style><script>alert(1)</script>\" onload='x'\n\x1b[31m@you"


@pytest.fixture(scope="module")
def trends(make_by_commit, series_of):
    by_commit = make_by_commit()
    found = by_commit.history([100.0] * 8 + [90.0] * 6, facts={"tensorflow_version": "2.20"})
    for index in range(6):
        found.append(
            by_commit(
                50.0 + index % 2, flags={"model": "resnet20"}, facts={"git_commit": f"{index}" * 40}
            )
        )
    found.append(by_commit(1.0, "c099", error="no memory"))
    return [trend(one, SPEED) for one in series_of(found)]


@pytest.fixture(scope="module")
def told(trends, make_by_commit, series_of):
    """Series in which each kind of change, of noise and of text about them occurs."""
    by_commit = make_by_commit()

    def series(name, values, facts=None, **parts):
        parts = {"flags": {"model": name}, "scatter": 0.002, "per_commit": 1, **parts}
        return by_commit.history(values, facts=facts, **parts)

    flat = [100.0] * 8
    records = [
        *series("better", [*flat, *[110.0] * 8]),
        *series("drifting", [100.0] * 10 + [100 * 0.98**n for n in range(1, 16)] + [73.9] * 8),
        *series("outlying", [*flat, 75.0, *flat]),
        *series("short", flat[:3]),
        *series("undone", [100.0] * 15 + [93.0] * 11 + [100.0] * 14),
        *series("shared", [*flat, *[80.0] * 8]),
        *series("sharing", [*flat, *[70.0] * 8]),
        *series("unknown", flat, {f"fact{number}": "1" for number in range(6)}),
    ]
    later = {f"fact{number}": "2" for number in range(6)}
    records += [
        by_commit(50.0, f"d{number}", flags={"model": "unknown"}, facts=later)
        for number in range(8)
    ]
    speeds = [100.0, 71.0, 101.0, 99.0, 70.0, 100.0, 69.0, 102.0, 98.0, 70.5]
    records += [
        by_commit(speed, f"c{number}", flags={"model": "two_states"})
        for number, speed in enumerate(speeds)
    ]
    draw = random.Random(3)
    hosts = [draw.choice(["box1", "box1", "box2"]) for _ in range(40)]
    records += [
        by_commit(
            (92.0 if host == "box2" else 100.0) * math.exp(draw.gauss(0, 0.015)),
            f"c{number:03}",
            flags={"model": "two_machines"},
            facts={"hostname": host},
        )
        for number, host in enumerate(hosts)
    ]
    for number in range(16):
        seconds = (0.08, 0.08, 0.2) * 10 if number > 7 else (0.08,) * 30
        parts = {"flags": {"model": "pausing"}, "step_seconds": seconds, "losses": ()}
        records.append(by_commit(commit=f"c{number:03}", **parts))
    found = [*trends, *(trend(one, SPEED) for one in series_of(records))]
    like = trend(series_of(by_commit.history(flat))[0], SPEED)
    return [*found, replace(like, noise=RecognizedNoise(correlation=0.61))]


@pytest.fixture
def hostile(by_commit, series_of):
    flags = {"model": HOSTILE, "data_name": HOSTILE}
    facts = {"cpu_model": HOSTILE, "hostname": HOSTILE, "git_commit": HOSTILE}
    found = by_commit.history([100.0] * 6, flags=flags, facts=facts)
    found += [
        by_commit(50.0, f"d{i}", flags=flags, facts={**facts, "tensorflow_version": HOSTILE})
        for i in range(6)
    ]
    found += [
        by_commit(50.0, flags=flags, facts=facts),
        by_commit(1.0, error=HOSTILE, flags=flags, facts=facts),
    ]
    return [trend(one, SPEED) for one in series_of(found)]


def test_table_is_golden(told):
    remarks = (
        *history_remarks(told, SPEED, None),
        *other_metric_remarks(told[:1], METRICS["step_seconds"]),
    )
    text = terminal_text(HistoryDocument(SPEED, told, remarks=remarks), last=3)
    assert text == golden(GOLDEN / "table.txt", text)


def test_document_is_golden(trends):
    text = HistoryDocument(SPEED, trends, skipped=[SkippedFile("x.json", "empty")]).to_json()
    assert text == golden(GOLDEN / "history.json", text)


def test_markdown_of_the_page_is_golden(told):
    markdown = render(blocks.build_page(HistoryDocument(SPEED, told)), "markdown")
    markdown, _, _ = markdown.partition("\n## Points")
    text = markdown.replace(__version__, "VERSION")
    assert text == golden(GOLDEN / "page.md", text)


def test_noise_that_is_easily_taken_for_steps_is_named(by_commit, series_of):
    speeds = [100.0, 71.0, 101.0, 99.0, 70.0, 100.0, 69.0, 102.0, 98.0, 70.5]
    found = trend(series_of([by_commit(v, f"c{i}") for i, v in enumerate(speeds)])[0], SPEED)
    assert "-29.9 % in 4 of 10 runs" in terminal_text(HistoryDocument(SPEED, [found]))
    (series,) = json.loads(HistoryDocument(SPEED, [found]).to_json())["series"]
    assert series["noise"]["states"] == {
        "runs": 4,
        "total": 10,
        "change": pytest.approx(-0.299, abs=1e-3),
        "kind": "two_states",
        "hosts": [],
    }


def test_table_of_rows(trends):
    rows = list(csv.DictReader(io.StringIO(csv_text(HistoryDocument(SPEED, trends)))))
    assert len(rows) == 20
    assert [row["point"] for row in rows if row["step"] == "true"] == ["c008"]
    assert float(rows[0]["value"]) == pytest.approx(100, rel=0.02)
    low, value, high = (float(rows[0][name]) for name in ("low", "value", "high"))
    assert low < value < high
    assert csv_text(HistoryDocument(SPEED, [])).startswith("configuration,")


def test_series_that_are_too_short_are_named(by_commit, series_of):
    found = [trend(one, SPEED) for one in series_of([by_commit(100.0, f"c{i}") for i in range(3)])]
    document = HistoryDocument(SPEED, found)
    report = blocks.build_page(document)
    (answer,) = report.answers
    assert (answer.tone, answer.details) == ("unsure", ("lenet, batch 8, 1 cpu",))
    (steps,) = blocks.history_section(document).blocks[1:2]
    assert steps.tone == "unsure"
    assert steps.text.endswith(": lenet, batch 8, 1 cpu.")
    # The answer says it, so the section about steps does not say it again.
    for written in (render(report, "markdown"), terminal_text(document)):
        assert written.lower().count("too few points") == 1


def test_every_chart_has_title_axes_direction_and_the_steps(trends):
    report = blocks.build_page(HistoryDocument(SPEED, trends))
    (charts,) = [b for s in report.sections for b in s.blocks if isinstance(b, ChartGroup)]
    assert len(charts.charts) == 2
    for chart in charts.charts:
        assert isinstance(chart, LineChart)
        assert chart.title
        assert chart.x.caption
        assert chart.y.label == SPEED.title
        assert chart.y.better == HIGHER
    assert [len(chart.events) for chart in charts.charts] == [1, 0]
    # What a page needs to zoom: a label for each point.
    assert [len(chart.labels) for chart in charts.charts] == [14, 6]


def test_charts_have_commits_on_their_axis_and_dates_where_points_are_days(by_commit, series_of):
    commits = [f"{number:040x}"[::-1] for number in range(1, 7)]
    found = [by_commit(100.0, commit) for commit in commits]
    for by, label in ((None, "commits"), ("day", "points")):
        (one,) = series_of(found) if by is None else series_of(found, by=by)
        (chart,) = blocks.build_page(HistoryDocument(SPEED, [trend(one, SPEED)])).charts
        assert chart.x.label.startswith(label)
        assert chart.labels == chart.x.tick_texts
        if by is None:
            assert chart.labels == tuple(f"{commit[:7]}, 11-20" for commit in commits)


def test_outliers_are_marked_everywhere(by_commit, series_of):
    levels = [100.0] * 9 + [75.0] + [100.0] * 8
    (found,) = [trend(one, SPEED) for one in series_of(by_commit.history(levels))]
    assert not found.steps
    (outlier,) = found.outliers
    assert outlier.index == 9
    assert outlier.change == pytest.approx(-0.25, abs=0.03)
    assert "? outlier -2" in terminal_text(HistoryDocument(SPEED, [found]))
    rows = list(csv.DictReader(io.StringIO(csv_text(HistoryDocument(SPEED, [found])))))
    assert [row["point"] for row in rows if row["outlier"] == "true"] == ["c009"]
    (series,) = json.loads(HistoryDocument(SPEED, [found]).to_json())["series"]
    assert [one["index"] for one in series["outliers"]] == [9]
    report = blocks.build_page(HistoryDocument(SPEED, [found]))
    assert [(one.name, one.tone) for one in report.answers] == [
        ("Steps", "good"),
        ("Outliers", "unsure"),
    ]
    (charts,) = [b for s in report.sections for b in s.blocks if isinstance(b, ChartGroup)]
    (chart,) = charts.charts
    assert next(one for one in chart.series if one.name == "outlier").points[0][0] == 9.0


def test_noise_alone_is_no_outlier(by_commit, series_of):
    (found,) = [
        trend(one, SPEED) for one in series_of(by_commit.history([100.0] * 30, scatter=0.05))
    ]
    assert found.outliers == ()


def marks_of_points(text):
    """The focusable marks of the points in the charts of a page, in order."""
    marks = []
    for chart in re.findall(r"<svg .*?</svg>", text):
        root = xml.fromstring(chart)
        for group in (one for one in root.iter() if one.get("class") == "marks"):
            marks += [one for one in group.iter() if one.get("class") == "point"]
    return marks


@pytest.mark.slow
def test_commits_lead_to_their_address_and_other_names_nowhere(by_commit, series_of):
    commits = [f"{number:x}" * 40 for number in range(10)]
    found = [by_commit(100.0, commit) for commit in commits[:7]] + [by_commit(80.0, "release 2")]
    trends = [trend(one, SPEED) for one in series_of(found)]
    address = "https://example.org/c/{commit}?a=1&b=2"
    text = blocks.render("x.html", HistoryDocument(SPEED, trends), address).decode()
    links = re.findall(r'<a href="(https[^"]*)" rel="noopener noreferrer">', text)
    assert sorted(links) == [f"https://example.org/c/{one}?a=1&amp;b=2" for one in commits[:7]]
    # In the chart, for wide windows and for phones; the mark of another name has only a text.
    marks = marks_of_points(text)
    expected = [f"https://example.org/c/{one}?a=1&b=2" for one in commits[:7]]
    assert [mark.get("href") for mark in marks] == 2 * [*expected, None]
    for mark in marks[:8]:
        assert mark.tag == ("a" if mark.get("href") else "g")
        assert mark.get("rel", "") == ("noopener noreferrer" if mark.get("href") else "")
        assert mark.get("role") == (None if mark.get("href") else "img")
        assert mark.get("tabindex") == "0"
        assert mark.get("aria-label") == mark.find("title").text
    assert blocks.render("x.html", HistoryDocument(SPEED, trends), address).decode() == text
    written = blocks.render("x.md", HistoryDocument(SPEED, trends), address).decode()
    assert f"[333333333333](https://example.org/c/{'3' * 40}?a=1&b=2)" in written
    assert "https:" not in blocks.render("x.html", HistoryDocument(SPEED, trends)).decode()


@pytest.mark.parametrize(
    ("repository", "host"),
    [
        ("github.com/owner/nets", "github.com/owner/nets"),
        ("git.example.org/deep/er/nets.py", "git.example.org/deep/er/nets.py"),
        ("nets", None),  # the name of a folder
        ("javascript:alert(1)//a.b/c", None),
        ('a.b/c"><script>alert(1)</script>', None),
        ("a.b/c?x={commit}", None),
        ("user@a.b/c", None),
        ("..//a", None),
    ],
)
def test_without_an_address_commits_lead_to_the_repository_of_their_records(
    by_commit, series_of, repository, host
):
    commits = [f"{number:x}" * 40 for number in range(7)]
    found = [
        by_commit(100.0, subject=Subject(repository=repository, revision=one)) for one in commits
    ]
    text = blocks.render(
        "x.html", HistoryDocument(SPEED, [trend(one, SPEED) for one in series_of(found)])
    ).decode()
    expected = [host and f"https://{host}/commit/{one}" for one in commits]
    assert [mark.get("href") for mark in marks_of_points(text)] == 2 * expected
    assert text.count("https:") == (3 * len(commits) if host else 0)
    assert "<script>alert" not in text


def test_marks_of_outliers_are_links_and_those_of_several_commits_are_none(by_commit, series_of):
    commits = [f"{number:040x}" for number in range(1, 101)]
    speeds = [100.0 if place != 9 else 75.0 for place in range(100)]
    draw = random.Random(1)
    found = [
        by_commit(speed * (1 + draw.gauss(0, 0.002)), commit)
        for speed, commit in zip(speeds, commits, strict=True)
        for _ in range(2)
    ]
    (one,) = [trend(one, SPEED) for one in series_of(found)]
    address = "https://example.org/c/{commit}"

    def drawn(trends):
        report = blocks.build_page(HistoryDocument(SPEED, trends), address)
        (charts,) = [b for s in report.sections for b in s.blocks if isinstance(b, ChartGroup)]
        return charts.charts[0].series

    measured, _, outlier = drawn([one])
    assert measured.links == tuple(f"https://example.org/c/{commit}" for commit in commits)
    assert outlier.links == (f"https://example.org/c/{commits[9]}",)
    # All charts together have at most 1000 marks.
    few = drawn([one] * 12)[0]
    assert len(few.points) < 100
    between = [link for (place, _), link in zip(few.points, few.links, strict=True) if place % 1]
    assert set(between) == {""}


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("PDF", b"%PDF")])
def test_pictures_by_the_suffix_of_the_file(trends, suffix, start):
    assert blocks.render(f"x.{suffix}", HistoryDocument(SPEED, trends)).startswith(start)


def test_a_picture_has_a_chart_per_series_with_its_steps(trends):
    root = xml.fromstring(blocks.render("x.svg", HistoryDocument(SPEED, trends)))
    written = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum("on Fast CPU" in one for one in written) == 2
    assert "- worse" in written
    hints = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(one.startswith("c000, 2026-11-20 00:00 UTC: ") for one in hints)


def test_hostile_text_is_escaped_everywhere(hostile):
    assert any(found.steps for found in hostile)
    svg = xml.fromstring(blocks.render("x.svg", HistoryDocument(SPEED, hostile)))
    tags = {one.tag.rpartition("}")[2] for one in svg.iter()}
    assert "script" not in tags
    assert not any(name.startswith("on") for one in svg.iter() for name in one.attrib)
    html = blocks.render("x.html", HistoryDocument(SPEED, hostile)).decode()
    assert html.count("<script") == 1
    assert "<script>alert" not in html
    for line in terminal_text(HistoryDocument(SPEED, hostile)).splitlines():
        assert line.isprintable()
    for row in csv.reader(io.StringIO(csv_text(HistoryDocument(SPEED, hostile)))):
        assert not any(cell.startswith(("=", "@", "+")) for cell in row)
    json.loads(HistoryDocument(SPEED, hostile).to_json())


def test_points_for_other_programs_are_of_one_subject_each(trends):
    found = history_metrics(HistoryDocument(SPEED, trends))
    assert len(found) == 20
    assert [one.value for one in found] == [
        point.value for trend in trends for point in trend.series.points
    ]
    lines = exports.openmetrics(found)[0].splitlines()
    samples = [line for line in lines if line.startswith("cnnbench_throughput_images_per_second{")]
    assert len(samples) == 20
    assert len({line.split("} ")[0] for line in samples}) == 20


@pytest.mark.parametrize("format", ["bencher", "github-action-benchmark"])
def test_a_format_of_one_commit_gets_the_last(trends, format):
    text, left_out = EXPORTS[format](history_metrics(HistoryDocument(SPEED, trends)))
    assert "resnet20" in text
    assert "lenet" not in text
    assert "555555555555; 19 " in left_out


def test_sides_of_one_commit_and_days_of_one_revision(by_commit, series_of):
    subject = {side: Subject(revision="c1", side=side) for side in "ab"}
    found = [by_commit(100.0 + i, subject=subject["ab"[i % 2]], flags={}) for i in range(4)]
    points = [trend(one, SPEED) for one in series_of(found, by="run")]
    document = json.loads(exports.bencher(history_metrics(HistoryDocument(SPEED, points)))[0])
    assert {re.search("side [AB]", name)[0]: one for name, one in document.items()} == {
        "side A": {"throughput (images/sec)": {"value": pytest.approx(102.0)}},
        "side B": {"throughput (images/sec)": {"value": pytest.approx(103.0)}},
    }


def test_of_many_series_those_with_steps_and_the_newest_are_drawn(by_commit, series_of):
    levels = [100.0] * 8
    found = [
        one
        for batch in range(1, 16)
        for one in by_commit.history(
            [*levels[:4], *(60.0 if batch == 2 else 100.0 for _ in range(4))],
            flags={"batch_size": batch},
            per_commit=1,
        )
    ]
    trends = [trend(one, SPEED) for one in series_of(found)]
    (section,) = [
        one
        for one in blocks.build_page(HistoryDocument(SPEED, trends)).sections
        if one.key == "series"
    ]
    (charts,) = section.blocks
    assert "12 of 15" in charts.note
    drawn = [chart.title.split(",")[1].strip() for chart in charts.charts]
    assert drawn == ["batch 2", *(f"batch {number}" for number in range(5, 16))]


def test_a_mark_of_a_long_series_stands_for_points_of_one_level(by_commit, series_of):
    levels = [100.0] * 95 + [80.0] * 45
    (found,) = [trend(one, SPEED) for one in series_of(by_commit.history(levels, per_commit=1))]
    # A section of a report has at most 1000 marks in all of its charts.
    *_, charts = blocks.history_section(HistoryDocument(SPEED, [found] * 12)).blocks
    marks = charts.charts[0].series[0]
    assert 70 <= len(marks.points) <= 72
    assert all((value > 90) == (place < 95) for place, value in marks.points)
    assert marks.hints[0].startswith("c000 to c001: ")
    assert marks.hints[0].endswith(", 2 points")
    spans = [(span, value) for span, (_, value) in zip(marks.spans, marks.points, strict=True)]
    assert all(span[0] <= value <= span[1] for span, value in spans if span is not None)
    assert sum(span is None for span, _ in spans) <= 2  # the last point of a level


def test_the_newest_points_of_many_are_listed(by_commit, series_of):
    many = [trend(one, SPEED) for one in series_of(by_commit.history([100.0] * 9))] * 120
    text, *tables = blocks.build_page(HistoryDocument(SPEED, many)).sections[-1].blocks
    assert "1,000 of 1,080" in text.text
    assert "--format=csv" in text.text
    names = [row[0].text for table in tables for row in table.rows]
    assert len(names) == 1000
    assert names[-9:] == [f"c{number:03}" for number in range(9)]
    # Whatever the order of the series, the newest points are listed.
    later = trend(series_of(by_commit.history([50.0] * 9, flags={"model": "later"}))[0], SPEED)
    _, first, *_ = blocks.build_page(HistoryDocument(SPEED, [later, *many])).sections[-1].blocks
    assert (first.title.partition(",")[0], len(first.rows)) == ("later", 9)


@pytest.fixture
def four_series(by_commit, series_of):
    """Three series with a step at c8, for one of them between c6 and c9, and one without."""
    records = []
    for batch, levels in ((4, 100.0), (8, 200.0), (16, 300.0), (32, 400.0)):
        steps = [levels] * 8 + [levels * (1.0 if batch == 32 else 0.8 - batch / 100)] * 8
        records += by_commit.history(steps, flags={"batch_size": batch}, per_commit=1, seed=batch)
    found = [trend(one, SPEED) for one in series_of(records)]
    points, (step,) = found[1].series.points, found[1].steps
    ends = {"earliest": points[6], "latest": points[9]}
    unsure = replace(step, last_good=points[6], first_bad=points[7], **ends)
    return [found[0], replace(found[1], steps=(unsure,)), *found[2:]]


def test_steps_of_several_series_at_one_commit_are_one_answer(four_series):
    trends = four_series
    changes = [one.steps[0].change for one in trends[:3]]
    ends = SPEED.range_text(min(changes), max(changes))
    (answer,) = blocks.build_page(HistoryDocument(SPEED, trends)).answers
    (sentence,) = answer.details
    values = ("3 of 4 series", "batch 4, 1 cpu; lenet, batch 8, 1 cpu and 1 more", "c008", ends)
    assert [one for one in values if one not in sentence] == []
    assert (answer.tone, answer.text[:12]) == ("bad", "1 regression")
    assert f"- {sentence}" in " ".join(terminal_text(HistoryDocument(SPEED, trends)).split())
    document = json.loads(HistoryDocument(SPEED, trends).to_json())
    (shared,) = document["shared_steps"]
    assert shared == {
        "first_bad": "c008",
        "series": [0, 1, 2],
        "steps": [0, 0, 0],
        "worse": True,
        "stands": True,
        "smallest": min(changes),
        "largest": max(changes),
    }


def test_all_series_are_called_so_and_the_last_good_commit_is_named(four_series):
    trends = [four_series[0], four_series[2]]
    (answer,) = blocks.build_page(HistoryDocument(SPEED, trends)).answers
    assert "both series" in answer.details[0]
    assert answer.details[0].endswith("; last good c007")
    trends.append(four_series[1])
    (answer,) = blocks.build_page(HistoryDocument(SPEED, trends)).answers
    assert "all 3 series" in answer.details[0]
    assert "last good" not in answer.details[0]


def test_steps_in_other_directions_or_undone_are_not_shared(four_series):
    first, second, third, _ = four_series
    better = replace(second, steps=(replace(second.steps[0], worse=False),))
    undone = replace(third, steps=(replace(third.steps[0], stands=False),))
    report = blocks.build_page(HistoryDocument(SPEED, [first, better, undone]))
    assert report.answers[0].text.startswith("1 regression")
    assert report.answers[0].details[0].startswith("lenet, batch 4, 1 cpu: worse: ")
    like, gone = (
        blocks.build_page(HistoryDocument(SPEED, [one])).answers[0] for one in (better, undone)
    )
    assert like.tone == gone.tone == "good"
    assert like.text != gone.text


def test_outliers_of_several_series_at_one_commit_are_one(by_commit, series_of):
    levels = [100.0] * 9 + [75.0] + [100.0] * 8
    records = [
        one
        for batch in (4, 8)
        for one in by_commit.history(levels, scatter=0.002, flags={"batch_size": batch})
    ]
    (_, outliers) = blocks.build_page(
        HistoryDocument(SPEED, [trend(one, SPEED) for one in series_of(records)])
    ).answers
    assert outliers.text == "1 outlier"
    assert outliers.details[0].startswith("both series: -24.9 % at c009, ")


def test_accepted_commits_that_no_point_and_no_repository_has_are_named(
    trends, tmp_path, monkeypatch
):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    names = ("c000", "44444", "fffffff")
    accept = tuple(Acceptance(commit=name, reason="x", until="2999-01-01") for name in names)
    (remark,) = accepted_commit_remarks(trends, Rules(source="rules.toml", accept=accept))
    assert remark.startswith("rules.toml: 1 accepted commit ")
    assert remark.endswith(": fffffff.")
    assert accepted_commit_remarks(trends, Rules(accept=accept[:2])) == []


def test_a_step_of_the_cpu_time_is_a_remark_if_the_speed_has_none(by_commit, series_of):
    def history(metric, *speeds):
        found = []
        for index in range(16):
            late = index > 7
            times = {"step_seconds": (0.08 * speeds[late],) * 3, "losses": ()}
            times["step_cpu_seconds"] = (0.08 * (1 + late),) * 3
            found.append(by_commit(None, f"c{index:02}", **times))
        series = series_of(found, metric)
        document = make_history(series, METRICS[metric], Rules(), None)
        return [step.change for one in document.series for step in one.steps], document.remarks

    steps, (remark,) = history("throughput", 1.0, 1.0)
    assert steps == []
    assert remark.startswith("lenet, batch 8, 1 cpu: only cpu_time has a step: ")
    assert history("throughput", 1.0, 2.0) == ([pytest.approx(-0.5)], [])
    assert history("step_seconds", 1.0, 1.0) == ([], [])
    assert history("cpu_time", 1.0, 1.0) == ([pytest.approx(1.0)], [])
