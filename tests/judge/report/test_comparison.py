"""Tables, tones and the meaning of the exit code of a comparison, by value.

Tests cnnbench/judge/report/comparison.py, cnnbench/judge/compare/verdicts.py and
cnnbench/judge/compare/result.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnnbench.base.document import CommandLine, Items, Paragraph, Table
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import METRICS, Criteria, Policy, SkippedFile, Verdict, compare_records
from cnnbench.judge.compare.verdicts import SameCode
from cnnbench.judge.metrics.rules import Acceptance
from cnnbench.judge.report.comparison import (
    all_counts_text,
    blocks,
    change_column_titles,
    confidence_text,
    counts_text,
    exit_code_meaning,
    metric_tables,
    pairing_sentence,
    result_cells,
    summary_lines,
    verdict_tone,
    verdict_with_reason,
)
from cnnbench.records.run import ModelInfo

BASE = (100.0, 100.2, 99.8, 100.1, 99.9, 100.0)
SPEED, MEMORY = METRICS["throughput"], METRICS["memory"]


@pytest.fixture
def compared(machine_runs):
    """compared(FACTORS): runs of networks, which are so many times as fast in NEW."""

    def make(factors, criteria=None, **more):
        def side(new):
            return [
                run
                for model, factor in factors.items()
                for run in machine_runs.of(
                    *(speed * (factor if new else 1.0) for speed in BASE), flags={"model": model}
                )
            ]

        found = compare_records(side(False), side(True), criteria or Criteria())
        return replace(found, **more)

    return make


def with_judgements(comparison, *changes):
    """The comparison with other judgements on the throughput of each configuration."""
    entries = []
    for entry, parts in zip(comparison.entries, changes, strict=True):
        results = tuple(
            replace(one, judgement=replace(one.judgement, **parts)) if one.metric is SPEED else one
            for one in entry.results
        )
        entries.append(replace(entry, results=results))
    return replace(comparison, entries=tuple(entries))


def judged_as(comparison, *verdicts, **more):
    """The comparison with another verdict on the throughput of each configuration."""
    changes = ({"verdict": Verdict(verdict), **more} for verdict in verdicts)
    return with_judgements(comparison, *changes)


# Verdicts and exit codes


@pytest.mark.parametrize(
    ("verdicts", "parts", "code"),
    [
        (("same", "faster"), {}, ExitCode.OK),
        (("same", "slower"), {}, ExitCode.REGRESSION),
        (("failed", "slower"), {}, ExitCode.REGRESSION),
        (("failed", "inconclusive"), {}, ExitCode.FAILED),
        (("same", "inconclusive"), {}, ExitCode.INCONCLUSIVE),
        (("same", "missing"), {}, ExitCode.INCONCLUSIVE),
        (("same", "not slower"), {}, ExitCode.OK),
        (("slower", "same"), {"fail_on": ()}, ExitCode.OK),
        (("slower", "same"), {"fail_on": ("faster",)}, ExitCode.OK),
        (("faster", "same"), {"fail_on": ("faster",)}, ExitCode.REGRESSION),
        (("changed work", "same"), {"fail_on": ("slower",)}, ExitCode.OK),
        (("slower", "same"), {"ends_with": ExitCode.OK}, ExitCode.OK),
        (("same", "same"), {"ends_with": ExitCode.INTERRUPTED}, ExitCode.INTERRUPTED),
        (("slower", "same"), {"same_code": SameCode(base="a", new="b")}, ExitCode.OK),
        (("same", "same"), {"skipped": (SkippedFile("x", "cut off"),)}, ExitCode.INCONCLUSIVE),
        (("same", "same"), {"skipped": (SkippedFile("x", "other", defect=False),)}, ExitCode.OK),
    ],
)
def test_exit_codes(compared, verdicts, parts, code):
    found = replace(judged_as(compared({"a": 1.0, "b": 1.0}), *verdicts), **parts)
    assert found.exit_code is code


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, ("slower", "changed")),
        ({"fail_on": ("slower", "faster")}, ("slower", "faster")),
        ({"ends_with": ExitCode.REGRESSION}, ("slower", "changed")),
        ({"ends_with": ExitCode.OK}, ()),
        ({"fail_on": ()}, ()),
    ],
)
def test_words_that_set_the_exit_code(compared, parts, words):
    found = compared({"a": 1.0, "b": 1.0, "c": 1.0})
    found = replace(judged_as(found, "slower", "changed work", "faster"), **parts)
    assert found.failed_on == words


def test_configurations_from_worst_to_best(compared):
    found = compared({"a": 0.9, "b": 1.2, "c": 0.8, "d": 1.0})
    names = [entry.name[0] for entry in found.by_severity()]
    assert names == ["c", "a", "b", "d"]
    assert [entry.name[0] for entry in found.deciding_configurations] == names
    assert found.answer.startswith("2 of 4 configurations slower; ")
    assert counts_text(found, SPEED) == "2 slower, 1 faster, 1 same"
    # Less memory is better, so that the larger change is the worse one.
    entry = found.entries[0]
    memory = replace(entry.main, samples=replace(entry.main.samples, metric=MEMORY))
    more = [
        replace(memory, judgement=replace(memory.judgement, verdict=Verdict.SLOWER, change=change))
        for change in (0.1, 0.3, None)
    ]
    assert sorted(more, key=lambda one: one.severity) == [more[1], more[0], more[2]]


def test_a_comparison_is_decided_by_tests_of_what_was_measured(compared):
    found = compared({"a": 1.0, "b": 1.0})
    assert found.is_decided
    for verdict, decided in (
        ("not measured", True),
        ("not faster", True),
        ("inconclusive", False),
        ("failed", False),
        ("changed work", False),
    ):
        assert judged_as(found, "same", verdict).is_decided == decided
    assert not judged_as(found, "not measured", "not measured").is_decided


def test_open_results_with_a_known_number_are_first(compared):
    found = judged_as(compared({"a": 1.0, "b": 1.0, "c": 1.0}), *["inconclusive"] * 3)
    found = with_judgements(found, *({"needed": number} for number in (None, 20, 10)))
    needed = [result.judgement.needed for _, result in found.undecided_entries]
    assert needed[-1] is None
    assert {*needed[:2]} == {10, 20}
    assert judged_as(found, "same", "same", "same").undecided_entries == []


@pytest.mark.parametrize(
    ("changes", "mean", "count"),
    [
        ((0.1, 0.21), 0.15369, 2),
        ((0.25, -0.2), 0.0, 2),
        ((0.1, None), 0.1, 1),
        ((0.1, -1.0), 0.1, 1),
        ((0.1, float("inf")), 0.1, 1),
        ((-0.999, 0.1), None, 2),
    ],
)
def test_geometric_means(compared, changes, mean, count):
    found = compared({"a": 1.0, "b": 1.0})
    made = with_judgements(found, *({"change": change} for change in changes)).geometric_mean
    assert (made.configurations, made.of) == (count, 2)
    if mean is not None:
        assert made.change == pytest.approx(mean, abs=1e-4)


# What the exit code means


def test_meanings_of_the_exit_code_differ(compared):
    found = compared({"a": 1.0})
    slower = compared({"a": 0.8})
    (entry,) = slower.entries
    accepted = Acceptance(commit="1234567", reason="x", until="2999-01-01")
    results = (replace(entry.main, accepted=accepted), *entry.results[1:])
    cases = {
        "ok": found,
        "regression": slower,
        "gain": replace(compared({"a": 1.2}), fail_on=("faster",)),
        "changed": judged_as(found, "changed work"),
        "undecided": judged_as(found, "inconclusive"),
        "failed": judged_as(found, "failed"),
        "interrupted": replace(found, ends_with=ExitCode.INTERRUPTED),
        "same code": replace(slower, same_code=SameCode(base="a", new="b")),
        "accepted": replace(slower, entries=(replace(entry, results=results),)),
        "not named": replace(slower, fail_on=()),
    }
    meanings = {title: exit_code_meaning(one) for title, one in cases.items()}
    assert len({*meanings.values()}) == len(cases)
    both = judged_as(compared({"a": 1.0, "b": 1.0}), "slower", "changed work")
    assert exit_code_meaning(both) == f"{meanings['regression']} and {meanings['changed']}"


# Tables


@pytest.mark.parametrize(
    ("verdict", "parts", "tone"),
    [
        ("slower", {}, "bad"),
        ("slower", {"fail_on": ()}, "bad"),
        ("faster", {}, "good"),
        ("faster", {"fail_on": ("faster",)}, "bad"),
        ("same", {}, ""),
        ("not slower", {}, ""),
        ("inconclusive", {}, "unsure"),
        ("missing", {}, "unsure"),
        ("failed", {}, "bad"),
        ("changed work", {}, "changed"),
    ],
)
def test_tones_of_verdicts(compared, verdict, parts, tone):
    found = replace(judged_as(compared({"a": 1.0}), verdict), **parts)
    (entry,) = found.entries
    assert verdict_tone(found, entry, entry.main) == tone
    cell = result_cells(found, entry, entry.main)["verdict"]
    assert cell.tone == tone
    assert len(cell.mark) == 1


def test_marks_of_verdicts_differ(compared):
    found = compared({"a": 1.0})
    marks = {}
    for verdict in Verdict:
        (entry,) = judged_as(found, verdict.value).entries
        marks[verdict] = result_cells(found, entry, entry.main)["verdict"].mark
    assert marks[Verdict.INCONCLUSIVE] == marks[Verdict.NOT_MEASURED]
    assert len({*marks.values()}) == len(Verdict) - 1


def test_numbers_of_a_row(compared):
    found = compared({"a": 0.9})
    (entry,) = found.entries
    titles = change_column_titles(found)
    cells = result_cells(found, entry, entry.main)
    judgement = entry.main.judgement
    assert [*cells][2:4] == [*titles]
    assert cells[titles[0]].value == judgement.change
    assert cells[titles[1]].value == judgement.low
    assert (cells["base"].value, cells["new"].value) == pytest.approx((100, 90))
    assert cells["p"].value == judgement.p_adjusted
    assert (cells["runs"].value, cells["runs"].text) == (12, "6+6")
    few = compare_records(entry.base[:2], entry.new)
    (row,) = few.entries
    cells = result_cells(few, row, row.main)
    assert cells[titles[1]].value is None
    assert cells["runs"].text == "2+6"


def test_titles_of_pairs(compared):
    plain = change_column_titles(compared({"a": 1.0}))
    pairs = change_column_titles(compared({"a": 1.0}, Criteria(paired=True)))
    assert (plain[0], pairs[0]) == ("change", "paired change")
    assert plain[1] == pairs[1] == "96 % interval"


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ((None, None), "96 %"),
        ((None, 0.98), "96 to 98 %"),
        ((0.98, 0.98), "98 %"),
        ((0.995, 0.99), "99 to 99.5 %"),
    ],
)
def test_levels_of_intervals(compared, levels, text):
    found = compared({"a": 1.0, "b": 1.0}, Criteria(metrics=("throughput",)))
    assert confidence_text(with_judgements(found, *({"confidence": one} for one in levels))) == text
    assert confidence_text(replace(found, entries=())) == "96 %"
    other = replace(found, entries=(), policy=Policy(alpha=0.1))
    assert confidence_text(other) == "90 %"


def test_further_metrics_have_a_table_if_they_changed(machine_runs):
    base, new = machine_runs.with_memory(*[1000] * 6), machine_runs.with_memory(*[1500] * 6)
    tables = metric_tables(compare_records(base, new))
    assert [(metric.name, len(rows)) for metric, rows in tables] == [
        ("throughput", 1),
        ("memory", 1),
    ]
    like = metric_tables(compare_records(base, base))
    assert [metric.name for metric, _ in like] == ["throughput"]
    asked = metric_tables(compare_records(base, new, Criteria(metrics=("memory",))))
    assert [metric.name for metric, _ in asked] == ["memory"]


def test_counts_of_verdicts(compared):
    found = compared({"a": 0.8, "b": 1.0, "c": 1.0}, Criteria(metrics=("throughput",)))
    assert counts_text(found, SPEED) == "1 slower, 2 same"
    assert all_counts_text(found) == "1 slower, 2 same"
    both = compared({"a": 0.8, "b": 1.0}, Criteria(metrics=("throughput", "memory")))
    assert all_counts_text(both).startswith("throughput 1 slower, 1 same; memory 2 ")
    empty = compare_records([], [])
    assert all_counts_text(empty) == "nothing was compared"


@pytest.mark.parametrize(("names", "count"), [("a", 0), ("ab", 1), ("abc", 1)])
def test_how_it_was_judged(compared, names, count):
    found = compared(dict.fromkeys(names, 1.0), Criteria(metrics=("throughput",)))
    (method,) = [one for one in blocks(found) if one.key == "method"]
    (items,) = method.blocks
    tallies = [text for text in items.texts if text.startswith("throughput: ")]
    assert len(tallies) == count
    together = pairing_sentence(found)
    assert (f"{len(names)} configurations" in together) == (len(names) > 1)
    assert "3.0 %" in together
    same = replace(found, same_code=SameCode(base="a", new="b"))
    (method,) = [one for one in blocks(same) if one.key == "method"]
    assert len(method.blocks[0].texts) == len(items.texts) - 1


def test_floors_of_several_configurations_are_a_range(compared):
    found = compared({"a": 1.0, "b": 1.0}, Criteria(metrics=("throughput",)))
    text = pairing_sentence(with_judgements(found, {"floor": 0.03}, {"floor": 0.05}))
    assert "3.0 to 5.0 %" in text


# Parts


def test_commands_of_the_answer(compared):
    found = compared({"a": 1.0})
    assert len(summary_lines(found)) == 1
    both = replace(found, repeat="cnnbench gate", next_step="cnnbench ab")
    assert summary_lines(both)[-1] == "cnnbench gate"
    assert summary_lines(replace(both, repeat=""))[-1] == "cnnbench ab"
    commands = [
        block.name for one in blocks(both) for block in one.blocks if isinstance(block, CommandLine)
    ]
    assert len(commands) == 1


@pytest.mark.parametrize(("count", "named"), [(1, 0), (2, 1), (4, 3), (5, 3)])
def test_three_configurations_with_other_work_are_named(machine_runs, count, named):
    size = {"parameters": 40, "trainable_parameters": 40, "forward_flops_per_image": 80}
    names = [f"net{number}" for number in range(count)]
    base = [run for name in names for run in machine_runs.of(*BASE, flags={"model": name})]
    new = [
        run
        for number, name in enumerate(names)
        for run in machine_runs.of(
            *BASE,
            flags={"model": name},
            model=ModelInfo(name=name, training_flops_per_image=240 + number, **size),
        )
    ]
    found = compare_records(base, new)
    (sides,) = [one for one in blocks(found) if one.key == "sides"]
    changed = [
        block for block in sides.blocks if isinstance(block, Paragraph) and block.tone == "changed"
    ]
    assert len(changed) == named
    assert [isinstance(block, Paragraph) and block.whole for block in sides.blocks[:2]] == [
        *(True, True)
    ]


def test_notes_skipped_files_and_files_of_one_code(compared):
    skipped = (SkippedFile("x", "cut off"), SkippedFile("y", "empty"))
    same = SameCode(base="a", new="b", files=("one.md", "two.md"))
    found = replace(compared({"a": 1.0}), notes=("n",), skipped=skipped, same_code=same)
    lists = [block for one in blocks(found) for block in one.blocks if isinstance(block, Items)]
    assert [len(one.texts) for one in lists if one.about in ("notes", "skipped files")] == [1, 2]
    (files,) = [one for one in lists if one.about == "files"]
    assert (files.texts, files.folded) == (("one.md", "two.md"), True)


def test_a_word_near_the_start_of_a_reason_is_not_repeated(compared):
    (entry,) = compared({"a": 0.8}).entries
    for start, repeated in ((" slower", False), ("x" * 33 + " slower", False), ("x" * 34, True)):
        reason = start if repeated is False else f"{start} slower"
        result = replace(entry.main, judgement=replace(entry.main.judgement, reason=reason))
        assert (verdict_with_reason(result) == reason) != repeated


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [("same", ""), ("not slower", "unheard of"), ("inconclusive", "unheard of")],
)
def test_notes_add_to_a_verdict_other_than_same(compared, verdict, shown):
    found = judged_as(compared({"a": 1.0}), verdict, note="unheard of", reason="r")
    tables = [block for one in blocks(found) for block in one.blocks if isinstance(block, Table)]
    assert tables[0].notes[0] == shown
