"""What the history is told as; UPDATE_GOLDEN=1 rewrites what was looked at."""

import csv
import io
import json
import os
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from cnnbench import __version__
from cnnbench.charts import Lines
from cnnbench.compare import Skipped
from cnnbench.history import METRICS, page, trend
from cnnbench.history.formats import csv_text, json_text, table_text
from cnnbench.report import render
from cnnbench.report.document import Charts

GOLDEN = Path(__file__).parent / "golden"
SPEED = METRICS["throughput"]
HOSTILE = "=</style><script>alert(1)</script>\" onload='x'\n\x1b[31m@you"


@pytest.fixture
def records(runs):
    found = runs.history([100.0] * 8 + [90.0] * 6, facts={"tensorflow_version": "2.20"})
    for index in range(6):
        found.append(
            runs(
                50.0 + index % 2, flags={"model": "resnet20"}, facts={"git_commit": f"{index}" * 40}
            )
        )
    found.append(runs(1.0, "c099", error="no memory"))
    return found


@pytest.fixture
def trends(records, series_of):
    return [trend(one, SPEED) for one in series_of(records)]


@pytest.fixture
def hostile(runs, series_of):
    flags = {"model": HOSTILE, "data_name": HOSTILE}
    facts = {"cpu_model": HOSTILE, "hostname": HOSTILE, "git_commit": HOSTILE}
    found = runs.history([100.0] * 6, flags=flags, facts=facts)
    found += [
        runs(50.0, f"d{i}", flags=flags, facts={**facts, "tensorflow_version": HOSTILE})
        for i in range(6)
    ]
    found += [
        runs(50.0, flags=flags, facts=facts),
        runs(1.0, error=HOSTILE, flags=flags, facts=facts),
    ]
    return [trend(one, SPEED) for one in series_of(found)]


def golden(name, text):
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_table_is_golden(trends):
    golden("table.txt", table_text(trends, SPEED, last=10))


def test_document_is_golden(trends):
    golden("history.json", json_text(trends, SPEED, [Skipped("x.json", "empty")]))


def test_markdown_of_the_page_is_golden(trends):
    markdown = render(page.page(trends, SPEED), "markdown")
    golden("page.md", markdown.replace(__version__, "VERSION"))


def test_table_of_rows(trends):
    rows = list(csv.DictReader(io.StringIO(csv_text(trends, SPEED))))
    assert len(rows) == 20
    assert [row["point"] for row in rows if row["step"] == "True"] == ["c008"]
    assert float(rows[0]["value"]) == pytest.approx(100, rel=0.02)
    assert csv_text([], SPEED).startswith("configuration,")


def test_series_that_are_too_short_are_named(runs, series_of):
    found = [trend(one, SPEED) for one in series_of([runs(100.0, f"c{i}") for i in range(3)])]
    written = render(page.page(found, SPEED), "markdown")
    assert "No step was found" in written
    assert "Too few points for steps: lenet, batch 8, 1 cpu." in written


def test_every_chart_has_title_axes_direction_and_the_steps(trends):
    report = page.page(trends, SPEED)
    (charts,) = [b for s in report.sections for b in s.blocks if isinstance(b, Charts)]
    assert len(charts.charts) == 2
    for chart in charts.charts:
        assert isinstance(chart, Lines)
        assert chart.title
        assert chart.x.caption
        assert chart.y.caption == "throughput, images/sec (higher is better)"
    assert [len(chart.events) for chart in charts.charts] == [1, 0]


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        ("svg", b"<?xml"),
        ("png", b"\x89PNG"),
        ("PDF", b"%PDF"),
        ("html", b"<!DOCTYPE html>"),
        ("md", b"# "),
    ],
)
def test_plots_by_the_suffix_of_the_file(trends, suffix, start):
    assert page.render(f"x.{suffix}", trends, SPEED).startswith(start)


def test_a_picture_has_a_chart_per_series_with_its_steps(trends):
    root = xml.fromstring(page.render("x.svg", trends, SPEED))
    written = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum("on Fast CPU" in one for one in written) == 2
    assert "- worse" in written
    hints = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(one.startswith("c000, 2026-11-20 00:00 UTC: ") for one in hints)


def test_hostile_text_is_escaped_everywhere(hostile):
    assert any(found.steps for found in hostile)
    svg = xml.fromstring(page.render("x.svg", hostile, SPEED))
    tags = {one.tag.rpartition("}")[2] for one in svg.iter()}
    assert "script" not in tags
    assert not any(name.startswith("on") for one in svg.iter() for name in one.attrib)
    html = page.render("x.html", hostile, SPEED).decode()
    assert html.count("<script") == 1
    assert "<script>alert" not in html
    for line in table_text(hostile, SPEED).splitlines():
        assert line.isprintable()
    for row in csv.reader(io.StringIO(csv_text(hostile, SPEED))):
        assert not any(cell.startswith(("=", "@", "+")) for cell in row)
    json.loads(json_text(hostile, SPEED))
