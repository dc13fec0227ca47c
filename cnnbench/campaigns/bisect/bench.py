"""Measurement of a commit against GOOD: worktree, build, pairs, verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.text.numbers import duration
from cnnbench.campaigns.ab.checkout import worktree
from cnnbench.campaigns.ab.explain import NotExplainedError, ProfilesFolder, Profiling
from cnnbench.campaigns.ab.flags import check, turn_seconds
from cnnbench.campaigns.ab.pairs import Experiment, Pairs
from cnnbench.campaigns.ab.results import SIDES, Begun, PairsFolder, begun
from cnnbench.campaigns.ab.side import Side
from cnnbench.campaigns.bisect.search import (
    BAD,
    SKIP,
    History,
    Step,
    answer,
    entry_of,
    is_about_work,
    policy_between,
)
from cnnbench.campaigns.processes.campaign import Campaign, RunPolicy
from cnnbench.campaigns.processes.child import Command, end_of, execute
from cnnbench.campaigns.processes.outcome import last_line
from cnnbench.campaigns.processes.results_dir import PROCESS, ResultsFolder
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import Judgement, Policy, Verdict, processes_needed
from cnnbench.machine import repository
from cnnbench.records.explanation import Explanation

_OTHER_CONFIGURATION = "its runs have another configuration than those of GOOD"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings shared by all steps.

    Attributes:
      good, bad: hashes; all others are measured against the first.
      side: flags and interpreter of the processes.
      build: shell command that prepares a worktree; None to leave it as it is.
      experiment: that of GOOD and BAD, yet without sides.
      most_pairs: maximum where the answer is not clear.
      pairing: how the processes of a pair share their time, see `turn_seconds`.
    """

    history: History
    good: str
    bad: str
    side: Side
    build: str | None
    experiment: Experiment
    most_pairs: int
    pairing: str


class BisectFolder(ResultsFolder):
    """Results directory of a bisection, held by one process.

    Its journal names the commits that cannot be measured. Each of the others has a results
    directory of `cnnbench ab`, named by its hash, whose journal and records are its answer, so that
    `report` and `history` read the whole.
    """

    command = "bisect"
    noun = "bisection"
    file = "bisect.jsonl"

    def of_commit(self, commit: str) -> Path:
        """The results directory of a commit."""
        return self.folder / commit[:12]


class _UnusableError(Exception):
    """A commit that does not build; the message has the reason."""


