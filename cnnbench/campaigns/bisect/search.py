"""Halves the commits between GOOD and BAD until the first bad commit is found."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cnnbench.base.child import exit_sentence
from cnnbench.base.inference import FIRST_ANALYSIS
from cnnbench.base.text import count_text, format_duration
from cnnbench.campaigns.ab.asking import resolve_flags
from cnnbench.campaigns.ab.experiment import AB, SIDES, Experiment
from cnnbench.campaigns.ab.pairing import choose_slice_seconds, why_not_interleavable
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.sessions import find_experiment
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.campaigns.bisect.answers import (
    BAD,
    SKIP,
    BisectionStep,
    policy_for_middle_commit,
    skipped_step,
    step_answer_text,
    step_of_experiment,
)
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.processes import (
    PROCESS,
    Campaign,
    CampaignKind,
    Command,
    ProcessRequests,
    ResultsFolder,
    execute,
    last_output_text,
    log_tail,
)
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import Verdict
from cnnbench.machine import repository

BISECT = CampaignKind(command="bisect", noun="bisection")
"""Kind of campaign for bisections. The journal contains the commits that cannot be measured. Every
other commit has a folder of `cnnbench ab`, named by its hash. The answer about a commit is computed
from this folder, so `report` and `history` can read the whole bisection.
"""


@dataclass(frozen=True, kw_only=True)
class BisectionSettings:
    """Settings of a bisection, which apply to all measured commits.

    Attributes:
      good, bad: hashes of commits. All other commits are compared with `good`.
      side: flags and Python interpreter of the processes.
      build: shell command that prepares a worktree; None to leave it as it is.
      experiment: settings of the experiments that compare commits with GOOD.
      pairing: value of --pairing: how the processes of a pair alternate.
    """

    history: GitHistory
    good: str
    bad: str
    side: AbSide
    build: str | None
    experiment: Experiment
    pairing: str


class CommitSearch:
    """Selects the commits to measure, and excludes commits that cannot be the first bad commit.

    `suspects` are the remaining candidates for the first bad commit.
    """

    def __init__(self, history: GitHistory, good: str, bad: str) -> None:
        self._history = history
        self._good = [good]
        self._bad = bad
        self._skipped: set[str] = set()
        self._misses = 0
        self.suspects = history.suspects(self._good, bad)

    @property
    def remaining_text(self) -> str:
        """Says how many candidates remain."""
        return f"{count_text(self.suspects, 'commit', 'commits')} may be the first bad one"

    @property
    def steps_left(self) -> int:
        """Estimated number of commits that must still be measured."""
        return math.ceil(math.log2(len(self._untested()) + 1))

    def next_commit(self) -> str | None:
        """Selects the next commit to measure; None if no answer can reduce the candidates.

        After each skipped commit, the distance to the next commit grows, because broken commits are
        often consecutive.
        """
        candidates = self._untested()
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
            self._bad = step.commit
        else:
            self._good.append(step.commit)
        self._misses = 0
        self.suspects = self._history.suspects(self._good, self._bad)

    def _untested(self) -> list[str]:
        measured = {self._bad, *self._skipped}
        return [commit for commit in self.suspects if commit not in measured]


class _BuildFailedError(Exception):
    """A commit cannot be built, so bisect skips the commit. The message contains the reason."""


class Bisection:
    """Searches for the first bad commit. Commits with stored results are not measured again.

    The worktree of GOOD exists until `stack` is closed.

    Attributes:
      search: the remaining candidates for the first bad commit; set by `requests`.
      steps: steps of this session and earlier ones, by commit, beginning with the comparison of BAD
        with GOOD.
      suspects: candidates for the first bad commit, the oldest first; empty if GOOD and BAD do not
        differ, and until the search has ended.
    """

    search: CommitSearch

    def __init__(
        self,
        setting: BisectionSettings,
        results: ResultsFolder,
        campaign: Campaign,
        stack: contextlib.ExitStack,
    ) -> None:
        self.setting = setting
        self._results = results
        self._campaign = campaign
        self._notice = campaign.reporter.notice
        self._stack = stack
        self.steps: dict[str, BisectionStep] = {}
        self.suspects: tuple[str, ...] = ()

    @property
    def bad_step(self) -> BisectionStep:
        """The comparison of BAD with GOOD, which is the first step of a bisection."""
        return self.steps[self.setting.bad]

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
        """Yields the processes that measure commits, until the first bad commit is found, or no
        commit is left to measure.

        After an interrupt, complete pairs are kept.
        """
        setting = self.setting
        self.search = search = CommitSearch(setting.history, setting.good, setting.bad)
        commit: str | None = setting.bad
        while commit is not None:
            step, before = self.stored_answer(commit), ", as measured before"
            if step is None:
                self._print_remaining(commit)
                step, before = (yield from self.compare_with_good(commit)), ""
            self._notice(f"{commit[:12]} is {step_answer_text(step)}{before}")
            self.steps[commit] = step
            search.add_answer(step)
            commit = search.next_commit() if self.bad_step.answer == BAD else None
        if self.bad_step.answer == BAD:
            history, good, bad = setting.history, setting.good, setting.bad
            self.suspects = history.order_by_ancestry(search.suspects, good, bad)

    def _print_remaining(self, commit: str) -> None:
        """Prints which commit is compared next, and how many commits will still be compared, with
        the estimated time.
        """
        done, per_pair = len(self.steps), self.seconds_per_pair
        steps = self.search.steps_left + (not done)
        most, burn_in = self._experiment.most_pairs, self._experiment.burn_in
        least = min(FIRST_ANALYSIS, most)
        text = f"{self.search.remaining_text}: about "
        text += f"{count_text(steps, 'step', 'steps')} of "
        text += count_text(least, "pair", "pairs") if least == most else f"{least} to {most} pairs"
        if per_pair is not None:
            times = [format_duration(steps * (n + burn_in) * per_pair) for n in (least, most)]
            known = self._campaign.mean_process_seconds(None)
            basis = "as before" if known else "a first guess"
            text += f", {' to '.join(dict.fromkeys(times))}, {basis}"
        self._notice(text)
        what = f"step {done} of about {done + steps - 1}" if done else "GOOD against BAD"
        self._notice(f"{what}: {commit[:12]} {self.setting.history.format_commit(commit)}")

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean seconds per pair of processes so far, or a first estimate; None if unknown."""
        work, seconds = self._good.resolved.work, self._campaign.mean_process_seconds(None)
        if seconds is None and work is not None:
            seconds = work.estimate_seconds(self._campaign.facts)
        return None if seconds is None else len(SIDES) * seconds

    @property
    def _experiment(self) -> Experiment:
        """The experiment that compares the next commit with GOOD. Commits between GOOD and BAD are
        compared by half of the change of BAD or, if BAD has other work than GOOD, in one pair.
        """
        usual = self.setting.experiment
        if not self.steps:
            return usual
        if self.bad_step.about_work:
            return replace(usual, most_pairs=1, sequential=False, burn_in=0)
        policy = policy_for_middle_commit(self.bad_step, usual.criteria.policy)
        return replace(usual, criteria=replace(usual.criteria, policy=policy))

    def stored_answer(self, commit: str) -> BisectionStep | None:
        """The answer about a commit from earlier sessions; None if the commit must be measured."""
        unusable = self._results.last_process_events.get(commit)
        if unusable is not None and self.steps:
            return skipped_step(commit, unusable["problem"])
        step = self._answer_from_pairs(commit)
        if step is None or step.lost or step.good_fails:
            return None
        # A failure of BAD may have a cause that was removed since.
        return None if step.judgement.verdict is Verdict.FAILED and not self.steps else step

    def compare_with_good(self, commit: str) -> ProcessRequests[BisectionStep]:
        """Compares a commit with GOOD, and returns the answer. Pairs from earlier sessions are
        included.

        Raises BenchmarkError if GOOD failed, or if results cannot be written.
        """
        good, usual = self._good, self._experiment
        with contextlib.ExitStack() as stack:
            try:
                sides = {"a": good, "b": stack.enter_context(self._built_side(commit, "b"))}
                turn_seconds = choose_slice_seconds(
                    self.setting.pairing,
                    lambda: why_not_interleavable(sides),
                    self._campaign.reporter,
                )
            except (_BuildFailedError, UsageError) as error:
                is_of_pairing = isinstance(error, FlagError) and error.flag == "pairing"
                if is_of_pairing and not self.steps:
                    raise
                problem = str(error)
                self._results.journal.add(PROCESS, name=commit, status="failed", problem=problem)
                return skipped_step(commit, problem)
            refuse_shared_code(sides)
            place = self._pairs_folder(commit)
            state = find_experiment(place)
            seed, most = usual.seed + len(self.steps), usual.most_pairs
            if state is not None:
                seed, turn_seconds = state.experiment.seed, state.experiment.turn_seconds
                most = state.pair_limits[-1]
            experiment = replace(
                usual.with_sides(sides), seed=seed, turn_seconds=turn_seconds, most_pairs=most
            )
            with ResultsFolder(AB, place, experiment, resume=True, within=self._results) as results:
                runner = ExperimentRunner(experiment, sides, results, self._campaign)
                yield from runner.requests()
        step = self._answer_from_pairs(commit)
        assert step is not None
        if step.good_fails:
            name = self.setting.good[:12]
            raise BenchmarkError(f"GOOD ({name}) fails: {step.judgement.reason}")
        return step

    def _pairs_folder(self, commit: str) -> Path:
        """The results folder with the pairs of a commit and GOOD."""
        return self._results.folder / commit[:12]

    def _answer_from_pairs(self, commit: str) -> BisectionStep | None:
        """The answer about a commit from its measured pairs; None if its experiment has not
        ended.
        """
        state = find_experiment(self._pairs_folder(commit))
        if state is None or state.last_end_event is None:
            return None
        return step_of_experiment(commit, state, self.steps.get(self.setting.bad))

    @cached_property
    def _good(self) -> AbSide:
        """GOOD, in a worktree that is created and built when it is first needed.

        Raises BenchmarkError if the build fails, and UsageError if GOOD refuses the flags.
        """
        good = self.setting.good
        try:
            return self._stack.enter_context(self._built_side(good, "a"))
        except _BuildFailedError as error:
            raise BenchmarkError(f"GOOD ({good[:12]}) {error}") from None
        except UsageError as error:
            raise UsageError(f"GOOD ({good[:12]}): {error}") from None

    @contextlib.contextmanager
    def _built_side(self, commit: str, name: str) -> Iterator[AbSide]:
        """Context manager that creates and builds a temporary worktree of a commit, and yields an
        `AbSide` that runs its code.

        The flags of the runs are resolved in the worktree.
        """
        setting = self.setting
        with worktree(commit, setting.history.repository) as folder:
            # The build may change files that git tracks, so the commit is determined first.
            subject = replace(repository.read_repository_state(folder), side=name)
            if setting.build is not None:
                self._run_build(setting.build, commit, folder)
            side = replace(
                setting.side,
                checkout=folder,
                revision=commit[:12],
                commit=commit,
                subject=subject,
            )
            yield resolve_flags(side)

    def _run_build(self, command: str, commit: str, folder: Path) -> None:
        log = self._results.folder / f"build-{commit[:12]}.log"
        build = Command(words=("/bin/sh", "-c", command), log=log, folder=folder)
        self._results.raise_if_replaced()
        done = execute(build, self.setting.experiment.timeout)
        if done.timed_out:
            raise _BuildFailedError(
                f"does not build: takes more than {format_duration(done.seconds)}"
            )
        if done.code != 0:
            ending = exit_sentence("the command", done.code)
            problem = f"{ending}; {last_output_text(log_tail(log))}"
            raise _BuildFailedError(f"does not build: {problem}")
