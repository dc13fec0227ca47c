"""Tables and charts of a search for the fastest flags: what is listed, and how much of it."""

from __future__ import annotations

import dataclasses

import pytest
from pages import report_of
from studies import tuning

from cnnbench.base.charts import HIGHER
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.judge.report.sections.tune import (
    answer_sentence,
    search_sections,
)
from cnnbench.records.campaigns import AS_GIVEN, RefusedCandidate, TuneRow

FLAGS = ("--model=lenet",)


def row(candidate, gain=0.1, **more):
    values = {"flags": FLAGS, "group": "modes", "processes": 3, "images_per_sec": 100.0, **more}
    return TuneRow(candidate=candidate, gain=gain, **values)


def given(**more):
    return row(AS_GIVEN, 0.0, **more)


def contents(document, full=False):
    return [block for one in search_sections(document, full) for block in one.blocks]


def candidates(document, full=False):
    """Cells of the table of candidates by title of the column, for each row."""
    tables = [block for block in contents(document, full) if isinstance(block, Table)]
    table = next(one for one in tables if one.columns[0][0] == "candidate")
    titles = [title for title, _, _ in table.columns]
    return [dict(zip(titles, cells, strict=True)) for cells in table.rows]


def names(document, full=False):
    return [cells["candidate"].text for cells in candidates(document, full)]


def texts(document, full=False):
    return [block.text for block in contents(document, full) if isinstance(block, Paragraph)]


@pytest.mark.parametrize(("count", "shown", "more"), [(6, 7, 0), (7, 7, 1)])
def test_six_candidates_and_the_flags_as_given_are_listed(count, shown, more):
    rows = [row(f"batch_size={number}") for number in range(count)]
    document = tuning(rows=(*rows, given()))
    expected = [f"batch_size={number}" for number in range(min(count, 6))]
    assert names(document) == [*expected, AS_GIVEN]
    assert len(expected) + 1 == shown
    told = [text for text in texts(document) if "more were measured" in text]
    assert told == ([f"{more} more were measured."] if more else [])
    assert len(names(document, full=True)) == count + 1
    assert not [text for text in texts(document, full=True) if "more were" in text]


def test_the_flags_as_given_have_one_row():
    rows = (row("a"), given(), *(row(f"b{number}") for number in range(7)))
    found = names(tuning(rows=rows))
    assert found.count(AS_GIVEN) == 1
    assert len(found) == 6
    # Candidates that were not measured are in no table of a summary.
    unmeasured = tuning(rows=(row("a"), given(), row("b", None, processes=0)))
    assert names(unmeasured) == ["a", AS_GIVEN]
    assert names(unmeasured, full=True) == ["a", AS_GIVEN, "b"]


def test_numbers_of_candidates():
    rows = (
        row("a", 0.125, low=0.1, high=0.15, images_per_sec=225.0, changes=("precision",)),
        given(images_per_sec=200.0),
    )
    first, second = candidates(tuning(rows=rows))
    assert (first["candidate"].text, first["gain in races"].value) == ("a (precision)", 0.125)
    assert first["median images/sec in races"].value == 225
    assert first["95 % interval"].value == pytest.approx(0.05)
    assert (second["gain in races"].value, second["95 % interval"].value) == (None, None)
    assert first["processes"].value == 3


@pytest.mark.parametrize(
    ("parts", "full", "left"),
    [
        ({}, False, ""),
        ({}, True, ""),
        ({"left": "slower", "after": 3, "reason": "by 25 %"}, False, "slower, modes 3"),
        (
            {"left": "slower", "after": 3, "reason": "by 25 %"},
            True,
            "slower after round 3 of modes: by 25 %",
        ),
        ({"left": "failed", "after": 1}, True, "failed after round 1 of modes"),
        ({"left": "untried", "reason": "no time"}, True, "untried: no time"),
    ],
)
def test_why_a_candidate_left(parts, full, left):
    found = candidates(tuning(rows=(row("a", **parts), row("b", left="behind", after=2))), full)
    assert found[0]["left"].text == (left or "-")


@pytest.mark.parametrize(
    ("rows", "gain", "told"),
    [
        ((row("a"), given()), None, 1),
        ((row("a"), given()), 0.1, 1),
        ((given(),), None, 0),
        ((row("a", None), given()), 0.1, 0),
        ((row("a", 0.0), given()), 0.1, 1),
    ],
)
def test_what_gains_are_estimated_from_is_told_beside_them(rows, gain, told):
    found = [text for text in texts(tuning(rows=rows, gain=gain)) if "rounds" in text]
    assert len(found) == told
    assert all(("pairs" in text) == (gain is not None) for text in found)


