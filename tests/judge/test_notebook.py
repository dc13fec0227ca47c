"""Results in Jupyter, with texts that would be code in a page, and as DataFrames.

Tests cnnbench/base/notebook.py and cnnbench/judge/notebook.py.
"""

from __future__ import annotations

import re

import pytest
from pages import HOSTILE, Page

from cnnbench.base.document import Paragraph, Report, Section, TableCell, make_table, numeric_cell
from cnnbench.base.notebook import Displayed
from cnnbench.judge import notebook
from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.page import HistoryDocument, csv_text
from cnnbench.judge.report import build
from cnnbench.judge.report.tables import frame

SPEED = METRICS["throughput"]


@pytest.fixture(scope="module")
def results(hostile, make_by_commit, series_of):
    """A result of each class whose texts are hostile, by the name of its class."""
    runs = make_by_commit().history([100.0] * 8 + [90.0] * 6, flags={"model": HOSTILE})
    history = HistoryDocument(SPEED, [trend(one, SPEED) for one in series_of(runs)], [HOSTILE])
    found = (hostile, hostile.comparison, hostile.runs[0], history, build(hostile, HOSTILE))
    return {type(result).__name__: result for result in found}


CLASSES = ("ReportSubject", "Comparison", "RunRecord", "HistoryDocument", "Report")


@pytest.mark.parametrize("name", CLASSES)
def test_html_has_no_element_and_no_attribute_of_theirs(name, results):
    page = Page(results[name]._repr_html_())
    assert {tag for tag, _ in page.elements} <= {
        *("h3", "h4", "h5", "p", "ul", "li", "b", "details", "summary"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    attributes = {pair for _, found in page.elements for pair in found.items()}
    assert attributes <= {("style", "text-align: right"), ("scope", "row"), ("scope", "col")}
    # And yet it is there to be read.
    assert any("alert(1)" in text for texts in page.texts.values() for text in texts)
    assert page.count("td") > 0


@pytest.mark.parametrize("name", CLASSES)
def test_markdown_has_no_element_and_no_link_of_theirs(name, results):
    for line in results[name]._repr_markdown_().splitlines():
        assert not re.search(r"<(?!/?code>)|[`@\x00\x1b]|\]\(|https?:", line)


@pytest.mark.parametrize("name", CLASSES)
def test_repr_is_one_short_line_without_control_characters(name, results):
    text = repr(results[name])
    assert text.startswith(f"<{name}: ")
    assert text.isprintable()
    assert len(text) < 250


def test_tables_of_results(results, everything):
    comparison = results["Comparison"].to_pandas()
    entries = results["Comparison"].entries
    assert len(comparison) == sum(len(entry.results) for entry in entries)
    assert comparison["change"].dtype.kind == "f"
    record = results["RunRecord"]
    assert record.to_pandas()["num_steps"].tolist() == [record.steps]
    history = results["HistoryDocument"].to_pandas()
    assert len(history) == 14 == csv_text(results["HistoryDocument"]).count("\n") - 1
    assert history["started_at"].is_monotonic_increasing
    assert history["started_at"].dtype.kind == "M"
    assert history["value"].iloc[0] > history["value"].iloc[-1]
    assert everything.to_pandas().equals(frame(everything, "configurations"))


def test_a_report_has_a_row_for_each_cell():
    rows = [
        {"run": "a", "speed, images/sec": numeric_cell(12345.678)},
        {"run": "b", "speed, images/sec": numeric_cell(None)},
    ]
    table = make_table(rows, title="Speeds")
    section = Section.of(["text", table], "x", "Runs")
    found = Report(title="t", subtitle="s", sections=(section,)).to_pandas()
    speeds = found[found["column"] == "speed, images/sec"]
    assert speeds["row"].tolist() == ["a", "b"]
    assert speeds["value"].tolist()[0] == 12345.678
    assert speeds["text"].tolist() == ["12,346", "-"]
    assert set(found["section"]) == {"Runs"}
    assert set(found["table"]) == {"Speeds"}


def test_folded_sections_and_links():
    cells = [
        {"point": TableCell("c1", link="https://host/commit/c1"), "n": numeric_cell(1)},
        {"point": TableCell("c2", link="javascript:alert(1)"), "n": numeric_cell(2)},
    ]
    noisy = Section.of([Paragraph("2 of 3", "bad"), "why"], "x", "Noise", folded=True)
    steps = Section.of([make_table(cells, title="All", folded=True)], "y", "Steps")
    empty = Section.of([], "z", "Charts only")
    text = Report(title="t", subtitle="s", sections=(noisy, steps, empty))._repr_html_()
    page = Page(text)
    assert page.texts["summary"] == ["Noise: 2 of 3", "All"]
    assert page.texts["p"] == ["s", "why"]
    assert page.texts["h4"] == ["Steps"]
    links = [found["href"] for tag, found in page.elements if tag == "a"]
    assert links == ["https://host/commit/c1"]


def test_other_classes_are_refused():
    class Other(Displayed):
        pass

    with pytest.raises(TypeError, match="Other"):
        notebook.to_html(Other())
