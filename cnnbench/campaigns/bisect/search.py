"""Halves the commits between GOOD and BAD until the first bad commit is found."""

from __future__ import annotations

import math

from cnnbench.base.inference import FIRST_ANALYSIS
from cnnbench.base.text import count_text, format_duration
from cnnbench.campaigns.bisect.answers import BAD, SKIP, BisectionStep, is_search_for_changed_work
from cnnbench.campaigns.bisect.commits import CommitBenchmark
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.bisect.phrases import step_answer
from cnnbench.campaigns.processes.requests import ProcessRequests
from cnnbench.records.profiles import Explanation


class CommitSearch:
    """Selects the commits to measure, and excludes commits that cannot be the first bad commit."""

    def __init__(self, history: GitHistory, good: str, bad: str) -> None:
        self._history = history
        self._good = [good]
        self.bad = bad
        self._skipped: set[str] = set()
        self._misses = 0
        self._suspects = history.suspects(self._good, bad)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The remaining candidates for the first bad commit."""
        return tuple(self._suspects)

    @property
    def steps_left(self) -> int:
        """Estimated number of commits that must still be measured."""
        return math.ceil(math.log2(len(self._untested_suspects()) + 1))

    def next_commit(self) -> str | None:
        """Selects the next commit to measure; None if no answer can reduce the candidates.

        After each skipped commit, the distance to the next commit grows, because broken commits are
        often consecutive.
        """
        candidates = self._untested_suspects()
        if not candidates:
            return None
        return candidates[min((1 << self._misses) - 1, len(candidates) // 2)]

    def add_answer(self, step: BisectionStep) -> None:
        """Adds an answer about a commit. Excludes commits that cannot be the first bad commit."""
        if step.answer == SKIP:
            self._skipped.add(step.commit)
            self._misses += 1
            return
        if step.answer == BAD:
            self.bad = step.commit
        else:
            self._good.append(step.commit)
        self._misses = 0
        self._suspects = self._history.suspects(self._good, self.bad)

    def _untested_suspects(self) -> list[str]:
        return [
            commit
            for commit in self._suspects
            if commit != self.bad and commit not in self._skipped
        ]


class Bisection:
    """Searches for the first bad commit. Commits with stored results are not measured again.

    Attributes:
      steps: steps of this session and earlier ones, by commit, beginning with the comparison of BAD
        with GOOD.
      suspects: candidates for the first bad commit, the oldest first; empty if GOOD and BAD do not
        differ.
    """

    def __init__(self, bench: CommitBenchmark) -> None:
        self._bench = bench
        self.setting = setting = bench.setting
        self._notice = bench.campaign.reporter.notice
        self._search = CommitSearch(setting.history, setting.good, setting.bad)
        self.steps: dict[str, BisectionStep] = {}
        self.suspects: tuple[str, ...] = ()

    @property
    def bad_step(self) -> BisectionStep:
        """The comparison of BAD with GOOD, which is the first step of a bisection."""
        assert self._bench.bad_step is not None
        return self._bench.bad_step

    @property
    def unanswered_steps(self) -> list[BisectionStep]:
        """The steps without an answer (good or bad) whose commits may be the first bad commit.

        If BAD is not slower than GOOD, this is only the comparison of BAD with GOOD.
        """
        if not self.suspects:
            return [self.bad_step]
        skipped = (step for step in self.steps.values() if step.answer == SKIP)
        return [step for step in skipped if step.commit in self.suspects]

    def requests(self) -> ProcessRequests[None]:
        """Measures commits until the first bad commit is found, or no commit is left to measure.

        After an interrupt, complete pairs are kept.
        """
        setting = self.setting
        commit: str | None = setting.bad
        while commit is not None:
            known = self._bench.stored_answer(commit)
            step = known or (yield from self._measure_commit(commit))
            if self._bench.bad_step is None:
                self._bench.bad_step = step
            else:
                self._search.add_answer(step)
            before = "" if known is None else ", as measured before"
            self._notice(f"{commit[:12]} is {step_answer(step, self.bad_step)}{before}")
            self.steps[commit] = step
            commit = self._search.next_commit() if self.bad_step.answer == BAD else None
        if self.bad_step.answer == BAD:
            suspects = self._search.suspects
            self.suspects = setting.history.order_by_ancestry(suspects, setting.good, setting.bad)

    def explain(self) -> Explanation | None:
        """Explains why the first bad commit is slower; None if this commit was not found, or
        if this is impossible.
        """
        if len(self.suspects) != 1:
            return None
        (commit,) = self.suspects
        return self._bench.explain(self.setting.history.parent(commit), commit)

    def _measure_commit(self, commit: str) -> ProcessRequests[BisectionStep]:
        self._bench.build_good()
        steps_left, done = self._search.steps_left, len(self.steps)
        what = f"step {done} of about {done + steps_left - 1}" if done else "GOOD against BAD"
        self._notice(self._remaining_steps_text(steps_left + (not done)))
        self._notice(f"{what}: {commit[:12]} {self.setting.history.format_commit(commit)}")
        return (yield from self._bench.compare_with_good(done, commit))

    def _remaining_steps_text(self, steps: int) -> str:
        """Describes how many commits will still be measured, with the estimated time."""
        number = len(self._search.suspects)
        text = f"{count_text(number, 'commit', 'commits')} may be the first bad one: about "
        text += f"{count_text(steps, 'step', 'steps')} of "
        experiment = self.setting.experiment
        most, burn_in = experiment.most_pairs, experiment.burn_in
        least = min(FIRST_ANALYSIS, most)
        if is_search_for_changed_work(self._bench.bad_step):
            least, most, burn_in = 1, 1, 0
        text += count_text(least, "pair", "pairs") if least == most else f"{least} to {most} pairs"
        per_pair = self._bench.seconds_per_pair
        if per_pair is None:
            return text
        times = [format_duration(steps * (pairs + burn_in) * per_pair) for pairs in (least, most)]
        basis = "as before" if self._bench.campaign.mean_process_seconds(None) else "a first guess"
        return f"{text}, {' to '.join(dict.fromkeys(times))}, {basis}"
