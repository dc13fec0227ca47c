"""Runs the pairs of an experiment until its verdict is clear."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cnnbench.ab.flags import side_differences
from cnnbench.ab.futility import SMALLEST_CHANCE, chance
from cnnbench.ab.results import SIDES, ResultsFolder, pair_name
from cnnbench.ab.sequential import InterimAnalysis
from cnnbench.ab.side import ProcessResult, Sample, Side, SideFlags, run_in_turn, run_once
from cnnbench.compare import (
    DEFAULT_METRICS,
    Case,
    Comparison,
    Policy,
    Result,
    Verdict,
    compare_records,
)
from cnnbench.metrics.registry import throughput
from cnnbench.processes.child import GRACE_SECONDS
from cnnbench.records.codec import encode
from cnnbench.records.place import AbPlace
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, with_subject
from cnnbench.runtime.native import uninterrupted
from cnnbench.stats.descriptive import median
from cnnbench.text.numbers import duration, number, percent
from cnnbench.text.progress import Reporter

_CLEAR = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
# More pairs cannot change these.
_HOPELESS = (
    Verdict.FAILED,
    Verdict.CHANGED_WORK,
    Verdict.NOT_COMPARABLE,
    Verdict.MISSING,
)

FEWEST_STEPS = 20
"""Timed steps of a process of the burn-in, and at least of every other one, where their number is
chosen by time: a median of fewer is moved by single slow steps."""

MOST_STEPS = 10_000
"""At most so many timed steps are chosen."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is measured and how it is judged.

    Attributes:
      a, b: the sides; A is BASE, B is NEW.
      analyses: the interim analyses, by number of pairs; the last one ends the experiment.
      stop_early: whether a clear interim analysis ends it, too, or one after which the pairs
        that are left have hardly a chance of a verdict.
      seed: of the order within pairs.
      burn_in: processes of each side before the first pair that do not count.
      cool_down: seconds between processes.
      timeout: seconds for each process.
      turn_seconds: length of the turns in which the processes of a pair step, both alive; 0:
        one process after the other.
      timed_seconds: of the timed steps of each process; their number is chosen after the burn-in.
        0: it is left to the flags.
      policy: the constants; its alpha is that of all interim analyses together.
      metrics: to judge; the first decides.
      allow_different: facts that may differ besides those in which the sides differ.
      allow_changed_work: a network or batch of another size is no regression.
      aa: A/A runs, to estimate the noise from.
      resolved: flags of the sides by name, for records of processes that leave none.
      subjects: what each side measures, by name; of an A/A measurement both the same.
    """

    a: Side
    b: Side
    analyses: tuple[InterimAnalysis, ...]
    stop_early: bool = True
    seed: int
    burn_in: int = 1
    cool_down: float = 0.0
    timeout: float
    turn_seconds: float = 0.0
    timed_seconds: float = 0.0
    policy: Policy = field(default_factory=Policy)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    allow_different: tuple[str, ...] = ()
    allow_changed_work: bool = False
    aa: tuple[RunRecord, ...] | None = None
    resolved: Mapping[str, SideFlags] = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """At most."""
        return self.analyses[-1].pairs

    def sides(self) -> dict[str, Side]:
        """By name."""
        return dict(zip(SIDES, (self.a, self.b), strict=True))

    @cached_property
    def allowed(self) -> tuple[str, ...]:
        """All facts that may differ; computed once, because flag files are read for it."""
        return (*side_differences(self.a, self.b), *self.allow_different)

    def compare(
        self, base: Iterable[RunRecord], new: Iterable[RunRecord], alpha: float
    ) -> Comparison:
        """Judges pairs.

        Args:
          base, new: records of A and of B; the i-th of both are a pair.
          alpha: two-sided level of this analysis.
        """
        return compare_records(
            base,
            new,
            self.policy.replace(alpha=alpha),
            metrics=self.metrics,
            allow_different=self.allowed,
            aa=self.aa,
            paired=True,
            allow_changed_work=self.allow_changed_work,
            base_label=f"A: {self.a.description()}",
            new_label=f"B: {self.b.description()}",
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How an experiment ended.

    Attributes:
      comparison: of all complete pairs.
      alpha: the level it was judged at.
      failure: the error, or "".
      interrupted: whether a signal ended it.
    """

    comparison: Comparison
    alpha: float
    failure: str = ""
    interrupted: bool = False


