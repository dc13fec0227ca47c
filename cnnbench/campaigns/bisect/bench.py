"""Measurement of a commit against GOOD: worktree, build, pairs, verdict."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.text.numbers import duration
from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.checkout import worktree
from cnnbench.campaigns.ab.explain import NotExplainedError, ProfilesFolder, Profiling
from cnnbench.campaigns.ab.flags import check, turn_seconds
from cnnbench.campaigns.ab.pairs import Experiment, Pairs
from cnnbench.campaigns.ab.results import Begun, PairsFolder, begun
from cnnbench.campaigns.ab.side import Side
from cnnbench.campaigns.bisect.search import (
    BAD,
    SKIP,
    History,
    Step,
    answer,
    entry_of,
    is_about_work,
)
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Command, end_of, execute
from cnnbench.campaigns.processes.outcome import last_line
from cnnbench.campaigns.processes.question import Question
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import Policy, Verdict, processes_needed
from cnnbench.machine import repository
from cnnbench.records.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings shared by all steps.

    Attributes:
      good, bad: hashes; all others are measured against the first.
      python: interpreter of the processes; this one if None.
      build: shell command that prepares a worktree; None to leave it as it is.
      pairs, most_pairs: maximum where the answer is clear, and where it is not.
      pairing: how the processes of a pair share their time, see `turn_seconds`.
    """

    history: History
    good: str
    bad: str
    flags: tuple[str, ...]
    python: str | None
    build: str | None
    pairs: int
    most_pairs: int
    burn_in: int
    timeout: float
    seed: int
    pairing: str
    policy: Policy


class _Unusable(Exception):
    """A commit that does not build; the message has the reason."""


