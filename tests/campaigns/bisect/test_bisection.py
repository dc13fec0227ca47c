"""Whole bisections over answers that are given, and how their results are told and stored.

Tests cnnbench/campaigns/bisect/*.py, as does test_search.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from golden import golden

from cnnbench.base.inference import FIRST_ANALYSIS
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.bisect.answers import (
    BAD,
    GOOD,
    SKIP,
    BisectionStep,
    shared_configuration,
    step_answer_text,
)
from cnnbench.campaigns.bisect.history import find_repository_root, good_and_bad_hashes
from cnnbench.campaigns.bisect.search import BISECT, Bisection, BisectionSettings
from cnnbench.campaigns.bisect.texts import (
    bisection_text,
    store_result,
    stored_result,
    why_no_search,
)
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.compare import Judgement, Verdict

SLOWER = Judgement(verdict=Verdict.SLOWER, reason="p = 0.001", change=-0.3, low=-0.35, high=-0.25)
SAME = Judgement(verdict=Verdict.SAME, reason="within 3 %", change=0.01, low=-0.02, high=0.02)
OPEN = Judgement(verdict=Verdict.INCONCLUSIVE, reason="2 pairs", change=-0.1, needed=40)
FAILED = Judgement(verdict=Verdict.FAILED, reason="does not build")


class Line:
    """A history without merges: commits are the texts of numbers."""

    first_parent = False

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def suspects(self, good: list[str], bad: str) -> list[str]:
        left = [str(n) for n in range(max(map(int, good)) + 1, int(bad) + 1)]
        place = {commit: index + 1 for index, commit in enumerate(left)}
        return sorted(left, key=lambda one: -min(place[one], len(left) - place[one]))

    def order_by_ancestry(self, commits: tuple[str, ...], good: str, bad: str) -> tuple[str, ...]:
        return tuple(sorted(commits, key=int))

    def format_commit(self, commit: str, form: str = "%s") -> str:
        texts = {"%s": f"change {commit}", "%an, %as": "someone, 2026-11-20", "%P": "1", "%b": ""}
        return texts[form]

    def parent(self, commit: str) -> str:
        return str(int(commit) - 1)


def step(commit: str, judgement: Judgement, answer: str, pairs: int = 12) -> BisectionStep:
    return BisectionStep(
        commit=commit, answer=answer, judgement=judgement, confidence=0.95, pairs=pairs
    )


class Answered(Bisection):
    """A bisection of a line that has ended, with answers in place of measurements.

    Args:
      given: answers by commit.
      stored: commits that earlier sessions have measured.
    """

    seconds_per_pair: Any = None

    def __init__(
        self,
        given: Mapping[str, BisectionStep],
        repository: Path,
        *,
        stored: tuple[str, ...] = (),
        seconds: float | None = 10.0,
        most_pairs: int = 32,
    ) -> None:
        line: Any = Line(repository)
        setting = BisectionSettings(
            history=line,
            good="0",
            bad="9",
            side=AbSide(flags=("--model=lenet",)),
            build=None,
            experiment=Experiment(seed=1, most_pairs=most_pairs, timeout=60.0),
            pairing="alternate",
        )
        self.said = io.StringIO()
        campaign, nothing = Campaign(ChildProcessReporter(self.said)), cast(Any, None)
        super().__init__(setting, nothing, campaign, nothing)
        self.seconds_per_pair = seconds
        self.measured: list[str] = []
        self._given, self._stored = given, stored
        campaign.run_requests(self.requests())

    def stored_answer(self, commit: str) -> BisectionStep | None:
        return self._given[commit] if commit in self._stored else None

    def compare_with_good(self, commit: str) -> Any:
        yield from ()
        self.measured.append(commit)
        return self._given[commit]


def answers(culprit: int, *skipped: str) -> dict[str, BisectionStep]:
    """Those about the commits 1 to 9, of which the culprit is the first that is slower."""
    found = {
        str(n): step(str(n), SLOWER, BAD) if n >= culprit else step(str(n), SAME, GOOD)
        for n in range(1, 10)
    }
    return found | {commit: step(commit, FAILED, SKIP, 0) for commit in skipped}


@pytest.fixture
def bisected(tmp_path: Path) -> Callable[..., Answered]:
    """bisected(ANSWERS): see `Answered`."""
    return lambda given, **more: Answered(given, tmp_path / "repository", **more)


@pytest.mark.parametrize("culprit", [1, 5, 6, 9])
def test_the_first_bad_commit_is_found(bisected: Callable[..., Answered], culprit: int) -> None:
    found = bisected(answers(culprit))
    assert found.suspects == (str(culprit),)
    assert found.unanswered_steps == []
    assert found.measured[0] == "9"
    assert list(found.steps) == found.measured
    assert len(found.measured) <= 5


def test_commits_that_were_measured_before_are_not_measured_again(
    bisected: Callable[..., Answered],
) -> None:
    whole = bisected(answers(4))
    found = bisected(answers(4), stored=tuple(whole.measured))
    assert (found.suspects, found.steps) == (whole.suspects, whole.steps)
    assert found.measured == []
    assert found.said.getvalue().count("as measured before") == len(whole.measured)


def test_where_bad_does_not_differ_nothing_is_searched(bisected: Callable[..., Answered]) -> None:
    for verdict, answer in ((SAME, GOOD), (FAILED, SKIP)):
        found = bisected({"9": step("9", verdict, answer)})
        assert (found.suspects, found.measured) == ((), ["9"])
        assert found.unanswered_steps == [found.bad_step]


def test_skipped_commits_stay_suspects(bisected: Callable[..., Answered]) -> None:
    found = bisected(answers(5, "3", "4"))
    assert found.suspects == ("3", "4", "5")
    assert [one.commit for one in found.unanswered_steps] == [
        commit for commit in found.steps if commit in ("3", "4")
    ]


MOST = f"{FIRST_ANALYSIS} to 32 pairs"


@pytest.mark.parametrize(
    ("most_pairs", "seconds", "texts"),
    [
        (32, 10.0, ("9 commits", "5 steps", MOST, "28 min", "a first guess")),
        (4, 10.0, ("9 commits", "5 steps", "4 pairs", "4 min")),
        (32, None, ("9 commits", "5 steps", MOST)),
    ],
)
def test_how_long_it_takes_is_said_before(
    bisected: Callable[..., Answered],
    most_pairs: int,
    seconds: float | None,
    texts: tuple[str, ...],
) -> None:
    found = bisected(answers(4), most_pairs=most_pairs, seconds=seconds)
    first = found.said.getvalue().splitlines()[0]
    assert all(text in first for text in texts)
    assert ("guess" in first) == (seconds is not None)


def test_a_search_for_changed_work_takes_a_pair_each(bisected: Callable[..., Answered]) -> None:
    other = Judgement(verdict=Verdict.CHANGED_WORK, reason="FLOPs differ")
    given = {
        str(n): replace(step(str(n), other, BAD if n >= 3 else GOOD, 1), about_work=True)
        for n in range(1, 10)
    }
    found = bisected(given)
    assert found.suspects == ("3",)
    lines = found.said.getvalue().splitlines()
    assert [" of 1 pair, " in line for line in lines if "may be" in line][1:] == [True] * (
        len(found.steps) - 1
    )
    assert step_answer_text(given["3"]).startswith("bad")
    assert step_answer_text(given["2"]).startswith("good")


def test_results_are_told(
    bisected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    texts = []
    for given in (
        answers(4),
        answers(5, "3", "4"),
        {**answers(9), "8": step("8", OPEN, SKIP, 2)},
        {"9": step("9", SAME, GOOD)},
    ):
        texts.append(bisection_text(bisected(given)))
    faster = replace(SLOWER, verdict=Verdict.FASTER, change=0.05, low=0.04, high=0.06)
    for judgement, answer in (
        (faster, GOOD),
        (SAME, GOOD),
        (OPEN, SKIP),
        (replace(SAME, verdict=Verdict.NOT_SLOWER), GOOD),
        (FAILED, SKIP),
        (replace(SLOWER, low=None), BAD),
    ):
        one = step("9", judgement, answer)
        texts.append(f"{step_answer_text(one)}\n{why_no_search(one)}")
    text = "\n\n".join(texts).replace(str(tmp_path), "DIR")
    golden(Path(__file__).parent / "golden" / "bisect.txt", text + "\n")


def test_a_result_is_stored_for_reports(bisected: Callable[..., Any], tmp_path: Path) -> None:
    assert stored_result(tmp_path) is None
    with ResultsFolder(BISECT, tmp_path / "begun") as folder:
        folder.add_session_start()
    answer, sections = stored_result(tmp_path / "begun")
    assert (answer.tone, "not ended" in answer.text, sections) == ("unsure", True, [])
    for given, tone, sure in (
        (answers(4), "bad", True),
        (answers(5, "3", "4"), "unsure", False),
        ({"9": step("9", SAME, GOOD)}, "unsure", False),
    ):
        found = bisected(given)
        with ResultsFolder(BISECT, tmp_path / "results", resume=True) as folder:
            folder.add_session_start()
            store_result(folder, found)
        answer, (section,) = stored_result(tmp_path / "results")
        assert answer.tone == tone
        assert (answer.text == "4 is the first bad commit") is sure
        assert all(f"change {commit}" in repr(section.blocks) for commit in found.steps)


def test_a_build_that_failed_is_not_repeated(tmp_path: Path) -> None:
    setting: Any = SimpleNamespace(good="0", bad="9")
    with ResultsFolder(BISECT, tmp_path / "results") as folder:
        folder.add_session_start()
        folder.journal.add("process", name="5", status="failed", problem="does not build")
    with ResultsFolder(BISECT, tmp_path / "results", resume=True) as folder:
        campaign, stack = Campaign(ChildProcessReporter(io.StringIO())), cast(Any, None)
        bisection = Bisection(setting, folder, campaign, stack)
        bisection.steps["9"] = step("9", SLOWER, BAD)
        found = bisection.stored_answer("5")
        assert (found.answer, found.judgement.reason) == (SKIP, "does not build")
        assert found.judgement.verdict is Verdict.FAILED
        assert not found.is_undecided


@pytest.mark.parametrize("deciding", [0, 1, 2])
def test_commits_are_compared_if_they_have_one_configuration(deciding: int) -> None:
    entries = [SimpleNamespace(affects_exit_code=at < deciding) for at in range(3)]
    comparison: Any = SimpleNamespace(entries=entries)
    assert shared_configuration(comparison) is (entries[0] if deciding == 1 else None)


def test_revisions_that_cannot_be_bisected(tmp_path: Path, git: Callable[..., str]) -> None:
    with pytest.raises(FlagError) as refused:
        find_repository_root(str(tmp_path))
    assert (refused.value.flag, refused.value.value) == ("repository", str(tmp_path))
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path, "checkout", "-q", "--orphan", "other")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two")
    (tmp_path / "inside").mkdir()
    assert find_repository_root(str(tmp_path / "inside")) == tmp_path
    for good, bad, names in (
        ("nonesuch", "main", ("GOOD 'nonesuch'",)),
        ("main", "nonesuch", ("BAD 'nonesuch'",)),
        ("main", "main", ("GOOD 'main'", "BAD 'main'")),
        ("main", "other", ("GOOD 'main'", "BAD 'other'")),
    ):
        with pytest.raises(UsageError) as wrong:
            good_and_bad_hashes(good, bad, tmp_path)
        assert all(name in str(wrong.value) for name in names)
