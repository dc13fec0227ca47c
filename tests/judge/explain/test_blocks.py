"""Tables, chart and answer of an explanation that is put together by hand.

Tests cnnbench/judge/explain/blocks.py and cnnbench/judge/explain/phrases.py.
"""

from __future__ import annotations

import dataclasses
import math

import pytest

from cnnbench.base.document import Items
from cnnbench.judge.explain.blocks import (
    causes_table,
    differences_chart,
    explanation_rows,
    explanation_sections,
)
from cnnbench.judge.explain.phrases import answer, in_ms, signed_ms
from cnnbench.records.explanation import Cause, Explanation, FactChange


def cause(base, new, place="conv0", spread=1e-3, **more):
    values = {"kind": "kernel", "text": "slower", **more}
    return Cause(base=base, new=new, spread=spread, place=place, **values)


def explanation(*causes, rows=(), **more):
    """A step of 100 ms and of 120 ms; rows are layers with (seconds of A, of B, spread)."""
    values = {
        "answer": "the answer",
        "base_label": "A",
        "new_label": "B",
        "base": 0.1,
        "new": 0.12,
        "spread": 0.001,
        "chance": 0.005,
        "profiled_base": 0.09,
        "profiled_new": 0.105,
        "rows": (),
        "causes": causes,
        "facts": (),
        "base_processes": 3,
        "new_processes": 3,
        "steps": 8,
        **more,
    }
    found = Explanation(**values)
    made = [
        found.make_row(layer, base=base, new=new, spread=spread)
        for layer, (base, new, spread) in rows
    ]
    return dataclasses.replace(found, rows=tuple(made))


ROWS = (
    ("a", (0.04, 0.05, 0.001)),
    ("b", (0.03, 0.025, 0.001)),
    ("c", (0.01, 0.014, 0.005)),
    ("d", (0.006, 0.008, 0.001)),
    ("e", (0.004, 0.005, 0.001)),
)


@pytest.mark.parametrize(
    ("most", "layers"),
    [
        (0, ["a", "c", "d", "e", "b"]),
        (5, ["a", "c", "d", "e", "b"]),
        (9, ["a", "c", "d", "e", "b"]),
        (2, ["a", "b", "3 other rows"]),
        (4, ["a", "c", "d", "b", "1 other row"]),
    ],
)
def test_rows_that_contribute_to_the_difference_are_first(most, layers):
    lines = explanation_rows(explanation(rows=ROWS), most)
    assert [line.layer for line in lines[:-2]] == layers
    not_profiled, step = lines[-2:]
    assert (not_profiled.base, not_profiled.new) == pytest.approx((0.01, 0.015))
    assert (step.base, step.new, step.spread) == (0.1, 0.12, 0.001)
    if most == 2:
        others = lines[2]
        assert (others.base, others.new) == pytest.approx((0.02, 0.027))
        assert others.share == pytest.approx(0.007 / 0.02)
        assert math.isnan(others.spread)


def test_rows_without_a_known_difference_have_no_share():
    lines = explanation_rows(explanation(rows=ROWS, spread=1.0), 2)
    assert {line.share for line in lines} == {None}


def test_the_chart_has_the_spread_where_it_is_known():
    chart = differences_chart(explanation(rows=ROWS), 2)
    first, second, others, _, step = chart.rows
    assert (first.values[0][0], first.low, first.high) == pytest.approx((10, 9, 11))
    assert (second.values[0][0], second.low, second.high) == pytest.approx((-5, -6, -4))
    assert (others.low, others.high, others.tone) == (None, None, "")
    assert (first.tone, second.tone, step.tone) == ("bad", "good", "bad")
    assert chart.limit[0] == 0
    assert ("2" in chart.title, "5" in chart.title) == (True, True)
    # Within its spread, a difference is neither good nor bad.
    every = differences_chart(explanation(rows=ROWS), 0)
    tones = {row.label: row.tone for row in every.rows}
    assert (tones["c"], tones["d"]) == ("", "bad")
    assert len(every.rows) == 7
    assert "largest" not in every.title
    assert "largest" not in differences_chart(explanation(rows=ROWS), 5).title
    assert "largest" in differences_chart(explanation(rows=ROWS), 4).title


def test_a_difference_as_large_as_its_spread_is_no_difference():
    found = explanation(rows=(("a", (1.0, 3.0, 2.0)), ("b", (1.0, 3.0, 1.5))))
    assert [row.tone for row in differences_chart(found).rows[:2]] == ["", "bad"]


@pytest.mark.parametrize(
    ("most", "full", "rows", "title"),
    [(2, False, 5, "The largest"), (2, True, 7, "All"), (0, False, 7, "All"), (5, False, 7, "All")],
)
def test_the_table_of_rows(most, full, rows, title):
    _, _, section, _ = explanation_sections(explanation(rows=ROWS), most, full)
    (table,) = section.blocks
    assert (len(table.rows), table.folded) == (rows, True)
    assert table.title.startswith(title)
    titles = [name for name, _, _ in table.columns]
    first = dict(zip(titles, table.rows[0], strict=True))
    assert [first[name].value for name in ("A, ms", "B, ms", "difference, ms", "+/-, ms")] == (
        pytest.approx([40, 50, 10, 1])
    )
    assert table.rows[-2][titles.index("+/-, ms")].value is None


