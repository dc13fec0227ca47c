"""What the history prints, draws and exports; its wording is in golden/*.

Tests cnnbench/judge/history/page.py, cnnbench/judge/history/blocks.py,
cnnbench/judge/history/phrases.py, cnnbench/judge/history/series.py and, by the changes that
series share, cnnbench/judge/history/steps.py. UPDATE_GOLDEN=1 writes the files anew.
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
from cnnbench.base.levels import RecognizedNoise
from cnnbench.judge.compare import SkippedFile
from cnnbench.judge.history import METRICS, blocks, trend
from cnnbench.judge.history.blocks import terminal_text
from cnnbench.judge.history.page import (
    HistoryDocument,
    csv_text,
    make_history,
)
from cnnbench.judge.history.phrases import (
    accepted_commit_remarks,
    history_remarks,
    other_metric_remarks,
)
from cnnbench.judge.metrics.rules import Acceptance, Rules
from cnnbench.judge.report import render

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


def test_noise_that_is_easily_taken_for_steps_is_in_the_document(by_commit, series_of):
    speeds = [100.0, 71.0, 101.0, 99.0, 70.0, 100.0, 69.0, 102.0, 98.0, 70.5]
    found = trend(series_of([by_commit(v, f"c{i}") for i, v in enumerate(speeds)])[0], SPEED)
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
    assert [row["point"] for row in rows if row["step"] == "true"] == ["c008"]
    assert csv_text(HistoryDocument(SPEED, [])).startswith("configuration,")


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


def test_outliers_are_in_the_document_and_an_answer(by_commit, series_of):
    levels = [100.0] * 9 + [75.0] + [100.0] * 8
    (found,) = [trend(one, SPEED) for one in series_of(by_commit.history(levels))]
    assert not found.steps
    (outlier,) = found.outliers
    assert (outlier.index, outlier.change) == (9, pytest.approx(-0.25, abs=0.03))
    document = HistoryDocument(SPEED, [found])
    (series,) = json.loads(document.to_json())["series"]
    assert [one["index"] for one in series["outliers"]] == [9]
    assert [(one.name, one.tone) for one in blocks.build_page(document).answers] == [
        *(("Steps", "good"), ("Outliers", "unsure"))
    ]


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


def test_marks_of_outliers_are_links_and_those_of_several_commits_are_none(by_commit, series_of):
    commits = [f"{number:040x}" for number in range(1, 21)]
    speeds = [75.0 if place == 9 else 100.0 + place % 3 / 10 for place in range(20)]
    found = [by_commit(*both) for both in zip(speeds, commits, strict=True)]
    (one,) = [trend(one, SPEED) for one in series_of(found)]
    address = "https://example.org/c/{commit}"
    measured, _, outlier = blocks.series_charts([one], SPEED, address)[0].series
    assert measured.links == tuple(f"https://example.org/c/{commit}" for commit in commits)
    assert outlier.links == (f"https://example.org/c/{commits[9]}",)
    # All charts together have at most 1000 marks.
    section = blocks.history_section(HistoryDocument(SPEED, [one] * 60), address)
    few = section.blocks[-1].charts[0].series[0]
    assert len(few.points) < 20
    between = [link for (place, _), link in zip(few.points, few.links, strict=True) if place % 1]
    assert {*between} == {""}


def test_a_picture_by_the_suffix_of_the_file(trends):
    assert blocks.render("x.PDF", HistoryDocument(SPEED, trends)).startswith(b"%PDF")


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


def test_a_page_lists_a_thousand_points(by_commit, series_of):
    many = [trend(one, SPEED) for one in series_of(by_commit.history([100.0] * 9))] * 112
    text, *tables = blocks.build_page(HistoryDocument(SPEED, many)).sections[-1].blocks
    assert "1,000 of 1,008" in text.text
    assert sum(len(table.rows) for table in tables) == 1000
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
