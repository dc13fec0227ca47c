"""The page, the Markdown and the tables; UPDATE_GOLDEN=1 rewrites what was looked at.

Tests cnnbench/base/document/html.py, cnnbench/base/document/formats.py,
cnnbench/judge/report/__init__.py, cnnbench/judge/report/results.py,
cnnbench/judge/report/tables.py and, by a report with something for each of them, the sections in
cnnbench/judge/report/sections/baseline.py, cnnbench/judge/report/sections/quantities.py,
cnnbench/judge/report/sections/all_reduce.py,
cnnbench/judge/report/sections/environment.py,
cnnbench/judge/report/sections/runs.py, cnnbench/judge/report/sections/scaling.py and
cnnbench/judge/report/sections/steps.py.
"""

import base64
import csv
import hashlib
import io
import math
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from golden import golden
from pages import HOSTILE, Page

from cnnbench import __version__
from cnnbench.base.document import Table
from cnnbench.base.tables import csv_cell
from cnnbench.judge.report import build, gather, render
from cnnbench.judge.report.tables import (
    TABLES,
    comparison_rows,
    configuration_rows,
    frame,
)
from cnnbench.judge.report.tables import to_csv as csv_text
from cnnbench.records.codec import parse_start_time
from cnnbench.records.load import Loaded

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def html(report, made_page):
    return made_page("report", lambda: report).read_text("utf-8")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_a_hostile_page_has_no_element_and_no_attribute_of_theirs(hostile, made_page, page):
    made = made_page("hostile", lambda: build(hostile, HOSTILE))
    found = Page(made.read_text("utf-8"))
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in page.elements} | {
        "details",
        "summary",
    }
    for tag in ("script", "style", "title"):
        inside = [tag for tag, _ in found.elements]
        assert inside.count("script") == inside.count("style") == 1, tag
    for _, attributes in found.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert not {"style", "src", "action", "formaction", "xlink:href"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    # And yet it is all there to be read.
    text = "".join(one for where in found.texts.values() for one in where)
    assert "alert(1)" in text.replace("".join(found.texts["script"]), "")


def test_nothing_from_elsewhere_and_a_policy_that_says_so(html, page):
    assert not re.search(r"https?:|url\(|@import|//\w", html.replace("http-equiv", ""))
    assert page.count("img") == page.count("link") == page.count("iframe") == 0
    assert page.policy.startswith("default-src 'none';")
    for tag in ("script", "style"):
        digest = hashlib.sha256("".join(page.texts[tag]).encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in page.policy
    assert "unsafe" not in page.policy


def test_page_reads_without_script_and_its_links_lead_somewhere(page):
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert links
    assert all(link.removeprefix("#") in ids for link in links)
    # Buttons to sort with come from the script: without it there are none that do nothing.
    assert page.count("button") == 0
    assert page.count("table") >= 9
    # The charts of narrow pages are hidden where a policy lets no style in.
    kinds = [one.get("class") for tag, one in page.elements if tag == "div"]
    narrow = [one for _, one in page.elements if one.get("class") == "narrow"]
    assert len(narrow) == kinds.count("broad") > 0
    assert all("hidden" in one for one in narrow)
    assert page.count("svg") >= page.count("figure") >= 12
    headings = [a for tag, a in page.elements if tag == "th" and a.get("scope") == "col"]
    assert len(headings) > 50


def test_the_verdict_comes_first_with_its_colour_and_what_disturbed_beside_it(page):
    where = [dict(a).get("class") for tag, a in page.elements if tag == "section"]
    # The verdict, failed runs, wrong sums of a reduction, conditions.
    assert where[:4] == ["bad", "bad", "bad", "unsure"]
    order = [a["class"] for _, a in page.elements if a.get("class") in ("answers", "highlights")]
    assert order == ["answers", "highlights"]
    first = ["Against the baseline", "Failed and skipped", "What the machine reaches"]
    assert page.texts["h2"][4:8] == [*first, "How to reproduce it"]


def test_what_is_long_is_folded_and_links_still_lead_there(page):
    folded = [a["id"] for tag, a in page.elements if tag == "details" and "id" in a]
    # Of a page with a comparison, only the verdict, its causes and the failures are open.
    assert folded == [
        *("reach", "reproduce", "scaling", "allreduce", "throughput", "mfu", "memory"),
        *("accuracy", "warmup", "steps", "conditions", "environment"),
    ]
    assert page.count("details") == page.count("summary")
    # Their titles are a list of their own, to which one link leads.
    links = [a["href"][1:] for tag, a in page.elements if tag == "a" and a["href"].startswith("#")]
    assert links == ["baseline", "problems", "folded"]
    places = [a["id"] for _, a in page.elements if a.get("id") in (*links, *folded)]
    assert places == ["baseline", "problems", "folded", *folded]


def test_titles_of_charts_are_text_of_the_page_that_wraps(page):
    assert page.count("figcaption") == page.count("figure")
    assert any("throughput" in text for text in page.texts["figcaption"])


def test_every_number_sorts_by_its_value(page):
    values = [a["data-value"] for tag, a in page.elements if "data-value" in a]
    assert len(values) > 100
    assert all(isinstance(float(value), float) for value in values)


def test_a_cell_holds_the_number_that_it_shows(report):
    blocks = [block for section in report.sections for block in section.blocks]
    rows = [row for block in blocks if isinstance(block, Table) for row in block.rows]
    cells = [cell for row in rows for cell in row if cell.value is not None]
    plain = [cell for cell in cells if re.fullmatch(r"[-+]?[\d,.]+(e[-+]\d+)?", cell.text)]
    assert len(plain) > 100
    for cell in plain:
        assert cell.value == pytest.approx(float(cell.text.replace(",", "")), rel=1e-3, abs=6e-3)


def test_markdown_is_golden(report):
    text = render(report, "markdown").replace(__version__, "VERSION")
    assert text == golden(GOLDEN / "report.md", text)


def test_hostile_markdown_keeps_its_tables(hostile):
    widths = []
    for line in render(build(hostile, HOSTILE), "markdown").splitlines():
        assert not re.search(r"<(?!/?code>)|[`@\x00\x1b]|\]\(|https?:", line)
        if line.startswith("|"):
            widths.append(line.count("|"))
            assert line.endswith("|")
        elif widths:
            assert len(set(widths)) == 1
            widths = []


@pytest.mark.parametrize("table", [name for name in TABLES if name != "allreduce"])
def test_no_cell_of_a_hostile_table_is_a_formula_or_breaks_a_row(hostile, table):
    read = list(csv.reader(io.StringIO(csv_text(hostile, table))))
    assert len({len(row) for row in read}) == 1
    for cell in (cell for row in read for cell in row):
        assert not re.match(r"[=+@\t\r]|-(?![\d.])", cell)
        assert "\n" not in cell


@pytest.mark.parametrize("table", TABLES)
def test_a_frame_has_the_cells_of_the_csv_table_as_numbers_and_times(everything, table):
    found = frame(everything, table)
    read = list(csv.DictReader(io.StringIO(csv_text(everything, table))))
    assert len(found) == len(read) > 0
    assert [*found] == [*read[0]]
    for name in found:
        texts = [row[name] for row in read]
        for value, text in zip(found[name].tolist(), texts, strict=True):
            if isinstance(value, datetime):
                assert value == parse_start_time(text)
            elif isinstance(value, (str, bool)):
                assert csv_cell(value) == text.removeprefix("'")
            elif value is None or math.isnan(value):
                assert text == ""
            else:
                assert value == float(text)
        # No column of numbers or times is left as text.
        if found[name].dtype.kind not in "ifbM" and name != "workload":  # or the name of a model
            known = [text for text in texts if text]
            assert not known or not all(map(is_number_or_time, known)), name


def is_number_or_time(text):
    for read in (float, parse_start_time):
        with suppress(ValueError):
            read(text)
            return True
    return False


def test_columns_of_numbers_can_be_computed_with(full_runs):
    runs = [*full_runs.of(100), *full_runs.of(100, losses=(math.inf,) * 24)]
    found = frame(gather(Loaded(tuple(runs), ())), "runs")
    assert (found["batch_global"] * 2).tolist() == [16, 16]
    assert (found["last_loss"] / 2).tolist()[-1] == math.inf
    assert math.isnan((found["eval_top_1"] * 2).iloc[0])  # no run has it
    assert found["started_at"].diff().dt.total_seconds().tolist()[1] == 60


def test_statistics_of_configurations_by_hand(everything):
    found = {row["configuration"]: row for row in configuration_rows(everything)}
    # 100, 101, 99, 100.5, 99.5 and 102 images/sec; Student's quantile for five is 2.5706.
    mean, error = 602 / 6, 2.5706 * math.sqrt(1.16667 / 6)
    first = found["lenet, batch 8, 1 cpu"]
    expected = {
        "throughput_images_per_sec": 100.25,
        "throughput_images_per_sec_low": 99.0,
        "throughput_images_per_sec_high": 102.0,
        "throughput_images_per_sec_min": 99.0,
        "throughput_images_per_sec_max": 102.0,
        "mean_throughput_images_per_sec": mean,
        "mean_throughput_images_per_sec_low": mean - error,
        "mean_throughput_images_per_sec_high": mean + error,
        "peak_memory_bytes": 510 * 2**20,
        "startup_seconds": 3.5,
        "mfu": 100.25 * 6e9 / 2e12,
    }
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    facts = ("side", "devices", "images_per_step", "parameters", "processes", "failed")
    assert [first[name] for name in facts] == ["", 1, 8, 10, 6, 1]
    two = found["lenet, batch 8, 2 cpu, replicated"]
    assert two["scaling_efficiency"] == pytest.approx(180.5 / 2 / 100.25)
    low, high = (two[f"throughput_images_per_sec_{end}"] for end in ("low", "high"))
    assert (low, high, two["throughput_images_per_sec_min"]) == (None, None, pytest.approx(180))
    assert two["mean_throughput_images_per_sec_low"] is None  # of two processes
    (other,) = [row for row in found.values() if row["model"] == "resnet20"]
    assert (other["scaling_efficiency"], other["top_1"]) == (None, 0.5)


def test_rows_of_a_comparison_by_hand(full_runs):
    base, new = full_runs.of(110, 111, 109, 110), full_runs.of(99, 99.9, 98.1, 99)
    found = gather(Loaded(tuple(new), ()), Loaded(tuple(base), ()))
    first, *_ = comparison_rows(found)
    expected = {"verdict": "slower", "word": "slower", "metric": "throughput", "unit": "images/sec"}
    assert {name: first[name] for name in expected} == expected
    numbers = {"base_median": 110.0, "new_median": 99.0, "change": -0.1, "floor": 0.03}
    assert {name: first[name] for name in numbers} == pytest.approx(numbers)
    assert (first["p"], first["p_adjusted"]) == (pytest.approx(2 / 70, rel=0.5),) * 2
    assert (first["base_processes"], first["new_processes"]) == (4, 4)
    assert frame(gather(Loaded(tuple(new), ())), "comparison").empty
