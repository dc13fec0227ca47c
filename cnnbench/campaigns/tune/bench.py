"""Measures candidates in processes, as long as the time lasts.

A process of a race is short: as many timed steps as take some seconds with the given flags, after a
first process that measures the length of a step. A round runs its candidates in random order. Where
processes can step in turn (docs/ab.md), up to `lanes` are alive at once, so that disturbances of
the machine affect all of them.

Time is that of the processes. So a resumed search decides as before, and with more time than before
as if it had had that time from its beginning: more candidates are tried, fewer leave for lack of
time, and recorded processes are not run again.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import duration
from cnnbench.campaigns.ab.flags import LENGTHS, TURN_SECONDS
from cnnbench.campaigns.ab.results import PairsFolder
from cnnbench.campaigns.ab.side import Side, request
from cnnbench.campaigns.processes.campaign import Campaign, RequestBatch, RunPolicy
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.campaigns.processes.results_dir import JOURNAL, LOGS, PROCESS, Journal
from cnnbench.campaigns.strategies.session import WeightsFolder
from cnnbench.campaigns.tune.race import Leaver, Round
from cnnbench.campaigns.tune.space import Candidate, Space
from cnnbench.errors import BenchmarkError
from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.judge.metrics.policy import Policy
from cnnbench.machine.cpu import Memory
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord

FEWEST_PAIRS, MOST_PAIRS = 6, 16
"""Pairs of the final: with fewer than six no verdict is possible."""

_FIRST_STEPS = 20
_LATEST = 3  # processes that predict the duration of the next ones
_FINAL_SHARE, _MOST_FINAL_SHARE = 0.4, 2 / 3
_ANSWERS = ("ok", "failed", "out_of_memory")  # others may be different another time
_MEMORY = 0.8  # share of the available memory for simultaneous processes

MOST_MINUTES = 10080
"""The most minutes of a search."""

RACE_SECONDS = 1.0
"""Seconds of timed steps in a race; twice as many hardly make processes differ less."""

FEWEST_STEPS = 10
"""Minimum of the timed steps of a process."""

FINAL = 2.0
"""Timed steps of a process of the final, as a multiple of those of a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = {"autotune_threshold", *named(FLAGS, RunPart.WARM_UP)}

_RACE, _FINAL = "race", "final"  # folders


class TuneFolder(WeightsFolder):
    """The directory, held by one search at a time.

    ``race/`` has a record per process of the races. ``final/`` is a folder of `cnnbench ab`, and so
    is ``final-2/`` where a continued search came to another leader.
    """

    command = "tune"
    noun = "search"
    inside = (LOGS,)
    kept = (f"{LOGS}/*", f"{_RACE}/*")

    def pairs(self, number: int) -> PairsFolder:
        """The folder of the proof of a leader (numbered from 1), with earlier pairs."""
        name = _FINAL if number == 1 else f"{_FINAL}-{number}"
        return PairsFolder(self.folder / name, resume=True, within=self)

    def events(self, event: str) -> Iterator[dict[str, Any]]:
        """Earlier events of one kind, oldest first, each with its session's `minutes`."""
        minutes = math.inf
        for one in self.earlier:
            if one.get("event") == self.command:
                minutes = float(one["minutes"])
            elif one.get("event") == event:
                yield {**one, "minutes": minutes}

    @property
    def pairs_seconds(self) -> float:
        """Wall time of the processes of all pairs so far."""
        journals = map(Journal, self.folder.glob(f"{_FINAL}*/{JOURNAL}"))
        return sum(float(one["seconds"]) for each in journals for one in each.read(PROCESS))


class Lengths:
    """Flags for the length of processes, from the record of a process with the given flags.

    Attributes:
      steps: timed steps of a race with the given flags; None where these set them.
      warmup: steps before them, or None.
      has_peak: whether the given flags set the peak FLOP/s; otherwise it is not measured.
      step_seconds, batch: duration and images of a step with the given flags.
    """

    def __init__(self, fixed: Collection[str], record: RunRecord) -> None:
        if not record.step_seconds or record.batch is None:
            raise BenchmarkError("the flags as they are given lead to no timed step")
        self.step_seconds = median(record.step_seconds)
        steps = math.ceil(RACE_SECONDS / self.step_seconds)
        self.steps = None if LENGTHS & set(fixed) else steps
        warmup = min(max(_FEWEST_WARMUP, steps), _MOST_WARMUP)
        self.warmup = None if _WARMUP & set(fixed) else warmup
        self.has_peak = "peak_flops" in fixed
        self.batch = record.batch.global_

    def timed(self, factor: float = 1.0, batch: int | None = None) -> int:
        """Timed steps of a process, as a multiple of those of a race, for another batch.

        0 where the given flags set them.
        """
        if self.steps is None:
            return 0
        wanted = math.ceil(factor * self.steps * self.batch / (batch or self.batch))
        return min(max(FEWEST_STEPS, wanted), _MOST_STEPS)

    def flags(self, factor: float = 1.0, batch: int | None = None) -> dict[str, int]:
        """The flags of a process by name; see `timed`."""
        steps = self.timed(factor, batch)
        found = {"num_batches": steps} if steps else {}
        if self.warmup is not None:
            found["num_warmup_batches"] = self.warmup
        if not self.has_peak:
            found["peak_flops"] = 0
        return found

    @property
    def longer(self) -> float:
        """Seconds that the steps of a process of the final take more than those of a race."""
        return (self.timed(FINAL) - self.timed()) * self.step_seconds


