"""Tables, answers and charts of a comparison of modes, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from studies import strategies

from cnnbench.base.charts import HIGHER
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.judge.report import gather
from cnnbench.judge.report.sections.strategies import (
    fastest_mode_answers,
    modes_chart,
    strategies_sections,
    work_text,
)
from cnnbench.records.campaigns import StrategyProcess, StrategyRow
from cnnbench.records.load import Loaded


def document_of(*rows, **parts):
    """A comparison of modes with (mode, low, median, high) of images/sec and other fields."""
    made = []
    for (mode, low, median, high), more in rows:
        values = {"processes": 6, "images_per_sec": median, "low": low, "high": high, **more}
        made.append(StrategyRow(mode=mode, **values))
    return strategies(rows=tuple(made), **parts)


ONE = ("one_tower", 200.0, 210.0, 220.0), {"weights": "not compared"}
REFERENCE = ("parameter_server", 170.0, 180.0, 190.0), {"weights": "reference"}


def mode(name, low, median, high, weights="equal", **more):
    return (name, low, median, high), {"weights": weights, "weight_distance": 0.0, **more}


def answer_of(document):
    first, *_ = strategies_sections(document, {})
    return [block.text for block in first.blocks]


@pytest.mark.parametrize(
    ("others", "words", "ends"),
    [
        # One tower is not compared with the modes, although it is faster.
        ([mode("replicated", 100.0, 150.0, 169.0)], ["parameter_server", "180.0"], (170, 190)),
        ([mode("replicated", 100.0, 150.0, 170.0)], ["parameter_server", "replicated"], (100, 190)),
        ([mode("replicated", 190.0, 200.0, 210.0)], ["replicated", "parameter_server"], (170, 210)),
        ([mode("replicated", 191.0, 200.0, 210.0)], ["replicated", "200.0"], (191, 210)),
        # A mode that trains other weights is not the fastest.
        ([mode("independent", 300.0, 310.0, 320.0, "not compared")], ["180.0"], (170, 190)),
        ([mode("replicated", 300.0, 310.0, 320.0, "different")], ["180.0"], (170, 190)),
        ([mode("replicated", None, None, None)], ["180.0"], (170, 190)),
    ],
)
def test_the_fastest_of_the_modes_that_train_equal_weights(others, words, ends):
    (text,) = answer_of(document_of(ONE, REFERENCE, *others))
    assert [word for word in words if word not in text] == []
    assert f"{ends[0]:.1f} to {ends[1]:.1f}" in text
    assert "one_tower" not in text


def test_without_equal_weights_all_modes_are_compared():
    rows = (mode("independent", 300.0, 310.0, 320.0, "not compared"), ONE)
    (text,) = answer_of(document_of(*rows))
    assert "independent" in text


@pytest.mark.parametrize(("processes", "rounds"), [(5, True), (6, False), (1, True)])
def test_six_processes_show_which_mode_is_the_fastest(processes, rounds):
    (name, *speeds), more = mode("replicated", 300.0, 310.0, 320.0)
    (text,) = answer_of(
        document_of(ONE, REFERENCE, ((name, *speeds), {**more, "processes": processes}))
    )
    assert ("--rounds=6" in text) == rounds
    assert ("310.0" in text) != rounds


def test_without_a_speed_there_is_no_answer():
    assert answer_of(document_of(mode("replicated", None, None, None, processes=0))) == []


def tables_of(document, apart=None):
    blocks = [block for one in strategies_sections(document, apart or {}) for block in one.blocks]
    return [block for block in blocks if isinstance(block, Table)]


@pytest.mark.parametrize(
    ("weights", "distance", "text", "tone"),
    [
        ("reference", 0.0, "reference", "good"),
        ("equal", 0.0, "equal, all bits", "good"),
        ("equal", 2e-6, "equal, within 2.000e-06", "good"),
        ("equal", None, "equal", "good"),
        ("different", 0.5, "different, by 0.5000", "bad"),
        ("not compared", None, "not compared", ""),
        ("", None, "-", ""),
    ],
)
def test_weights_of_a_mode(weights, distance, text, tone):
    own = mode("replicated", 1.0, 2.0, 3.0, weights, weight_distance=distance)
    speeds, *_ = tables_of(document_of(REFERENCE, own))
    column = [title for title, _, _ in speeds.columns].index("weights")
    cell = speeds.rows[1][column]
    assert (cell.text, cell.tone) == (text, tone)


def test_problems_and_weights_that_were_not_compared_are_told():
    died = mode("replicated", None, None, None, "", problem="died")
    document = document_of(REFERENCE, died, incomplete="stopped")
    *_, second = strategies_sections(document, {"independent": "no checkpoint"})
    paragraphs = [block for block in second.blocks if isinstance(block, Paragraph)]
    told = [(block.tone, block.text) for block in paragraphs]
    assert ("bad", "Incomplete: stopped") in told
    assert [tone for tone, text in told if "no checkpoint" in text] == [""]
    assert [tone for tone, text in told if "died" in text] == ["bad"]
    calm = [*strategies_sections(document_of(REFERENCE), {})][-1]
    assert {block.tone for block in calm.blocks if isinstance(block, Paragraph)} <= {""}


def test_costs_are_in_a_folded_table():
    own = mode("replicated", 1.0, 2.0, 3.0, variables=8, variable_copies=16, build_seconds=2.5)
    speeds, costs = tables_of(document_of(REFERENCE, own))
    assert (speeds.folded, costs.folded) == (False, True)
    titles = [title for title, _, _ in costs.columns]
    row = dict(zip(titles, costs.rows[1], strict=True))
    assert [row[name].value for name in ("variables", "copies", "build, s")] == [8, 16, 2.5]


def test_each_process_is_a_dot():
    processes = tuple(
        StrategyProcess(mode="replicated", round=at, run_id=str(at), images_per_sec=speed)
        for at, speed in enumerate((100.0, 120.0, None), start=1)
    )
    document = strategies(processes=processes)
    chart = modes_chart(document)
    (row,) = chart.rows
    assert row.label == "replicated"
    assert [value for value, _ in row.values] == [100, 120]
    assert row.centre == 110
    assert all("images/sec" in hint for _, hint in row.values)
    assert (chart.x.zero, chart.x.better) == (True, HIGHER)
    groups = [
        block
        for one in strategies_sections(document, {})
        for block in one.blocks
        if isinstance(block, ChartGroup)
    ]
    assert [len(group.charts) for group in groups] == [1]


@pytest.mark.parametrize(("precision", "named"), [(None, 0), ("fp32", 0), ("bf16", 1)])
def test_another_number_format_is_part_of_the_title(precision, named):
    document = strategies()
    config = {**document.config, "precision": precision}
    text = work_text(dataclasses.replace(document, config=config))
    assert text.count("bf16") == named
    assert "fp32" not in text


@pytest.mark.parametrize(
    ("weights", "problem", "tone"),
    [
        ("equal", "", ""),
        ("equal", "died", "bad"),
        ("different", "", "bad"),
        ("different", "died", "bad"),
        ("not compared", "", ""),
    ],
)
def test_an_answer_is_bad_if_a_mode_is_wrong(weights, problem, tone):
    own = mode("replicated", 100.0, 150.0, 160.0, weights, problem=problem)
    document = document_of(REFERENCE, own)
    results = gather(Loaded((), (), (), (document,)))
    (answer,) = fastest_mode_answers(results)
    assert answer.tone == tone
