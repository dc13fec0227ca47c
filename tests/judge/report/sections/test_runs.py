"""Lists of processes and commands: how many of them, and in which order."""

from __future__ import annotations

import pytest
from pages import report_of, rows, section
from studies import tuning

from cnnbench.base.document import Paragraph, Table
from cnnbench.judge.report import build, gather
from cnnbench.judge.report.sections import runs as sections
from cnnbench.records.load import Loaded, SkippedFile
from cnnbench.records.subject import Subject


@pytest.fixture
def few(monkeypatch):
    """A table has at most three processes."""
    monkeypatch.setattr(sections, "MOST_LISTED", 3)


FAILED = {"error": ("OSError", "no disk"), "step_seconds": (), "losses": ()}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("count", "listed"), [(3, 3), (4, 3)])
def test_the_newest_failures_are_listed(full_runs, count, listed):
    made = [full_runs(**FAILED) for _ in range(count)]
    report = report_of(full_runs(100), *made)
    found = section(report, "problems")
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    assert len(table.rows) == listed
    assert [row["run"] for row in rows(report, "problems")] == [
        run.run_id for run in made[-listed:]
    ]
    texts = [block.text for block in found.blocks if isinstance(block, Paragraph)]
    assert len(texts) == 1 + (count > listed)
    if count > listed:
        assert ("3" in texts[1], str(count) in texts[1]) == (True, True)


@pytest.mark.usefixtures("few")
def test_skipped_files_are_listed_with_their_kind(full_runs):
    skipped = [SkippedFile(f"{n}.json", "cut off", defect=n % 2 == 0) for n in range(4)]
    report = build(gather(Loaded((full_runs(100),), tuple(skipped))))
    (table,) = [block for block in section(report, "problems").blocks if isinstance(block, Table)]
    assert [row[0].text for row in table.rows] == ["0.json", "1.json", "2.json"]
    assert [row[2].tone for row in table.rows] == ["bad", "", "bad"]


def test_steps_of_runs_that_were_interrupted(full_runs):
    cut = full_runs(
        status="interrupted", step_seconds=(0.1,) * 5, losses=(), flags={"num_batches": 9}
    )
    unknown = full_runs(
        status="interrupted", step_seconds=(0.1,) * 5, losses=(), flags={"num_batches": None}
    )
    found = rows(report_of(cut, unknown), "problems")
    assert [row["timed steps"] for row in found] == ["5 of 9", "5 of ?"]
    failed = rows(report_of(full_runs(**FAILED)), "problems")
    assert failed[0]["error"] == "OSError: no disk"


@pytest.mark.parametrize(("count", "folded"), [(12, False), (13, True)])
def test_many_commands_are_folded(full_runs, count, folded):
    made = [full_runs(100, flags={"batch_size": 1 + number}) for number in range(count)]
    report = report_of(*made)
    _, table = [block for block in section(report, "reproduce").blocks if isinstance(block, Table)]
    assert (len(table.rows), table.folded) == (count, folded)


def test_commands_are_in_order_of_their_first_process(full_runs):
    first, second, third = (
        full_runs(100, flags={"batch_size": size}, started_at=f"2026-11-20T{hour}:00:00{zone}")
        for size, hour, zone in ((8, "12", "+00:00"), (9, "10", "+00:00"), (8, "13", "+05:00"))
    )
    found = rows(report_of(first, second, third), "reproduce", 1)
    assert [(row["measures"].split(",")[1].strip(), row["processes"]) for row in found] == [
        *(("batch 8", "2"), ("batch 9", "1"))
    ]


@pytest.mark.parametrize(
    ("facts", "subject", "own", "measured"),
    [
        ({"git_commit": "a" * 12}, None, "a" * 12, None),
        ({"git_commit": "a" * 12, "git_dirty": True}, None, "a" * 12 + "+", None),
        (
            {"git_commit": "a" * 12, "git_dirty": True, "git_changes": "0123"},
            None,
            "a" * 12 + "+0123",
            None,
        ),
        ({"git_dirty": True}, None, None, None),
        (
            {"git_commit": "a" * 12},
            Subject(repository="nets", revision="b" * 12, dirty=True, changes="45"),
            "a" * 12,
            "b" * 12 + "+45",
        ),
        (
            {"git_commit": "a" * 12},
            Subject(repository="nets", revision="b" * 12, dirty=False),
            "a" * 12,
            "b" * 12,
        ),
    ],
)
def test_commits_and_changes_of_processes(full_runs, facts, subject, own, measured):
    more = {"subject": subject} if subject else {}
    (row,) = rows(report_of(full_runs(100, environment=facts, **more)), "reproduce")
    assert row.get("commit of cnnbench") == own
    assert row.get("its commit") == measured
    assert row.get("measured in") == (subject and "nets")


def test_alike_processes_are_one_row(full_runs):
    found = rows(
        report_of(*full_runs.of(100, 101), full_runs(99, environment={"x": 1})), "reproduce"
    )
    assert [row["processes"] for row in found] == ["3"]
    other = full_runs(100, environment={"tensorflow_version": "2.20"})
    found = rows(report_of(full_runs(100), other), "reproduce")
    assert [row["processes"] for row in found] == ["1", "1"]


def test_processes_of_a_search_are_those_of_its_races_and_pairs(full_runs):
    found = rows(report_of(full_runs(100), studies=[tuning(pairs=12)]), "reproduce", 1)
    (row,) = [one for one in found if "tune" in one["command"]]
    assert row["processes"] == str(8 + 8 + 3 + 2 * 12)


# Speeds


@pytest.mark.parametrize(("count", "lines"), [(3, 4), (4, 5)])
def test_three_speeds_are_named(full_runs, count, lines):
    made = [full_runs(100 * (1 + n), flags={"batch_size": 1 + n}) for n in range(count)]
    answer = report_of(*made).answers[0]
    # The last line is a hint.
    assert len(answer.details) == lines
    assert f"{count} " in answer.name
    assert answer.text.startswith("100.0 to ")
    assert f"{100.0 * count:.1f}" in answer.text
    assert (f"and {count - 3} more" in answer.details[-2]) == (count > 3)


def test_one_speed_is_that_of_its_configuration(full_runs):
    answer = report_of(*full_runs.of(100, 102)).answers[0]
    assert "lenet" in answer.name
    assert answer.text.startswith("101.0 ")
    assert len(answer.details) == 2