class _Failed(Exception):
    """A process failed; both sides have their record."""


class Session:
    """One experiment.

    Args:
      experiment: what to do.
      results: takes the records; pairs that it holds already are not measured again.
      reporter: progress.
      facts: about this machine, for processes that leave no record.
      grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        experiment: Experiment,
        results: ResultsFolder,
        reporter: Reporter,
        *,
        facts: Mapping[str, Any] | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._experiment = experiment
        self._results = results
        self._reporter = reporter
        self._facts = facts or {}
        self._grace = grace
        self._coins = random.Random(experiment.seed)
        earlier = results.pairs()
        self._earlier = len(earlier)
        self._records: dict[str, list[RunRecord]] = {
            name: [pair[place] for pair in earlier] for place, name in enumerate(SIDES)
        }
        self._seconds: list[float] = []
        # Timed steps of a process; None: as its flags say.
        self._steps = FEWEST_STEPS if experiment.timed_seconds and experiment.burn_in else None
        self._total = 2 * (experiment.burn_in + max(0, experiment.pairs - self._earlier))

    def run(self) -> Finding:
        """Measures and judges, also after an interrupt or a failure.

        Raises:
          BenchmarkError: results cannot be written, or no process can be started.
        """
        self._note_start()
        failure, interrupted, alpha = "", False, self._experiment.analyses[0].alpha
        try:
            for number in range(1, self._experiment.burn_in + 1):
                self._pair(number, burn_in=True)
            alpha = self._measure()
        except _Failed as error:
            failure = str(error)
        except KeyboardInterrupt:
            interrupted = True
        pairs = len(self._records["a"])
        if failure or interrupted:
            alpha = next((k.alpha for k in self._experiment.analyses if k.pairs >= pairs), alpha)
        comparison = self._compare(alpha)
        self._results.journal.add(
            "end",
            pairs=pairs,
            alpha=alpha,
            verdicts=[entry.main.verdict.value for entry in comparison.entries],
            failure=failure,
            interrupted=interrupted,
        )
        return Finding(comparison=comparison, alpha=alpha, failure=failure, interrupted=interrupted)

    def _measure(self) -> float:
        """Runs pairs up to the interim analysis that ends it; returns the level of that."""
        analyses = {one.pairs: one for one in self._experiment.analyses}
        first = max(1, self._earlier)
        for pair in range(first, self._experiment.pairs + 1):
            if pair > self._earlier:
                self._pair(pair)
            if pair == first and self._is_hopeless():
                break
            analysis = analyses.get(pair)
            if analysis is not None and self._ends(analysis):
                return analysis.alpha
        return self._experiment.analyses[-1].alpha

    def _is_hopeless(self) -> bool:
        """Whether the pairs so far, the first as a rule, show that there will be no verdict."""
        comparison = self._compare(self._experiment.analyses[0].alpha)
        return any(entry.main.verdict in _HOPELESS for entry in comparison.entries)

    def _ends(self, analysis: InterimAnalysis) -> bool:
        """Whether an interim analysis ends the experiment: clear, the last, or without hope."""
        comparison = self._compare(analysis.alpha)
        results = [entry.main for entry in comparison.entries]
        verdicts = [result.verdict.value for result in results]
        last = analysis.pairs == self._experiment.pairs
        clear = self._experiment.stop_early and all(r.verdict in _CLEAR for r in results)
        chance = None if last or clear or not self._experiment.stop_early else self._chance(results)
        look = {**vars(analysis), "verdicts": verdicts}
        self._results.journal.add("look", **look, **({} if chance is None else {"chance": chance}))
        futile = chance is not None and chance < SMALLEST_CHANCE
        if not last:
            verdict = "; ".join(f"{result.word}: {result.judgement.reason}" for result in results)
            after = "enough" if clear else "going on"
            if futile:
                after = f"stopped: {self._experiment.pairs} pairs would hardly give a verdict "
                after += f"(chance below {percent(SMALLEST_CHANCE, 0)})"
            self._reporter.notice(f"after {analysis.pairs} pairs {verdict}; {after}")
        return clear or last or futile

    def _chance(self, results: Sequence[Result]) -> float:
        """The smallest chance of a clear verdict that a result without one has."""
        pairs = len(self._records["a"])
        left = [one for one in self._experiment.analyses if one.pairs > pairs]
        cases = [
            Case(
                base=one.base,
                new=one.new,
                metric=one.metric,
                paired=True,
                noise=one.judgement.noise,
            )
            for one in results
            if one.verdict is Verdict.INCONCLUSIVE and one.judgement.p is not None
        ]
        policy = self._experiment.policy
        return min((chance(case, left, policy) for case in cases), default=1.0)

    @property
    def seconds_per_pair(self) -> float | None:
        """Wall time of a pair, the mean so far; None before the first process."""
        if not self._seconds:
            return None
        return 2 * (sum(self._seconds) / len(self._seconds) + self._experiment.cool_down)

    def _pair(self, number: int, burn_in: bool = False) -> None:
        """Runs a process of each side; one that failed ends the experiment.

        The records of the burn-in do not count, unless a process failed.
        """
        what = f"burn-in {number}" if burn_in else f"pair {number}"
        prefix = f"burn-in-{number}" if burn_in else pair_name(number)
        names = {side: f"{prefix}-{side}" for side in SIDES}
        order = SIDES if self._coins.random() < 0.5 else SIDES[::-1]
        places: dict[str, dict[str, int]] = {
            side: {} if burn_in else {"pair": number, "position": position}
            for position, side in enumerate(order, start=1)
        }
        together = self._experiment.turn_seconds > 0
        measure = self._in_turn if together else self._one_after_the_other
        samples = measure(names, what, places)
        failed = [side for side in SIDES if samples[side].status != "ok"]
        if failed or not burn_in:
            self._accept(names, samples)
        elif self._steps is not None:
            self._choose_steps([sample.record for sample in samples.values()])
        if failed:
            raise _Failed("; ".join(f"{side.upper()}: {samples[side].problem}" for side in failed))

    def _choose_steps(self, measured: Sequence[RunRecord]) -> None:
        """Sets the number of timed steps that take the slower side as long as is asked for."""
        if not all(one.step_seconds for one in measured):
            self._steps = None  # an evaluation: its length is that of its data
            return
        step = max(median(one.step_seconds) for one in measured)
        seconds = self._experiment.timed_seconds
        self._steps = min(max(FEWEST_STEPS, math.ceil(seconds / step)), MOST_STEPS)
        self._results.journal.add("steps", num_batches=self._steps, step_seconds=step)
        self._reporter.notice(
            f"{self._steps} timed steps in each process, about {duration(self._steps * step)}; "
            "--num_batches sets another number"
        )

    def _accept(self, names: Mapping[str, str], samples: Mapping[str, ProcessResult]) -> None:
        # Both or none: half a pair would make all the others unequal in number.
        with uninterrupted():
            for side in SIDES:
                self._results.accept(names[side], side)
                self._records[side].append(samples[side].record)

    def _one_after_the_other(
        self, names: Mapping[str, str], what: str, places: Mapping[str, Mapping[str, int]]
    ) -> dict[str, ProcessResult]:
        """Runs the processes of a pair in the order of their places; returns them by side."""
        found = {}
        for side, place in places.items():
            self._begin(f"{what} {side.upper()}")
            one = self._planned(names[side], side)
            experiment = self._experiment
            result = run_once(
                one.side,
                one.record,
                one.log,
                experiment.timeout,
                facts=one.facts,
                like=one.like,
                grace=self._grace,
            )
            found[side] = self._end(names[side], side, f"{what} {side.upper()}", place, result)
        return found

    def _in_turn(
        self, names: Mapping[str, str], what: str, places: Mapping[str, Mapping[str, int]]
    ) -> dict[str, ProcessResult]:
        """The same with both alive; each counts as half of the time that both took."""
        self._begin(f"{what}, both sides in turn")
        planned = [self._planned(names[side], side) for side in places]
        begun = time.monotonic()
        experiment = self._experiment
        results = run_in_turn(planned, experiment.timeout, experiment.turn_seconds, self._grace)
        half = (time.monotonic() - begun) / 2
        return {
            side: self._end(
                names[side], side, f"{what} {side.upper()}", place, replace(one, seconds=half)
            )
            for (side, place), one in zip(places.items(), results, strict=True)
        }

    def _begin(self, label: str) -> None:
        """Rests, if that is asked for, and shows what is about to run."""
        if self._seconds and self._experiment.cool_down:
            time.sleep(self._experiment.cool_down)
        self._reporter.started(len(self._seconds) + 1, self._total, label)

    def _planned(self, name: str, side: str) -> Sample:
        records = self._records[side]
        started = self._experiment.sides()[side]
        if self._steps is not None:
            started = replace(started, flags=(*started.flags, f"--num_batches={self._steps}"))
        return Sample(
            side=started,
            record=self._results.pending(name),
            log=self._results.log(name),
            facts=self._facts,
            like=records[-1] if records else self._experiment.resolved.get(side),
        )

    def _end(
        self, name: str, side: str, label: str, place: Mapping[str, int], sample: ProcessResult
    ) -> ProcessResult:
        """Notes a process that has ended; returns it with what its record says of it now."""
        more = encode(AbPlace(side=side, seed=self._experiment.seed, **place))
        subject = self._experiment.subjects.get(side, Subject(side=side))
        document = with_subject({**sample.document, "ab": more}, subject)
        self._results.keep(name, document)
        sample = replace(sample, document=document, record=RunRecord.from_dict(document))
        self._seconds.append(sample.seconds)
        index = len(self._seconds)
        speed = throughput(sample.record)
        self._results.journal.add(
            "process",
            name=name,
            seconds=round(sample.seconds, 3),
            images_per_sec=speed,
            problem=sample.problem,
        )
        found = sample.problem or ("ok" if speed is None else f"{number(speed)} images/sec")
        self._reporter.ended(index, self._total, label, found, sample.seconds, self._left(index))
        return sample

    def _left(self, done: int) -> float:
        """Seconds that all the other processes will take, if none is saved."""
        mean = sum(self._seconds) / len(self._seconds)
        return (self._total - done) * (mean + self._experiment.cool_down)

    def _compare(self, alpha: float) -> Comparison:
        return self._experiment.compare(self._records["a"], self._records["b"], alpha)

    def _note_start(self) -> None:
        experiment = self._experiment
        sides = {
            name: {
                "description": side.description(),
                "flags": side.flags,
                "python": side.python,
                "checkout": side.checkout,
                "revision": side.revision,
                # Without their values, which may be secrets.
                "variables": tuple(side.variables),
            }
            for name, side in experiment.sides().items()
        }
        self._results.journal.add(
            "ab",
            sides=sides,
            seed=experiment.seed,
            looks=[vars(analysis) for analysis in experiment.analyses],
            burn_in=experiment.burn_in,
            cool_down=experiment.cool_down,
            timeout=experiment.timeout,
            turn_seconds=experiment.turn_seconds,
            timed_seconds=experiment.timed_seconds,
            allowed=experiment.allowed,
            metrics=experiment.metrics,
            policy=encode(experiment.policy),
            allow_changed_work=experiment.allow_changed_work,
            baseline_aa=experiment.aa is not None,
        )
