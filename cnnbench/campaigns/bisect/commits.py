"""Compares a commit with GOOD: creates a worktree, builds it, and measures pairs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cnnbench.base.child import exit_sentence
from cnnbench.base.text import format_duration
from cnnbench.campaigns.ab.experiment import AB, SIDES, Experiment, ExperimentState, find_experiment
from cnnbench.campaigns.ab.explain import (
    PROFILES_OF_SIDES,
    AbProfiler,
    NotExplainedError,
    explain_or_notice,
)
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import (
    AbSide,
    choose_time_slice_seconds,
    resolve_flags,
    why_not_interleavable,
)
from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.campaigns.bisect.answers import (
    BAD,
    BisectionStep,
    bisect_answer,
    is_search_for_changed_work,
    policy_for_middle_commit,
    shared_configuration,
    skipped_step,
)
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Command, execute, log_tail
from cnnbench.campaigns.processes.journal import PROCESS
from cnnbench.campaigns.processes.outcome import last_output_text
from cnnbench.campaigns.processes.requests import ProcessRequests
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import Criteria, Verdict, processes_needed
from cnnbench.machine import repository
from cnnbench.records.profiles import Explanation

_OTHER_CONFIGURATION = "its runs have a different configuration from the runs of GOOD"


@dataclass(frozen=True, kw_only=True)
class BisectionSettings:
    """Settings of a bisection, which apply to all measured commits.

    Attributes:
      good, bad: hashes of commits. All other commits are compared with `good`.
      side: flags and Python interpreter of the processes.
      build: shell command that prepares a worktree; None to leave it as it is.
      experiment: settings of the experiments that compare commits with GOOD.
      most_pairs: maximum number of pairs if the answer is not clear.
      pairing: value of --pairing: how the processes of a pair alternate.
    """

    history: GitHistory
    good: str
    bad: str
    side: AbSide
    build: str | None
    experiment: Experiment
    most_pairs: int
    pairing: str


BISECT = CampaignKind(command="bisect", noun="bisection")
"""Kind of campaign for bisections. The journal contains the commits that cannot be measured. Every
other commit has a folder of `cnnbench ab`, named by its hash. The answer about a commit is computed
from this folder, so `report` and `history` can read the whole bisection.
"""


class _BuildFailedError(Exception):
    """A commit cannot be built, so bisect skips the commit. The message contains the reason."""


class CommitBenchmark:
    """Compares commits with GOOD. The worktree of GOOD exists until `stack` is closed.

    `bad_step` is the comparison of BAD with GOOD; None before BAD was measured.
    """

    def __init__(
        self,
        setting: BisectionSettings,
        results: ResultsFolder,
        campaign: Campaign,
        stack: contextlib.ExitStack,
    ) -> None:
        self.setting = setting
        self.campaign = campaign
        self._results = results
        self._stack = stack
        self._good: AbSide | None = None
        self.bad_step: BisectionStep | None = None

    def build_good(self) -> None:
        """Creates and builds the worktree of the commit GOOD, unless this was done before.

        Raises BenchmarkError if the build fails, and UsageError if GOOD refuses the flags.
        """
        if self._good is not None:
            return
        good = self.setting.good
        try:
            self._good = self._stack.enter_context(self._built_worktree_side(good, "a"))
        except _BuildFailedError as error:
            raise BenchmarkError(f"GOOD ({good[:12]}) {error}") from None
        except UsageError as error:
            raise UsageError(f"GOOD ({good[:12]}): {error}") from None

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean seconds per pair of processes so far, or a first estimate; None if unknown."""
        seconds = self.campaign.mean_process_seconds(None)
        work = None if self._good is None else self._good.resolved.work
        if seconds is None and work is not None:
            seconds = work.estimate_seconds(self.campaign.facts)
        return None if seconds is None else len(SIDES) * seconds

    def stored_answer(self, commit: str) -> BisectionStep | None:
        """The answer about a commit from earlier sessions; None if the commit must be measured.

        See `measure`.
        """
        unusable = self._results.last_process_events.get(commit)
        if unusable is not None and self.bad_step is not None:
            return skipped_step(commit, unusable["problem"])
        state, step = self._stored_state_and_answer(commit)
        return None if self._target_number_of_pairs(state, step) else step

    def compare_with_good(self, number: int, commit: str) -> ProcessRequests[BisectionStep]:
        """Compares a commit with GOOD, and returns the answer. Call `build_good` first.

        `number` counts the measured commits, from 0. Pairs from earlier sessions are included.
        Raises BenchmarkError if GOOD failed, or if results cannot be written.
        """
        assert self._good is not None
        setting = self.setting
        with contextlib.ExitStack() as stack:
            try:
                new = stack.enter_context(self._built_worktree_side(commit, "b"))
                sides = {"a": self._good, "b": new}
                in_turn = choose_time_slice_seconds(
                    setting.pairing, lambda: why_not_interleavable(sides), self.campaign.reporter
                )
            except (_BuildFailedError, UsageError) as error:
                is_of_pairing = isinstance(error, FlagError) and error.flag == "pairing"
                if is_of_pairing and self.bad_step is None:
                    raise
                problem = str(error)
                self._results.journal.add(PROCESS, name=commit, status="failed", problem=problem)
                return skipped_step(commit, problem)
            refuse_shared_code(sides)
            state, step = self._stored_state_and_answer(commit)
            burn_in = 0 if is_search_for_changed_work(self.bad_step) else setting.experiment.burn_in
            while most := self._target_number_of_pairs(state, step):
                if step is not None:
                    text = f"{commit[:12]} is undecided: continuing with up to {most} pairs"
                    self.campaign.reporter.notice(text)
                first = setting.experiment.seed + number
                then = None if state is None else state.experiment
                experiment = replace(
                    setting.experiment,
                    most_pairs=most,
                    sequential=not is_search_for_changed_work(self.bad_step),
                    seed=first if then is None else then.seed,
                    burn_in=burn_in,
                    turn_seconds=in_turn if then is None else then.turn_seconds,
                    criteria=self._criteria_for_next_commit(),
                ).with_sides(sides)
                place, outer = self._pairs_folder(commit), self._results
                with ResultsFolder(AB, place, experiment, resume=True, within=outer) as results:
                    runner = ExperimentRunner(experiment, sides, results, self.campaign)
                    yield from runner.requests()
                burn_in = 0
                state = find_experiment(place)
                step = self._answer_from_journal(commit, state)
        assert step is not None
        if step.good_fails:
            raise BenchmarkError(f"GOOD ({setting.good[:12]}) fails: {step.judgement.reason}")
        return step

    def explain(self, parent: str, commit: str) -> Explanation | None:
        """Explains why the steps of a commit and of its parent take different times, by profiles of
        this session or an earlier one. Returns None, and prints why, if this is impossible.
        """
        make, notice = partial(self._profile, parent, commit), self.campaign.reporter.notice
        return explain_or_notice(self._results, make, "answer", notice, commit=commit)

    def _profile(self, parent: str, commit: str) -> Explanation:
        text = f"profiling {commit[:12]} and {parent[:12]}, the commit before it"
        self.campaign.reporter.notice(text)
        with contextlib.ExitStack() as stack:
            try:
                a = stack.enter_context(self._built_worktree_side(parent, "a"))
                b = stack.enter_context(self._built_worktree_side(commit, "b"))
            except (_BuildFailedError, UsageError) as error:
                raise NotExplainedError(str(error)) from error
            place = self._results.folder / f"explain-{commit[:12]}"
            kind = PROFILES_OF_SIDES
            with ResultsFolder(kind, place, resume=True, within=self._results) as results:
                return AbProfiler(
                    sides={"a": a, "b": b},
                    results=results,
                    campaign=self.campaign,
                    timeout=self.setting.experiment.timeout,
                ).explain(store=True)

    def _pairs_folder(self, commit: str) -> Path:
        """The results folder with the pairs of a commit and GOOD."""
        return self._results.folder / commit[:12]

    @contextlib.contextmanager
    def _built_worktree_side(self, commit: str, name: str) -> Iterator[AbSide]:
        """Context manager that creates and builds a temporary worktree of a commit, and yields a
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

    def _stored_state_and_answer(
        self, commit: str
    ) -> tuple[ExperimentState | None, BisectionStep | None]:
        """The state of a commit's experiment after earlier sessions, and the answer (good, bad or
        skip) about the commit.

        The answer is None if the commit must be measured again, because processes were killed from
        outside, GOOD failed, or BAD failed when it was compared with GOOD.
        """
        state = find_experiment(self._pairs_folder(commit))
        step = self._answer_from_journal(commit, state)
        if step is not None and (step.lost or step.good_fails):
            step = None
        if step is not None and self.bad_step is None and step.judgement.verdict is Verdict.FAILED:
            step = None
        return state, step

    def _target_number_of_pairs(
        self, state: ExperimentState | None, step: BisectionStep | None
    ) -> int:
        """The number of pairs up to which a commit is measured; 0 if its answer is final."""
        if state is None:
            one_is_enough = is_search_for_changed_work(self.bad_step)
            return 1 if one_is_enough else self.setting.experiment.most_pairs
        if step is None:
            return state.pair_limits[-1]
        most = self.setting.most_pairs
        needed = step.judgement.needed
        decides = step.is_undecided and needed is not None and needed <= most
        return most if decides and state.pair_limits[-1] < most else 0

    def _criteria_for_next_commit(self) -> Criteria:
        criteria = self.setting.experiment.criteria
        if self.bad_step is None or is_search_for_changed_work(self.bad_step):
            return criteria
        policy = policy_for_middle_commit(self.bad_step, criteria.policy)
        return replace(criteria, policy=policy)

    def _answer_from_journal(
        self, commit: str, state: ExperimentState | None
    ) -> BisectionStep | None:
        """The answer about a commit from its stored pairs; None if its experiment has not ended."""
        if state is None or state.last_end_event is None:
            return None
        comparison = state.final_comparison(judge_together=state.is_alpha_spent)
        assert comparison is not None
        policy = self.setting.experiment.criteria.policy
        entry = shared_configuration(comparison)
        if entry is None:
            step = skipped_step(commit, _OTHER_CONFIGURATION, Verdict.NOT_COMPARABLE)
        else:
            pairs, judgement = min(len(entry.base), len(entry.new)), entry.main.judgement
            fewest = processes_needed(policy, paired=True)
            step = BisectionStep(
                commit=commit,
                answer=bisect_answer(entry.main, policy, is_search_for_changed_work(self.bad_step)),
                judgement=replace(judgement, needed=fewest) if pairs < fewest else judgement,
                confidence=policy.confidence,
                pairs=pairs,
            )
        judgement = step.judgement
        if self.bad_step is None and judgement.verdict is Verdict.CHANGED_WORK:
            # If BAD has different FLOPs, bisect looks for the commit that changed the FLOPs.
            step = replace(step, answer=BAD)
        return replace(
            step,
            judgement=replace(
                judgement, reason=state.last_end_event["failure"] or judgement.reason
            ),
            lost=state.last_end_event.get("lost", False),
            good_fails=any(
                record.status != "ok" for entry in comparison.entries for record in entry.base
            ),
        )
