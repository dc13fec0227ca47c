"""Measures the pairs of an experiment, in turns or one process after the other.

A pair of which a process was ended from outside, by a signal or by its time-out, says nothing
about the sides: it is measured again, a limited number of times, in the same order. A process
that fails by itself ends the experiment.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cnnbench.ab.experiment import Experiment
from cnnbench.ab.results import SIDES, ResultsFolder, pair_name
from cnnbench.ab.side import ProcessResult, Sample, run_in_turn, run_once
from cnnbench.compare.cpu_time import mostly_disturbed
from cnnbench.metrics.registry import throughput
from cnnbench.records.codec import encode
from cnnbench.records.place import AbPlace, LostProcess
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, with_subject
from cnnbench.runtime.native import uninterrupted
from cnnbench.stats.descriptive import median
from cnnbench.text.numbers import duration, number
from cnnbench.text.progress import Reporter

FEWEST_STEPS = 20
"""Timed steps of a process of the burn-in, and at least of every other one, where their number is
chosen by time: a median of fewer is moved by single slow steps."""

MOST_STEPS = 10_000
"""At most so many timed steps are chosen."""

MOST_REPEATS = 2
"""How often one pair is measured again."""

_PAIRS_PER_REPEAT = 4
_LOST = "lost"


class PairFailedError(Exception):
    """A process failed; both sides have their record.

    Attributes:
      lost: whether no process failed by itself, and the repeats are used up.
    """

    def __init__(self, message: str, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class Pairs:
    """The pairs of an experiment, those of before included.

    Attributes:
      earlier: number of pairs that were there before.
      records: of the pairs, by side.

    Args:
      experiment: what to measure.
      results: takes the records; its journal holds the repeats of before, which count.
      reporter: progress.
      facts: about this machine, for processes that leave no record.
      grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        experiment: Experiment,
        results: ResultsFolder,
        reporter: Reporter,
        facts: Mapping[str, Any],
        grace: float,
    ) -> None:
        self._experiment = experiment
        self._results = results
        self._reporter = reporter
        self._facts = facts
        self._grace = grace
        self._coins = random.Random(experiment.seed)
        earlier = results.pairs()
        self.earlier = len(earlier)
        self.records: dict[str, list[RunRecord]] = {
            name: [pair[place] for pair in earlier] for place, name in enumerate(SIDES)
        }
        self._repeats = _earlier_repeats(results)
        self._most_repeats = math.ceil(experiment.pairs / _PAIRS_PER_REPEAT)
        self._seconds: list[float] = []
        # Timed steps of a process; None: as its flags say.
        self._steps = FEWEST_STEPS if experiment.timed_seconds and experiment.burn_in else None
        self._total = 2 * (experiment.burn_in + max(0, experiment.pairs - self.earlier))

    @property
    def seconds_per_pair(self) -> float | None:
        """Wall time of a pair, the mean so far; None before the first process."""
        if not self._seconds:
            return None
        return 2 * (sum(self._seconds) / len(self._seconds) + self._experiment.cool_down)

    def measure(self, number: int, burn_in: bool = False) -> None:
        """Runs a process of each side.

        The records of the burn-in do not count, unless a process failed.

        Args:
          number: of the pair, from 1.
          burn_in: whether it is one of those before the first pair.

        Raises:
          PairFailedError: a process failed by itself, or a pair was lost too often.
        """
        what = f"burn-in {number}" if burn_in else f"pair {number}"
        prefix = f"burn-in-{number}" if burn_in else pair_name(number)
        names = {side: f"{prefix}-{side}" for side in SIDES}
        order = SIDES if self._coins.random() < 0.5 else SIDES[::-1]
        run = self._in_turn if self._experiment.turn_seconds > 0 else self._one_after_the_other
        while True:
            lost = self._repeats.get(prefix, [])
            places = {
                side: AbPlace(
                    side=side,
                    seed=self._experiment.seed,
                    pair=None if burn_in else number,
                    position=None if burn_in else position,
                    lost=tuple(one for attempt in lost for one in attempt) or None,
                )
                for position, side in enumerate(order, start=1)
            }
            samples = run(names, what, places)
            if not self._again(prefix, what, names, samples):
                break
        failed = [side for side in SIDES if samples[side].status != "ok"]
        if failed or not burn_in:
            self._accept(names, samples)
        elif self._steps is not None:
            self._choose_steps([sample.record for sample in samples.values()])
        if failed:
            self._fail(prefix, what, {side: samples[side] for side in failed})

    def _choose_steps(self, measured: Sequence[RunRecord]) -> None:
        """Sets the number of timed steps that take the slower side as long as is asked for."""
        if not all(one.step_seconds for one in measured):
            self._steps = None  # an evaluation: its length is that of its data
            return
        step = max(median(one.step_seconds) for one in measured)
        disturbed = mostly_disturbed(measured)
        experiment = self._experiment
        seconds = experiment.disturbed_seconds if disturbed else experiment.timed_seconds
        self._steps = min(max(FEWEST_STEPS, math.ceil(seconds / step)), MOST_STEPS)
        self._results.journal.add("steps", num_batches=self._steps, step_seconds=step)
        busy = "other programs use the CPUs: " if disturbed else ""
        self._reporter.notice(
            f"{busy}{self._steps} timed steps in each process, about "
            f"{duration(self._steps * step)}; --num_batches sets another number"
        )

    def _again(
        self,
        prefix: str,
        what: str,
        names: Mapping[str, str],
        samples: Mapping[str, ProcessResult],
    ) -> bool:
        """Whether a pair is measured again; what it has left is then set aside."""
        failed = [side for side in SIDES if samples[side].status != "ok"]
        if not failed or not all(samples[side].lost for side in failed):
            return False
        lost = [LostProcess(side=side, how=samples[side].lost) for side in failed]
        repeats = self._repeats.setdefault(prefix, [])
        again = len(repeats) < MOST_REPEATS and self._repeated < self._most_repeats
        self._results.journal.add(_LOST, pair=prefix, lost=encode(lost), again=again)
        if again:
            repeats.append(lost)
            for name in names.values():
                self._results.set_aside(name, len(repeats))
            self._total += len(SIDES)
            hows = " and ".join(f"{one.side.upper()} was {one.how}" for one in lost)
            self._reporter.notice(f"{what} is measured again: {hows}")
        return again

    @property
    def _repeated(self) -> int:
        return sum(map(len, self._repeats.values()))

    def _fail(self, prefix: str, what: str, failed: Mapping[str, ProcessResult]) -> None:
        text = "; ".join(f"{side.upper()}: {one.problem}" for side, one in failed.items())
        lost = all(one.lost for one in failed.values())
        if lost:
            had = f"{what} had {len(self._repeats[prefix])} of {MOST_REPEATS}"
            text += (
                f"; no repeat is left: {had}, all pairs {self._repeated} of {self._most_repeats}"
            )
        raise PairFailedError(text, lost)

    def _accept(self, names: Mapping[str, str], samples: Mapping[str, ProcessResult]) -> None:
        # Both or none: half a pair would make all the others unequal in number.
        with uninterrupted():
            for side in SIDES:
                self._results.accept(names[side], side)
                self.records[side].append(samples[side].record)

    def _one_after_the_other(
        self, names: Mapping[str, str], what: str, places: Mapping[str, AbPlace]
    ) -> dict[str, ProcessResult]:
        """Runs the processes of a pair in the order of their places; returns them by side."""
        found = {}
        for side, place in places.items():
            self._begin(f"{what} {side.upper()}")
            one = self._planned(names[side], side)
            result = run_once(
                one.side,
                one.record,
                one.log,
                self._experiment.timeout,
                facts=one.facts,
                like=one.like,
                grace=self._grace,
            )
            found[side] = self._end(names[side], f"{what} {side.upper()}", place, result)
        return found

    def _in_turn(
        self, names: Mapping[str, str], what: str, places: Mapping[str, AbPlace]
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
                names[side], f"{what} {side.upper()}", place, replace(one, seconds=half)
            )
            for (side, place), one in zip(places.items(), results, strict=True)
        }

    def _begin(self, label: str) -> None:
        """Rests, if that is asked for, and shows what is about to run."""
        if self._seconds and self._experiment.cool_down:
            time.sleep(self._experiment.cool_down)
        self._reporter.started(len(self._seconds) + 1, self._total, label)

    def _planned(self, name: str, side: str) -> Sample:
        records = self.records[side]
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

    def _end(self, name: str, label: str, place: AbPlace, sample: ProcessResult) -> ProcessResult:
        """Notes a process that has ended; returns it with what its record says of it now."""
        subject = self._experiment.subjects.get(place.side, Subject(side=place.side))
        document = with_subject({**sample.document, "ab": encode(place)}, subject)
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


def _earlier_repeats(results: ResultsFolder) -> dict[str, list[list[LostProcess]]]:
    """Because of what each pair was measured again before, by the beginning of its names."""
    found: dict[str, list[list[LostProcess]]] = {}
    for event in results.journal.read():
        if event.get("event") == _LOST and event.get("again"):
            lost = [LostProcess(side=one["side"], how=one["how"]) for one in event["lost"]]
            found.setdefault(event["pair"], []).append(lost)
    return found