def test_candidates_that_left_are_named_by_their_reason():
    rows = [row("as", left="slower", after=3, reason="x"), row("bs", left="behind", after=2)]
    rows += [row(f"u{number}", None, processes=0, left="untried") for number in range(8)]
    found = texts(tuning(rows=(*rows, given()), refused=()))
    slower, behind, untried = found[-3:]
    assert slower.endswith(": as (modes 3: x)")
    assert behind.endswith(": bs (modes 2)")
    assert untried.endswith(": u0; u1; u2; u3; u4; u5 and 2 more")


@pytest.mark.parametrize(("reasons", "lines"), [(5, 5), (6, 6), (7, 6)])
def test_five_reasons_why_candidates_cannot_run(reasons, lines):
    refused = [
        RefusedCandidate(group="modes", candidate=f"c{reason}-{number}", reason=f"no {reason}")
        for reason in range(reasons)
        for number in range(3)
    ]
    found = [
        text
        for text in texts(tuning(rows=(given(),), refused=tuple(refused)))
        if text.startswith("cannot run")
    ]
    assert len(found) == lines
    assert found[0].endswith(": no 0: c0-0; c0-1 and 1 more")
    left = tuning(rows=(given(), row("a", left="behind", after=1)), refused=tuple(refused))
    hanging = [
        block.hanging
        for block in contents(left)
        if isinstance(block, Paragraph) and block.text.startswith(("cannot run: ", "left behind"))
    ]
    assert hanging == [2] * (1 + min(reasons, 5))
    if reasons > 5:
        assert f" {reasons - 5} other reason" in found[-1]
    tables = [
        block
        for block in contents(tuning(refused=tuple(refused)), full=True)
        if isinstance(block, Table) and block.folded
    ]
    assert [len(table.rows) for table in tables] == [3 * reasons]


@pytest.mark.parametrize(("count", "drawn"), [(12, 12), (13, 12)])
def test_twelve_candidates_are_drawn(count, drawn):
    rows = [row(f"n={number}", 0.1 - 0.01 * number, low=0.0, high=0.2) for number in range(count)]
    document = tuning(rows=(*rows, given(), row("x", None)))
    (group,) = [block for block in contents(document) if isinstance(block, ChartGroup)]
    (chart,) = group.charts
    assert len(chart.rows) == drawn
    assert ("12" in chart.title) == (count > 12)
    first = chart.rows[0]
    assert (first.values[0][0], first.low, first.high) == (0.1, 0.0, 0.2)
    assert first.text == "+10.0 %"
    assert (chart.x.format, chart.x.better, chart.limit) == ("percent", HIGHER, (0.0, "as given"))
    without = contents(tuning(rows=(given(), row("x", None))))
    assert not [block for block in without if isinstance(block, ChartGroup)]


def test_the_command_is_whole_and_the_answer_has_a_tone():
    summary, full = (contents(tuning(), full) for full in (False, True))
    assert (summary[0].whole, summary[1].tone) == (True, "good")
    table = full[0]
    assert [title for title, _, _ in table.columns] == ["flags", "command"]
    scatter, silent = (texts(tuning(scatter=value)) for value in (0.037, None))
    assert [len([text for text in some if "3.7 %" in text]) for some in (scatter, silent)] == [1, 0]


@pytest.mark.parametrize(
    ("verdict", "summaries"), [("open", 1), ("none", 1), ("same", 0), ("slower", 0)]
)
def test_a_page_gives_the_reason_once_and_a_summary_only_in_the_answer(verdict, summaries):
    document = tuning(verdict=verdict, reason="no time")
    for full, told in ((True, 1), (False, summaries)):
        assert sum("no time" in text.lower() for text in texts(document, full)) == told
    assert answer_sentence(document).endswith(": no time.") == (summaries == 1)
    assert not [text for text in texts(document) if text == "The reason."]


def test_a_failure_is_part_of_the_answer():
    document = tuning(failure="one process died")
    (answer,) = report_of(studies=[document]).answers
    assert answer.details[-1] == "one process died"
    plain = dataclasses.replace(document, failure="")
    assert len(report_of(studies=[plain]).answers[0].details) == len(answer.details) - 1
