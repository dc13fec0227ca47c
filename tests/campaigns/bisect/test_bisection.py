"""Whole bisections over answers that are given, and how their results are told and stored.

Tests cnnbench/campaigns/bisect/*.py, as does test_search.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden import golden

from cnnbench.base.inference import FIRST_ANALYSIS
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.bisect.answers import (
    BAD,
    GOOD,
    SKIP,
    BisectionStep,
    shared_configuration,
)
from cnnbench.campaigns.bisect.commits import BISECT, CommitBenchmark
from cnnbench.campaigns.bisect.history import find_repository_root, good_and_bad_hashes
from cnnbench.campaigns.bisect.phrases import no_difference, step_answer
from cnnbench.campaigns.bisect.search import Bisection
from cnnbench.campaigns.bisect.texts import bisection_text, store_result, stored_result
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


class Answers:
    """Answers about commits of a line, in place of measurements.

    Args:
      answers: by commit.
      stored: commits that earlier sessions have measured.
    """

    def __init__(
        self,
        answers: Mapping[str, BisectionStep],
        repository: Path,
        *,
        stored: tuple[str, ...] = (),
        seconds: float | None = 10.0,
    ) -> None:
        self._answers, self._stored = answers, stored
        self.said = io.StringIO()
        self.campaign = Campaign(ChildProcessReporter(self.said))
        self.bad_step: BisectionStep | None = None
        self.seconds_per_pair = seconds
        self.measured: list[tuple[int, str]] = []
        self.built = 0
        self.setting = SimpleNamespace(
            history=Line(repository),
            good="0",
            bad="9",
            experiment=SimpleNamespace(most_pairs=32, burn_in=1),
            side=SimpleNamespace(flags=("--model=lenet",)),
        )

    def build_good(self) -> None:
        self.built += 1

    def stored_answer(self, commit: str) -> BisectionStep | None:
        return self._answers[commit] if commit in self._stored else None

    def compare_with_good(self, number: int, commit: str) -> Any:
        yield from ()
        self.measured.append((number, commit))
        return self._answers[commit]

    def explain(self, parent: str, commit: str) -> tuple[str, str]:
        return parent, commit


def answers(culprit: int, *skipped: str) -> dict[str, BisectionStep]:
    """Those about the commits 1 to 9, of which the culprit is the first that is slower."""
    found = {
        str(n): step(str(n), SLOWER, BAD) if n >= culprit else step(str(n), SAME, GOOD)
        for n in range(1, 10)
    }
    return found | {commit: step(commit, FAILED, SKIP, 0) for commit in skipped}


@pytest.fixture
def bisected(tmp_path: Path) -> Callable[..., tuple[Bisection, Answers]]:
    """bisected(ANSWERS): a bisection that has ended, and what it has measured."""

    def bisected(given: Mapping[str, BisectionStep], **more: Any) -> tuple[Bisection, Answers]:
        bench: Any = Answers(given, tmp_path / "repository", **more)
        found = Bisection(bench)
        bench.campaign.run_requests(found.requests())
        return found, bench

    return bisected


@pytest.mark.parametrize("culprit", range(1, 10))
def test_the_first_bad_commit_is_found(bisected: Callable[..., Any], culprit: int) -> None:
    found, bench = bisected(answers(culprit))
    assert found.suspects == (str(culprit),)
    assert found.unanswered_steps == []
    assert bench.measured[0] == (0, "9")
    assert [number for number, _ in bench.measured] == list(range(len(bench.measured)))
    assert list(found.steps) == [commit for _, commit in bench.measured]
    assert len(bench.measured) <= 5
    assert found.explain() == (str(culprit - 1), str(culprit))


def test_commits_that_were_measured_before_are_not_measured_again(
    bisected: Callable[..., Any],
) -> None:
    whole, first = bisected(answers(4))
    commits = tuple(commit for _, commit in first.measured)
    found, bench = bisected(answers(4), stored=commits)
    assert (found.suspects, found.steps) == (whole.suspects, whole.steps)
    assert (bench.measured, bench.built) == ([], 0)
    assert bench.said.getvalue().count("as measured before") == len(commits)


def test_where_bad_does_not_differ_nothing_is_searched(bisected: Callable[..., Any]) -> None:
    found, bench = bisected({"9": step("9", SAME, GOOD)})
    assert (found.suspects, bench.measured) == ((), [(0, "9")])
    assert found.unanswered_steps == [found.bad_step]
    assert found.explain() is None


def test_skipped_commits_stay_suspects(bisected: Callable[..., Any]) -> None:
    found, _ = bisected(answers(5, "3", "4"))
    assert found.suspects == ("3", "4", "5")
    assert [one.commit for one in found.unanswered_steps] == [
        commit for commit in found.steps if commit in ("3", "4")
    ]
    assert found.explain() is None


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
    bisected: Callable[..., Any],
    tmp_path: Path,
    most_pairs: int,
    seconds: float | None,
    texts: tuple[str, ...],
) -> None:
    bench: Any = Answers(answers(4), tmp_path, seconds=seconds)
    bench.setting.experiment.most_pairs = most_pairs
    bench.campaign.run_requests(Bisection(bench).requests())
    first = bench.said.getvalue().splitlines()[0]
    assert all(text in first for text in texts)
    assert ("guess" in first) == (seconds is not None)


def test_a_search_for_changed_work_takes_a_pair_each(tmp_path: Path) -> None:
    other = Judgement(verdict=Verdict.CHANGED_WORK, reason="FLOPs differ")
    given = {str(n): step(str(n), other, BAD if n >= 3 else GOOD, 1) for n in range(1, 10)}
    bench: Any = Answers(given, tmp_path)
    found = Bisection(bench)
    bench.campaign.run_requests(found.requests())
    assert found.suspects == ("3",)
    lines = bench.said.getvalue().splitlines()
    assert [" of 1 pair, " in line for line in lines if "may be" in line][1:] == [True] * (
        len(found.steps) - 1
    )
    assert step_answer(given["3"], found.bad_step).startswith("bad")
    assert step_answer(given["2"], found.bad_step).startswith("good")


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
        found, _ = bisected(given)
        texts.append(bisection_text(found))
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
        texts.append(f"{step_answer(one, one)}\n{no_difference(one)}")
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
        found, _ = bisected(given)
        with ResultsFolder(BISECT, tmp_path / "results", resume=True) as folder:
            folder.add_session_start()
            store_result(folder, found)
        answer, (section,) = stored_result(tmp_path / "results")
        assert answer.tone == tone
        assert (answer.text == "4 is the first bad commit") is sure
        assert all(f"change {commit}" in repr(section.blocks) for commit in found.steps)


def test_pairs_and_builds_of_a_commit_that_is_not_measured_are_known(tmp_path: Path) -> None:
    setting: Any = SimpleNamespace(good="0", bad="9")
    with ResultsFolder(BISECT, tmp_path / "results") as folder:
        folder.add_session_start()
        folder.journal.add("process", name="5", status="failed", problem="does not build")
    with ResultsFolder(BISECT, tmp_path / "results", resume=True) as folder:
        bench = CommitBenchmark(
            setting, folder, Campaign(ChildProcessReporter(io.StringIO())), None
        )
        assert bench.seconds_per_pair is None
        bench.bad_step = step("9", SLOWER, BAD)
        found = bench.stored_answer("5")
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