class CommitBench:
    """Measures commits; the stack gets GOOD's worktree.

    `differ` is how BAD compares with GOOD; None until that is measured.
    """

    def __init__(
        self,
        setting: Setting,
        results: BisectFolder,
        campaign: Campaign,
        stack: contextlib.ExitStack,
    ) -> None:
        self.setting = setting
        self.campaign = campaign
        self._results = results
        self._stack = stack
        self._good: Side | None = None
        self.differ: Step | None = None

    def prepare(self) -> None:
        """Makes GOOD's worktree, if there is none yet; BenchmarkError if it does not build."""
        if self._good is not None:
            return
        good = self.setting.good
        try:
            self._good = self._stack.enter_context(self._prepared(good, "a"))
        except _UnusableError as error:
            raise BenchmarkError(f"GOOD ({good[:12]}) {error}") from None

    @property
    def seconds_per_pair(self) -> float | None:
        """Seconds per pair of this session, or a first guess; None if unknown."""
        seconds = self.campaign.seconds_of(None)
        work = None if self._good is None else self._good.resolved.work
        if seconds is None and work is not None:
            seconds = work.seconds(self.campaign.facts)
        return None if seconds is None else len(SIDES) * seconds

    def known(self, commit: str) -> Step | None:
        """The answer about a commit that earlier sessions have measured; see `measure`.

        None if there is none, or if it is to be measured further.
        """
        unusable = self._results.processes.get(commit)
        if unusable is not None and self.differ is not None:
            return _skipped(commit, unusable["problem"])
        state, step = self._begun(commit)
        return None if self._pairs_to_go(state, step) else step

    def measure(self, number: int, commit: str) -> RunPolicy[Step]:
        """Measures a commit against GOOD, as a step counted from 0; call `prepare` first.

        Measured pairs count. BenchmarkError if GOOD failed, or results cannot be written.
        """
        assert self._good is not None
        setting = self.setting
        with contextlib.ExitStack() as stack:
            try:
                new = stack.enter_context(self._prepared(commit, "b"))
                sides = {"a": self._good, "b": new}
                in_turn = turn_seconds(setting.pairing, sides, self.campaign.reporter)
            except (_UnusableError, UsageError) as error:
                if self.differ is None and isinstance(error, FlagError) and error.flag == "pairing":
                    raise
                problem = str(error)
                self._results.journal.add(PROCESS, name=commit, status="failed", problem=problem)
                return _skipped(commit, problem)
            state, step = self._begun(commit)
            burn_in = 0 if is_about_work(self.differ) else setting.experiment.burn_in
            while most := self._pairs_to_go(state, step):
                if step is not None:
                    self.campaign.reporter.notice(f"undecided: going on, with up to {most} pairs")
                first = setting.experiment.seed + number
                experiment = replace(
                    setting.experiment,
                    sides=sides,
                    most_pairs=most,
                    earlier=state,
                    sequential=not is_about_work(self.differ),
                    seed=first if state is None else state.facts["seed"],
                    burn_in=burn_in,
                    turn_seconds=in_turn if state is None else state.facts["turn_seconds"],
                    policy=self._policy(),
                )
                place = self._results.of_commit(commit)
                with PairsFolder(place, resume=True, within=self._results) as results:
                    yield from Pairs(experiment, results, self.campaign).policy()
                burn_in = 0
                state = begun(self._results.of_commit(commit))
                step = self._answer(commit, state)
        assert step is not None
        if step.good_fails:
            raise BenchmarkError(f"GOOD ({setting.good[:12]}) fails: {step.judgement.reason}")
        return step

    def explain(self, parent: str, commit: str) -> Explanation:
        """Profiles a commit and its parent, and explains their difference, or NotExplainedError."""
        with contextlib.ExitStack() as stack:
            try:
                a = stack.enter_context(self._prepared(parent, "a"))
                b = stack.enter_context(self._prepared(commit, "b"))
            except (_UnusableError, UsageError) as error:
                raise NotExplainedError(str(error)) from error
            place = self._results.folder / f"explain-{commit[:12]}"
            with ProfilesFolder(place, resume=True, within=self._results) as results:
                return Profiling(
                    sides={"a": a, "b": b},
                    results=results,
                    campaign=self.campaign,
                    timeout=self.setting.experiment.timeout,
                ).explain()

    @contextlib.contextmanager
    def _prepared(self, commit: str, name: str) -> Iterator[Side]:
        """A built worktree, with the flags as resolved there."""
        setting = self.setting
        with worktree(commit, setting.history.repository) as folder:
            # Before the build, which may write to files that git knows.
            subject = replace(repository.of_folder(folder), side=name)
            if setting.build is not None:
                self._build(setting.build, commit, folder)
            side = replace(setting.side, checkout=folder, revision=commit[:12], subject=subject)
            yield replace(side, resolved=check(side))

    def _build(self, command: str, commit: str, folder: Path) -> None:
        log = self._results.folder / f"build-{commit[:12]}.log"
        build = Command(words=("/bin/sh", "-c", command), log=log, folder=folder)
        self._results.check()
        done = execute(build, self.setting.experiment.timeout)
        if done.timed_out:
            raise _UnusableError(f"does not build: takes more than {duration(done.seconds)}")
        if done.code != 0:
            told = f"exit status {done.code}; {last_line(end_of(log))}"
            raise _UnusableError(f"does not build: {told}")

    def _begun(self, commit: str) -> tuple[Begun | None, Step | None]:
        """What earlier sessions have measured of a commit, and its answer.

        None for an answer that is asked for again: processes were ended from outside, GOOD failed,
        or BAD failed against it.
        """
        state = begun(self._results.of_commit(commit))
        step = self._answer(commit, state)
        if step is not None and (step.lost or step.good_fails):
            step = None
        if step is not None and self.differ is None and step.judgement.verdict is Verdict.FAILED:
            step = None
        return state, step

    def _pairs_to_go(self, state: Begun | None, step: Step | None) -> int:
        """Number of pairs up to which a commit is measured; 0 if its answer stands."""
        if state is None:
            return 1 if is_about_work(self.differ) else self.setting.experiment.most_pairs
        if step is None:
            return state.pairs
        most = self.setting.most_pairs
        needed = step.judgement.needed
        decides = step.undecided and needed is not None and needed <= most
        return most if decides and state.pairs < most else 0

    def _policy(self) -> Policy:
        policy = self.setting.experiment.policy
        if self.differ is None or is_about_work(self.differ):
            return policy
        return policy_between(self.differ, policy)

    def _answer(self, commit: str, state: Begun | None) -> Step | None:
        """The answer in the journal and the records of a commit; None if its session was ended."""
        if state is None or state.end is None:
            return None
        comparison = state.verdict(together=state.is_spent)
        assert comparison is not None
        alpha, policy = state.end["alpha"], self.setting.experiment.policy
        entry = entry_of(comparison)
        if entry is None:
            step = _skipped(commit, _OTHER_CONFIGURATION, Verdict.NOT_COMPARABLE)
        else:
            pairs, judgement = min(len(entry.base), len(entry.new)), entry.main.judgement
            fewest = processes_needed(policy, paired=True)
            step = Step(
                commit=commit,
                answer=answer(entry.main, policy.replace(alpha=alpha), is_about_work(self.differ)),
                judgement=replace(judgement, needed=fewest) if pairs < fewest else judgement,
                confidence=1 - alpha,
                pairs=pairs,
            )
        judgement = step.judgement
        if self.differ is None and judgement.verdict is Verdict.CHANGED_WORK:
            step = replace(step, answer=BAD)  # the search is for the commit that changed the work
        return replace(
            step,
            judgement=replace(judgement, reason=state.end["failure"] or judgement.reason),
            lost=state.end.get("lost", False),
            good_fails=any(one.status != "ok" for each in comparison.entries for one in each.base),
        )


def _skipped(commit: str, reason: str, verdict: Verdict = Verdict.FAILED) -> Step:
    judgement = Judgement(verdict=verdict, reason=reason)
    return Step(commit=commit, answer=SKIP, judgement=judgement)
