"""The head of a report: its title, period, highlights and answers, by value.

Tests cnnbench/judge/report/sections/__init__.py.
"""

from __future__ import annotations

import pytest
from pages import report_of
from studies import tuning

from cnnbench.base.document import Answer, Section
from cnnbench.judge.compare import compare_records
from cnnbench.judge.report import build, gather
from cnnbench.judge.report import results as results_module
from cnnbench.records.load import Loaded, SkippedFile
from cnnbench.records.subject import Subject


@pytest.mark.parametrize(
    ("models", "title"),
    [
        (["lenet"], "lenet"),
        (["lenet", "lenet"], "lenet"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
    ],
)
def test_titles_name_three_networks(full_runs, models, title):
    report = report_of(*(full_runs(100, flags={"model": model}) for model in models))
    assert report.title.endswith(f" {title}")


def test_titles_of_reports_without_runs(full_runs, measured):
    comparison = compare_records([], [], labels=("old", "new"))
    compared = build(gather(Loaded((), ()), comparison=comparison))
    assert ("new" in compared.title, "old" in compared.title) == (True, True)
    titles = {
        compared.title,
        report_of().title,
        report_of(reductions=[measured]).title,
        report_of(studies=[tuning()]).title,
    }
    assert len(titles) == 4
    assert build(gather(Loaded((full_runs(100),), ())), "own").title == "own"
    both = build(gather(Loaded((full_runs(100),), ()), comparison=comparison))
    assert both.title == build(gather(Loaded((full_runs(100),), ()))).title


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        (["2026-11-20T00:00:00+00:00"], "measured 2026-11-20 00:00 UTC"),
        (
            ["2026-11-21T09:30:00+00:00", "2026-11-20T00:00:59+00:00", "2026-11-20T12:00:00+00:00"],
            "measured 2026-11-20 00:00 to 2026-11-21 09:30 UTC",
        ),
    ],
)
def test_the_period_of_the_measurements(full_runs, starts, ends):
    report = report_of(*(full_runs(100, started_at=start) for start in starts))
    assert report.subtitle.endswith(ends)
    assert "measured" not in report_of().subtitle


def test_failures_and_faulty_files_are_an_answer(full_runs):
    failed = {"step_seconds": (), "losses": ()}
    errors = [full_runs(error=("E", f"no {n}"), **failed) for n in (1, 2, 3, 4, 1)]
    skipped = (SkippedFile("a", "cut off"), SkippedFile("b", "other", defect=False))
    loaded = Loaded((full_runs(100), *errors), skipped)
    (answer,) = [one for one in build(gather(loaded)).answers if one.name == "Failed"]
    assert answer.tone == "bad"
    assert answer.text.startswith("5 of 6 processes")
    assert "1 faulty file" in answer.text
    (detail,) = answer.details
    assert detail == "E: no 1; E: no 2; E: no 3 and 1 more"
    only = build(gather(Loaded((full_runs(100),), skipped)))
    (answer,) = [one for one in only.answers if one.name == "Failed"]
    assert (answer.text, answer.details) == ("1 faulty file", ())
    calm = build(gather(Loaded((full_runs(100),), skipped[1:])))
    assert [one for one in calm.answers if one.name == "Failed"] == []
    assert dict(calm.highlights)["skipped"].startswith("1 file, 0 ")
    assert dict(build(gather(loaded)).highlights)["skipped"].startswith("2 files, 1 ")


def highlights(*records, **more):
    return dict(report_of(*records, **more).highlights)


def test_facts_of_the_machine(full_runs):
    facts = {"usable_cpus": 4, "memory_bytes": 2**31, "cpu_model": "Fast CPU"}
    found = highlights(full_runs(100, environment=facts))
    assert found["processor"] == "Fast CPU, 4 CPUs, 2 GiB of memory"
    assert "GPUs" not in found
    gpus = {"gpu_names": ["H", "H"], "cpu_model": None}
    found = highlights(full_runs(100, environment={**gpus, "usable_cpus": 4}))
    assert found["GPUs"] == "2 x H"
    # The first property decides whether there is anything to show.
    assert "processor" not in found
    models = [full_runs(100, environment={"cpu_model": f"CPU {n}"}) for n in range(5)]
    assert highlights(*models)["processor"] == "CPU 0; CPU 1; CPU 2 and 2 more"
    commits = [full_runs(100, environment={"cnnbench_version": "1", "git_commit": "c" * 40})]
    assert highlights(*commits)["cnnbench"] == f"1, {'c' * 12}"


def test_what_was_measured_is_counted(full_runs, measured):
    subjects = [Subject(revision=letter * 40) for letter in "ab"]
    runs = [full_runs(100, subject=subject) for subject in subjects]
    found = highlights(*runs, reductions=[measured, measured], studies=[tuning(), tuning()])[
        "measured"
    ]
    assert found.split(", ") == [
        *("1 configuration", "2 commits", "2 processes", "2 all-reduce runs"),
        "2 searches of flags",
    ]
    machines = [full_runs(100, environment={"hostname": one, "cpu_model": one}) for one in "xy"]
    assert highlights(*machines)["measured"] == "1 configuration, 2 machines, 2 processes"
    # Without a known revision, there are no commits to count.
    assert "commit" not in highlights(full_runs(100), full_runs(100))["measured"]
    assert "measured" not in highlights()


@pytest.mark.parametrize(("count", "shown"), [(3, None), (4, "3 of 4"), (5, "3 of 5")])
def test_many_configurations_are_shown_in_part(full_runs, monkeypatch, count, shown):
    monkeypatch.setattr(results_module, "MOST_SHOWN", 3)
    made = [full_runs(100, flags={"batch_size": 1 + number}) for number in range(count)]
    report = report_of(*made)
    found = [one for one in report.answers if one.tone == "unsure" and "section" not in one.name]
    extent = [one for one in found if one.name == "Extent"]
    assert [shown in one.text for one in extent] == ([True] if shown else [])


def test_answers_and_sections_of_others(full_runs):
    results = gather(Loaded((full_runs(100),), ()))
    own, early = Answer("own", "x"), Answer("early", "y")
    section = Section.of(["text"], "mine", "Mine")
    report = build(results, answers=(own,), first=(section,), before=(early,))
    assert report.answers[:2] == (early, own)
    assert report.sections[0] is section
    plain = build(results)
    assert len(plain.answers) == len(report.answers) - 1
    # Searches and modes have answers of their own, so that no speed is told.
    searched = report_of(full_runs(100), studies=[tuning()])
    assert [one.name for one in searched.answers if one.name.startswith("Speed")] == []


def test_the_last_sections_are_folded(folder):
    report = build(gather(folder))
    folded = [one.folded for one in report.sections]
    assert folded == sorted(folded)
    by_key = {one.key: one.folded for one in report.sections}
    assert (by_key["throughput"], by_key["memory"], by_key["steps"]) == (False, True, True)


def test_with_a_comparison_only_what_is_about_the_verdict_is_open(full_runs):
    failed = full_runs(error=("E", "x"), step_seconds=(), losses=())
    report = report_of(*full_runs.of(100, 101), failed, base=full_runs.of(100, 101))
    first, second, *others = report.sections
    assert [(one.key, one.folded) for one in (first, second)] == [
        *(("baseline", False), ("problems", False))
    ]
    assert all(one.folded for one in others)
    assert {"throughput", "reproduce"} <= {one.key for one in others}