def test_the_table_of_causes():
    two = explanation(cause(0.03, 0.05), cause(0.02, 0.015, "conv1"))
    table = causes_table(two)
    values = [[cell.value for cell in row[1:5]] for row in table.rows]
    assert values[:2] == [pytest.approx([20, 30, 50, 1]), pytest.approx([-5, 20, 15, 1])]
    # 20 ms of the step, of which the causes explain 15.
    assert values[2] == [pytest.approx(5), None, None, None]
    work = causes_table(explanation(cause(0.03, 0.05), by_work=True))
    assert len(work.rows) == 1
    assert work.title != table.title
    assert causes_table(explanation()) is None


@pytest.mark.parametrize(
    ("count", "full", "listed"), [(12, False, 12), (13, False, 13), (15, False, 13), (15, True, 15)]
)
def test_twelve_further_differences_are_listed(count, full, listed):
    facts = tuple(FactChange(fact=f"f{n}", base="1", new="2") for n in range(count))
    *_, others = explanation_sections(explanation(facts=facts), full=full)
    (items,) = [block for block in others.blocks if isinstance(block, Items)]
    assert len(items.texts) == listed
    assert items.folded
    if listed < count or (count == 13 and not full):
        assert str(count - 12) in items.texts[-1]
        assert "f11" in items.texts[-2]


# Answers


@pytest.mark.parametrize(
    ("base", "new", "is_few"), [(1, 3, True), (3, 1, True), (2, 2, False), (2, 3, False)]
)
def test_one_process_of_a_side_is_not_enough(base, new, is_few):
    found = explanation(base_processes=base, new_processes=new, new=0.101)
    assert ("--rounds=3" in answer(found)) == is_few


@pytest.mark.parametrize(
    ("chance", "words"),
    [(0.0199, "A step takes"), (0.0201, "No significant"), (0.0999, "No s"), (0.1, "Inconclusive")],
)
def test_answers_without_causes(chance, words):
    assert answer(explanation(chance=chance)).startswith(words)


@pytest.mark.parametrize(
    ("second", "named"),
    [
        # A tenth of the difference of 20 ms, or of the first cause.
        ((0.010, 0.0121), True),
        ((0.010, 0.0119), False),
        ((0.0121, 0.010), True),
    ],
)
def test_a_second_cause_is_named_if_it_matters(second, named):
    found = explanation(cause(0.03, 0.05), cause(*second, "conv1"))
    assert ("conv1" in answer(found)) == named


def test_two_causes_are_named():
    places = [f"conv{number}" for number in range(4)]
    found = explanation(*(cause(0.01, 0.015, place) for place in places))
    assert [place in answer(found) for place in places] == [True, True, False, False]
    work = dataclasses.replace(found, by_work=True, chance=1.0)
    assert [place in answer(work) for place in places] == [True, True, False, False]


@pytest.mark.parametrize(
    ("causes", "although"),
    [
        ([cause(0.03, 0.05)], False),
        ([cause(0.03, 0.065), cause(0.05, 0.035, "conv1")], True),
        # What no cause explains: 2.1 ms in the other direction, 1.9 ms, or in the same direction.
        ([cause(0.03, 0.0525)], True),
        ([cause(0.03, 0.0519)], False),
        ([cause(0.03, 0.045)], False),
    ],
)
def test_causes_against_the_difference_are_told_apart(causes, although):
    assert ("although" in answer(explanation(*causes))) == although


@pytest.mark.parametrize(("new", "told"), [(0.0479, True), (0.0481, False)])
def test_a_tenth_that_no_cause_explains_is_told(new, told):
    text = answer(explanation(cause(0.03, new)))
    assert ("2.100 ms that no" in text) == told


def test_a_difference_within_its_spread_is_not_significant():
    found = explanation(cause(0.03, 0.05), spread=0.0201)
    assert answer(found).startswith("No significant difference")
    assert answer(dataclasses.replace(found, spread=0.0199)).startswith("A step takes")


@pytest.mark.parametrize(
    ("seconds", "text", "signed"),
    [
        (0.0123, "12.30", "+12.30"),
        (-0.0123, "-12.30", "-12.30"),
        (0.0, "0.000", "0.000"),
        (1e-6, "0.001000", "+0.001000"),
        (9e-7, "0.000", "+0.000"),
    ],
)
def test_milliseconds(seconds, text, signed):
    assert float(in_ms(seconds)) == pytest.approx(float(text))
    assert signed_ms(seconds).startswith(signed[:1])
    assert (float(in_ms(seconds)) == 0) == (abs(seconds) < 1e-6)