class CommitBench:
    """Measures commits; the stack gets GOOD's worktree."""

    def __init__(
        self,
        setting: Setting,
        results: Path,
        reporter: Reporter,
        question: Question,
        stack: contextlib.ExitStack,
    ) -> None:
        self.setting = setting
        self._results = results
        self.reporter = reporter
        self._question = question
        self._stack = stack
        self._seconds: float | None = None
        self._good: Side | None = None

    def prepare(self) -> None:
        """Makes GOOD's worktree, if there is none yet; BenchmarkError if it does not build."""
        if self._good is not None:
            return
        good = self.setting.good
        try:
            self._good = self._stack.enter_context(self._prepared(good, "a"))
        except _Unusable as error:
            raise BenchmarkError(f"GOOD ({good[:12]}) {error}") from None

    @property
    def seconds_per_pair(self) -> float | None:
        """Seconds per pair of the last step, or an estimate; None if unknown."""
        work = None if self._good is None else self._good.resolved.work
        if self._seconds is not None or work is None:
            return self._seconds
        guess = work.seconds(self._question.facts)
        return None if guess is None else 2 * guess

    def measure(
        self, number: int, commit: str, found: Step | None = None, again: bool = False
    ) -> Step:
        """Measures a commit against GOOD, as a step counted from 0; call `prepare` first.

        `found` is how BAD compares with GOOD; None for that step itself. `again`: the commit was
        undecided before, and more pairs are requested. Measured pairs are kept for the next
        attempt. BenchmarkError if GOOD failed, or results cannot be written.
        """
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                new = stack.enter_context(self._prepared(commit, "b"))
                # A session that was interrupted, or had lost processes, has not judged.
                earlier = begun(self._results / commit[:12]) if again else None
                experiment = self._experiment(number, new, found, earlier)
            except (_Unusable, UsageError) as error:
                if found is None and isinstance(error, FlagError) and error.flag == "pairing":
                    raise
                verdict = Verdict.FAILED.value
                step = Step(commit=commit, answer=SKIP, verdict=verdict, reason=str(error))
            else:
                step = self._compared(experiment, commit, found, again)
        return replace(step, seconds=round(time.monotonic() - started, 3))

    def explain(self, parent: str, commit: str) -> Explanation:
        """Profiles a commit and its parent, and explains their difference, or NotExplainedError."""
        with contextlib.ExitStack() as stack:
            try:
                a = stack.enter_context(self._prepared(parent, "a"))
                b = stack.enter_context(self._prepared(commit, "b"))
            except (_Unusable, UsageError) as error:
                raise NotExplainedError(str(error)) from error
            with ProfilesFolder(self._results / f"explain-{commit[:12]}", resume=True) as results:
                return Profiling(
                    sides={"a": a, "b": b},
                    results=results,
                    campaign=self._campaign(),
                    timeout=self.setting.timeout,
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
            side = Side(
                flags=setting.flags,
                python=setting.python,
                checkout=folder,
                revision=commit[:12],
                subject=subject,
            )
            yield replace(side, resolved=check(side))

    def _build(self, command: str, commit: str, folder: Path) -> None:
        log = self._results / f"build-{commit[:12]}.log"
        build = Command(words=("/bin/sh", "-c", command), log=log, folder=folder)
        done = execute(build, self.setting.timeout)
        if done.timed_out:
            raise _Unusable(f"does not build: takes more than {duration(done.seconds)}")
        if done.code != 0:
            raise _Unusable(f"does not build: exit status {done.code}; {last_line(end_of(log))}")

    def _compared(
        self, experiment: Experiment, commit: str, found: Step | None, again: bool
    ) -> Step:
        setting = self.setting
        name = commit[:12]
        about_work = is_about_work(found)
        pairs = self._run(experiment, name)
        step = self._answered(pairs, commit, about_work)
        if step.verdict == Verdict.INCONCLUSIVE.value and step.answer == SKIP:
            more = self._with_more_pairs(pairs, name, again)
            if more is not None:
                self.reporter.notice(f"undecided: going on, with up to {more.pairs} pairs")
                step = self._answered(self._run(more, name), commit, about_work)
        if found is None and step.verdict == Verdict.CHANGED_WORK.value:
            step = replace(step, answer=BAD)  # the search is for the commit that changed the work
        return replace(step, most_pairs=setting.most_pairs, results=name)

    def _experiment(
        self, number: int, new: Side, found: Step | None, earlier: Begun | None
    ) -> Experiment:
        """The first pairs of a step."""
        assert self._good is not None
        setting, policy = self.setting, self.setting.policy
        about_work = is_about_work(found)
        if not about_work and found is not None and found.change is not None:
            half = math.expm1(abs(math.log1p(found.change)) / 2)
            policy = policy.replace(threshold=max(policy.threshold, half))
        sides = {"a": self._good, "b": new}
        return Experiment(
            sides=sides,
            most_pairs=1 if about_work else setting.pairs,
            earlier=earlier,
            sequential=not about_work,
            seed=setting.seed + number,
            burn_in=0 if about_work else setting.burn_in,
            timeout=setting.timeout,
            turn_seconds=turn_seconds(setting.pairing, sides, self.reporter),
            policy=policy,
            metrics=("throughput",),
        )

    def _with_more_pairs(self, pairs: Pairs, name: str, again: bool) -> Experiment | None:
        """The experiment with the most pairs; None if these are too few, unless `again`."""
        experiment, entry = pairs.experiment, entry_of(pairs.comparison)
        if entry is None:
            return None
        most, needed = self.setting.most_pairs, entry.main.judgement.needed
        if needed is None:  # too few pairs for a verdict, or noise that more do not reduce
            fewest = processes_needed(experiment.policy, paired=True)
            needed = fewest if len(entry.base) < fewest else most + 1
        if needed > most and not again:
            return None
        earlier = begun(self._results / name)
        later = replace(experiment, burn_in=0, most_pairs=most, earlier=earlier)
        return later if later.pairs > len(entry.base) else None

    def _run(self, experiment: Experiment, name: str) -> Pairs:
        """Measures an experiment; existing pairs count. BenchmarkError if GOOD failed."""
        with PairsFolder(self._results / name, resume=True) as results:
            pairs = Pairs(experiment, results, self._campaign())
            pairs.run()
        if pairs.interrupted:
            raise KeyboardInterrupt
        self._question.check()  # if the code was changed, there is no answer
        self._seconds = pairs.seconds_per_pair or self._seconds
        base = [one for entry in pairs.comparison.entries for one in entry.base]
        if any(one.status != "ok" for one in base):
            raise BenchmarkError(f"GOOD ({self.setting.good[:12]}) fails: {pairs.failure}")
        return pairs

    def _campaign(self) -> Campaign:
        return Campaign(self.reporter, self._question.facts, question=self._question)

    def _answered(self, pairs: Pairs, commit: str, about_work: bool) -> Step:
        entry = entry_of(pairs.comparison)
        if entry is None:
            reason = pairs.failure or "its runs have another configuration than those of GOOD"
            verdict = Verdict.NOT_COMPARABLE.value
            return Step(commit=commit, answer=SKIP, verdict=verdict, reason=reason)
        judgement = entry.main.judgement
        return Step(
            commit=commit,
            answer=answer(entry, self.setting.policy.replace(alpha=pairs.alpha), about_work),
            verdict=entry.main.verdict.value,
            reason=pairs.failure or judgement.reason,
            change=judgement.change,
            low=judgement.low,
            high=judgement.high,
            confidence=1 - pairs.alpha,
            pairs=min(len(entry.base), len(entry.new)),
            needed=judgement.needed,
            lost=pairs.lost,
        )
