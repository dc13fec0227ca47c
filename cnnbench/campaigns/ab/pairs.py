"""Measurement of the pairs of an experiment, in turns or one process after the other.

A pair of which a process was ended from outside, by a signal or its time-out, is measured again in
the same order, a limited number of times. A process that fails by itself ends the experiment.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import duration
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.ab.results import SIDES, PairsFolder, pair_name
from cnnbench.campaigns.ab.side import measuring
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.outcome import Measuring
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.records.codec import encode
from cnnbench.records.parts import AbPlace, LostProcess
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, with_subject
from cnnbench.run.runtime.native import uninterrupted

FEWEST_STEPS = 20
"""Timed steps of a process of the burn-in, and the minimum where their number is chosen by time: a
median of fewer is sensitive to single slow steps.
"""

MOST_STEPS = 10_000
"""Maximum of the chosen number of timed steps."""

MOST_REPEATS = 2
"""How often one pair is measured again."""

_PAIRS_PER_REPEAT = 4
_LOST, _STEPS = "lost", "steps"  # events of the journal


class PairFailedError(Exception):
    """A process failed, or (`lost`) a pair was lost too often; both sides' records are kept."""

    def __init__(self, message: str, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class Pairs:
    """Pairs of an experiment, including those of earlier sessions, whose repeats count too.

    `earlier` is the number of pairs of earlier sessions; `records` has those of all pairs, by side.
    """

    def __init__(self, experiment: Experiment, results: PairsFolder, campaign: Campaign) -> None:
        self.experiment = experiment
        self.results = results
        self.campaign = campaign
        earlier = results.pairs()
        self.earlier = len(earlier)
        self.records: dict[str, list[RunRecord]] = {
            name: [pair[place] for pair in earlier] for place, name in enumerate(SIDES)
        }
        self._repeats = _earlier_repeats(results)
        self._most_repeats = math.ceil(experiment.pairs / _PAIRS_PER_REPEAT)
        chosen = [one["num_batches"] for one in results.journal.read(_STEPS)]
        self._chooses = bool(experiment.timed_seconds and experiment.burn_in and not chosen)
        # Timed steps of a process; None: as its flags say.
        self._steps: int | None = FEWEST_STEPS if self._chooses else (chosen or [None])[-1]
        campaign.cool_down = experiment.cool_down
        self._expect(experiment.burn_in + max(0, experiment.pairs - self.earlier))

    def _expect(self, pairs: int) -> None:
        self.campaign.expect([None] * len(SIDES) * pairs)

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean wall time of a pair so far; None before the first process."""
        mean = self.campaign.durations.of(None)
        return None if mean is None else len(SIDES) * (mean + self.experiment.cool_down)

    def measure(self, number: int, burn_in: bool = False) -> None:
        """Runs a process of each side, numbered from 1; burn-in does not count, unless one fails.

        PairFailedError if a process failed by itself, or a pair was lost too often.
        """
        what = f"burn-in {number}" if burn_in else f"pair {number}"
        prefix = f"burn-in-{number}" if burn_in else pair_name(number)
        names = {side: f"{prefix}-{side}" for side in SIDES}
        # Drawn for each pair, so that the orders of a later session do not repeat the first ones.
        coin = random.Random(f"{self.experiment.seed} {prefix}").random()
        order = SIDES if coin < 0.5 else SIDES[::-1]
        while True:
            lost = self._repeats.get(prefix, [])
            places = {
                side: AbPlace(
                    side=side,
                    seed=self.experiment.seed,
                    pair=None if burn_in else number,
                    position=None if burn_in else position,
                    lost=tuple(one for attempt in lost for one in attempt) or None,
                )
                for position, side in enumerate(order, start=1)
            }
            samples = self._run(names, what, places)
            if not self._again(prefix, what, names, samples):
                break
        failed = [side for side in SIDES if samples[side].status != "ok"]
        if failed or not burn_in:
            # Both or none: half a pair would leave the sides with unequal numbers.
            with uninterrupted():
                for side in SIDES:
                    self.results.accept(names[side], side)
                    self.records[side].append(samples[side].record)
        elif self._chooses:
            self._choose_steps([sample.record for sample in samples.values()])
        if failed:
            self._fail(prefix, what, {side: samples[side] for side in failed})

    def _choose_steps(self, measured: Sequence[RunRecord]) -> None:
        """Sets the number of timed steps that the slower side needs for the requested time."""
        if not all(one.step_seconds for one in measured):
            self._steps = None  # an evaluation, which takes all of its data
            return
        step = max(median(one.step_seconds) for one in measured)
        disturbed = mostly_disturbed(measured)
        experiment = self.experiment
        seconds = experiment.disturbed_seconds if disturbed else experiment.timed_seconds
        self._steps = min(max(FEWEST_STEPS, math.ceil(seconds / step)), MOST_STEPS)
        self.results.journal.add(_STEPS, num_batches=self._steps, step_seconds=step)
        busy = "other programs use the CPUs: " if disturbed else ""
        self.campaign.reporter.notice(
            f"{busy}{self._steps} timed steps in each process, about "
            f"{duration(self._steps * step)}; --num_batches sets another number"
        )

    def _again(
        self,
        prefix: str,
        what: str,
        names: Mapping[str, str],
        samples: Mapping[str, Ended],
    ) -> bool:
        """Decides whether a pair is measured again, and if so sets its records aside."""
        failed = [side for side in SIDES if samples[side].status != "ok"]
        if not failed or not all(samples[side].lost for side in failed):
            return False
        lost = [LostProcess(side=side, how=samples[side].lost) for side in failed]
        repeats = self._repeats.setdefault(prefix, [])
        again = len(repeats) < MOST_REPEATS and self._repeated < self._most_repeats
        self.results.journal.add(_LOST, pair=prefix, lost=encode(lost), again=again)
        if again:
            repeats.append(lost)
            for name in names.values():
                self.results.set_aside(name, len(repeats))
            self._expect(1)
            hows = " and ".join(f"{one.side.upper()} was {one.how}" for one in lost)
            self.campaign.reporter.notice(f"{what} is measured again: {hows}")
        return again

    @property
    def _repeated(self) -> int:
        return sum(map(len, self._repeats.values()))

    def _fail(self, prefix: str, what: str, failed: Mapping[str, Ended]) -> None:
        text = "; ".join(f"{side.upper()}: {one.message}" for side, one in failed.items())
        lost = all(one.lost for one in failed.values())
        if lost:
            had = f"{what} had {len(self._repeats[prefix])} of {MOST_REPEATS}"
            text += (
                f"; no repeat is left: {had}, all pairs {self._repeated} of {self._most_repeats}"
            )
        raise PairFailedError(text, lost)

    def _run(
        self, names: Mapping[str, str], what: str, places: Mapping[str, AbPlace]
    ) -> dict[str, Ended]:
        """Runs the processes of a pair, in turn or in the order of their places, by side."""
        turn_seconds = self.experiment.turn_seconds
        found: dict[str, Ended] = {}
        for group in [list(places)] if turn_seconds else [[side] for side in places]:
            labels = [f"{what} {side.upper()}" for side in group]
            self.campaign.begin(f"{what}, both sides in turn" if turn_seconds else labels[0])
            commands = [self._command(names[side], side) for side in group]
            ended = self.campaign.run(commands, self.experiment.timeout, turn_seconds)
            for side, label, one in zip(group, labels, ended, strict=True):
                found[side] = self._end(names[side], label, places[side], one)
        return found

    def _command(self, name: str, side: str) -> Measuring:
        records = self.records[side]
        started = self.experiment.sides()[side]
        if self._steps is not None:
            started = replace(started, flags=(*started.flags, f"--num_batches={self._steps}"))
        return measuring(
            started,
            self.results.pending(name),
            self.results.log(name),
            facts=self.campaign.facts,
            like=records[-1] if records else self.experiment.resolved.get(side),
        )

    def _end(self, name: str, label: str, place: AbPlace, ended: Ended) -> Ended:
        """Registers a process that has ended; returns it with its annotated record."""
        subject = self.experiment.subjects.get(place.side, Subject(side=place.side))
        document = with_subject({**ended.document, "ab": encode(place)}, subject)
        self.results.keep(document, self.results.pending(name))
        ended = replace(ended, document=document)
        self.campaign.end_measuring(self.results.journal, name, label, ended)
        return ended


def _earlier_repeats(results: PairsFolder) -> dict[str, list[list[LostProcess]]]:
    """Reasons why pairs were measured again in earlier sessions, by prefix of their names."""
    found: dict[str, list[list[LostProcess]]] = {}
    for event in results.journal.read(_LOST):
        if event.get("again"):
            lost = [LostProcess(side=one["side"], how=one["how"]) for one in event["lost"]]
            found.setdefault(event["pair"], []).append(lost)
    return found