@dataclass(frozen=True, kw_only=True)
class TuneQuestion:
    """Definition of a search from the given flags, `first`.

    Attributes:
      policy: policy of the proof; its threshold is also that for adopting a candidate.
      seconds: seconds for the whole search.
      timeout: seconds for each process.
      memory: memory for processes that are alive at once; None if unknown.
      lanes: processes that are alive at once and step in turn; 1: one after the other.
    """

    space: Space
    first: Candidate
    policy: Policy
    seconds: float
    command: Sequence[str]
    timeout: float
    memory: Memory | None = None
    seed: int = 0
    lanes: int = 1

    def side(self, flags: Mapping[str, object], resolved: Resolved) -> Side:
        """The `Side` with these flags."""
        return Side(layout=self.space.layout, resolved=resolved).including(flags)

    @property
    def turn_seconds(self) -> float:
        """Length of a turn; 0 without turns."""
        return TURN_SECONDS if self.lanes > 1 else 0.0


class RaceBench:
    """Measures candidates, and determines how many processes fit into the remaining time.

    `lengths` of the processes are known once `begin` has found them.
    """

    lengths: Lengths

    def __init__(self, folder: TuneFolder, campaign: Campaign, question: TuneQuestion) -> None:
        self.folder = folder
        self.campaign = campaign
        self.question = question
        self._proof = True
        self._spent: list[float] = []

    def begin(self) -> RunPolicy[None]:
        """Runs the given flags to measure the length of a step; BenchmarkError if they fail."""
        first, fixed = self.question.first, self.question.space.fixed
        told = {} if LENGTHS & set(fixed) else {"num_batches": _FIRST_STEPS}
        (ended,) = yield from self._run("first process", {f"first-{first.key}": first}, told, [])
        if ended.status != "ok":
            raise BenchmarkError(f"the flags as they are given fail: {ended.message}")
        self.lengths = Lengths(fixed, ended.record)
        steps = self.lengths.timed()
        if steps:
            self.campaign.reporter.notice(
                f"{steps} timed steps in each process, about "
                f"{duration(steps * self.lengths.step_seconds)}; --num_batches sets another number"
            )

    def length_flags(self, one: Candidate, factor: float = 1.0) -> dict[str, int]:
        """The flags, by name, for the length of a process of a candidate; see `Lengths.flags`."""
        return self.lengths.flags(factor, one.resolved.global_batch)

    @property
    def process_seconds(self) -> float:
        """Mean duration of a process of the races so far."""
        return fmean(self._known_seconds)

    @property
    def final_seconds(self) -> float:
        """Estimated duration of a process of the final, from the latest ones of the races."""
        return fmean(self._known_seconds[-_LATEST:]) + self.lengths.longer

    @property
    def _known_seconds(self) -> list[float]:
        """Durations so far, without that of the first process, which is shorter and runs alone."""
        return self._spent[1:] or self._spent or [0.0]

    @property
    def races_seconds(self) -> float:
        """Wall time of the processes of the races so far."""
        return sum(self._spent)

    @property
    def left(self) -> float:
        """Seconds of the whole search; negative when they are used up."""
        return self.question.seconds - self.races_seconds - self.folder.pairs_seconds

    @property
    def reserve(self) -> float:
        """Seconds reserved for the final and for weights; 0 if too few for the fewest pairs."""
        total = self.question.seconds
        fewest, most = map(self._reserve_for, (FEWEST_PAIRS, MOST_PAIRS))
        wanted = max(fewest, min(_FINAL_SHARE * total, most)) if self._proof else fewest
        if len(self._spent) > 1 and fewest > _MOST_FINAL_SHARE * total:
            return 0.0
        return min(wanted, _MOST_FINAL_SHARE * total)

    def enough_minutes(self, processes: int, pairs: int) -> int | None:
        """Estimated minutes for the whole search with more processes and pairs than so far.

        None where that is more than can be asked for.
        """
        more, final = processes * self.process_seconds, self._reserve_for(pairs)
        enough = max(
            self.question.seconds - self.left + more + final,
            (self.races_seconds + more) / (1 - _FINAL_SHARE),
            final / _MOST_FINAL_SHARE,
        )
        minutes = max(math.ceil(enough / 60), math.floor(self.question.seconds / 60) + 1)
        return minutes if minutes <= MOST_MINUTES else None

    def _reserve_for(self, pairs: int) -> float:
        # With the two processes whose weights are compared.
        return 2 * (pairs + 1) * self.final_seconds

    def affordable(self, proof: bool) -> int:
        """Number of processes that fit into the remaining time.

        `proof`: the leader will have to be proven, because it is not the given flags. Where these
        lead, the time for more than the fewest pairs goes to the races.
        """
        self._proof = proof
        return self._fitting

    def measure(
        self, group: str, number: int, candidates: Sequence[Candidate], kept: int
    ) -> RunPolicy[Round]:
        """Runs a round, numbered from 1, while time remains besides that of `kept` processes."""
        waiting = self._order(group, number, candidates)
        found = Round()
        taken: dict[str, RunRecord] = {}
        blocks: dict[int, list[str]] = {}
        lanes = self._lanes(waiting)
        while waiting:
            parts = math.ceil(len(waiting) / lanes)  # chunks of nearly equal size
            size = min(math.ceil(len(waiting) / parts), self._fitting - kept)
            if size < 1:
                self.campaign.reporter.notice(f"{group}, round {number}: the time is up")
                break
            chunk, waiting = waiting[:size], waiting[size:]
            names = {f"{group}-{one.key}-r{number}": one for one in chunk}
            keys = [(group, number)] * min(len(waiting), self._fitting - kept)
            ended_ones = yield from self._run(f"{group} {number}", names, None, keys)
            # A session that was killed has not noted the group of the last processes.
            last = max(ended.group for ended in ended_ones) or -len(blocks)
            for one, ended in zip(chunk, ended_ones, strict=True):
                # Run one after the other, all candidates of a round are one block.
                block = (ended.group or last) if self.question.lanes > 1 else 0
                blocks.setdefault(block, []).append(one.key)
                if ended.status == "ok" and throughput(ended.record):
                    taken[one.key] = ended.record
                else:
                    found.failed[one.key] = ended.message or "it has timed no step"
        found.blocks.extend(blocks.values())
        found.late.extend(one.key for one in waiting)
        # Judged together, so that what disturbed few candidates of the round counts for none.
        speeds = throughputs([*taken.values()])
        found.speeds.update((key, speed) for key, speed in zip(taken, speeds, strict=True) if speed)
        return found

    def _order(self, group: str, number: int, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The best of the groups before, from which gains are measured, then the others at random.

        In the first round, which may end early, those that change few flags come first.
        """
        first, *others = candidates
        random.Random(f"{self.question.seed} {group} {number}").shuffle(others)
        if number == 1:
            others.sort(key=lambda one: len(one.settings))
        return [first, *others]

    def closed(self, group: str, number: int, left: Sequence[Leaver], best: str) -> None:
        """Reports the end of a round, those that leave, and the name of the best."""
        if left:
            hows = Counter(one.how for one in left)
            text = ", ".join(f"{many} {how}" for how, many in hows.items())
            self.campaign.reporter.notice(
                f"{group}, round {number}: {text} and out; best so far: {best}"
            )

    @property
    def _fitting(self) -> int:
        # The reserve for the final includes its earlier pairs.
        left = self.question.seconds - self.races_seconds - self.reserve
        return max(0, int(left / max(self.process_seconds, 1e-3)))

    def _lanes(self, candidates: Collection[Candidate]) -> int:
        """Processes that are alive at once, as memory allows."""
        lanes, memory = self.question.lanes, self.question.memory
        if memory is not None and candidates:
            needed = max(one.resolved.needed_bytes for one in candidates)
            lanes = max(1, min(lanes, int(_MEMORY * memory.available / max(1, needed))))
        return lanes

    def _run(
        self,
        what: str,
        chunk: Mapping[str, Candidate],
        flags: Mapping[str, int] | None,
        then: Sequence[Hashable],
    ) -> RunPolicy[list[Ended]]:
        """Runs processes by name, in turn where there are several; a killed one once more.

        Without `flags`, processes have the length of a race.
        """
        requests = []
        for name, one in chunk.items():
            length = self.length_flags(one) if flags is None else flags
            requests.append(
                request(
                    self.folder,
                    name,
                    self.question.side({**one.flags, **length}, one.resolved),
                    label=f"{what}: {one.name}",
                    key=then[0] if then else what,
                    target=self.folder.folder / _RACE / f"{name}.json",
                    answers=_ANSWERS,
                    facts={"candidate": one.name},
                )
            )
        batch = RequestBatch(
            folder=self.folder,
            requests=requests,
            then=then,
            timeout=min(self.question.timeout, max(self.left, 10.0)),
            turn_seconds=self.question.turn_seconds,
            label=f"{what}: {len(requests)} in turn",
        )
        ended = [*(yield batch)]
        # A session that was killed has not noted the duration of the last processes.
        self._spent += [one.seconds or self.process_seconds for one in ended]
        for at, end in enumerate(ended):
            if end.lost and not end.timed_out:  # it was ended from outside
                (ended[at],) = yield replace(batch, requests=[requests[at]])
                self._spent.append(ended[at].seconds)
        return ended
