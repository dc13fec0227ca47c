"""Measures candidates in processes, as long as the time lasts.

A process of a race is short: as many timed steps as take some seconds with the given flags, after a
first process that measures the length of a step. A round runs its candidates in random order. Where
processes can step in turn (docs/ab.md), up to `lanes` are alive at once, so that disturbances of
the machine affect all of them.

A resumed search gets its earlier answers. With more time than before it continues as if it had had
that time from its beginning: more candidates are tried, fewer leave for lack of time, and recorded
processes are not run again.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import duration
from cnnbench.campaigns.ab.flags import LENGTHS, TURN_SECONDS
from cnnbench.campaigns.ab.results import PairsFolder
from cnnbench.campaigns.ab.side import Side, measuring
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.campaigns.processes.outcome import read
from cnnbench.campaigns.processes.question import Question
from cnnbench.campaigns.processes.results_dir import JOURNAL, LOGS, Journal, ResultsFolder
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
_MOST_LOST = 2
_MEMORY = 0.8  # share of the available memory for simultaneous processes

RACE_SECONDS = 1.0
"""Seconds of timed steps in a race; twice as many hardly make processes differ less."""

FEWEST_STEPS = 10
"""Minimum of the timed steps of a process."""

FINAL = 2.0
"""Timed steps of a process of the final, as a multiple of those of a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = {"autotune_threshold", *named(FLAGS, RunPart.WARM_UP)}

RACE = "race"
_FINAL = "final"


class TuneFolder(ResultsFolder):
    """The directory, held by one search at a time; removes the `checkpoints` in the end.

    ``race/`` has a record per process of the races. ``final/`` is a folder of `cnnbench ab`, and so
    is ``final-2/`` where a continued search came to another leader.
    """

    command = "tune"
    noun = "search"

    def __init__(self, folder: str, question: Question | None, *, resume: bool) -> None:
        super().__init__(folder, question, resume=resume, folders=(RACE, LOGS))
        self.checkpoints = self.folder / "checkpoints"

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        super().__exit__(*error)

    def record(self, name: str) -> Path:
        """Path of the record of a process of a race."""
        return self.folder / RACE / f"{name}.json"

    def pairs(self, number: int) -> PairsFolder:
        """The folder of the proof of a leader (numbered from 1), with earlier pairs."""
        name = _FINAL if number == 1 else f"{_FINAL}-{number}"
        return PairsFolder(self.folder / name, resume=True)

    def events(self, event: str) -> Iterator[dict[str, Any]]:
        """Earlier events of one kind, oldest first, each with its session's `minutes`."""
        minutes = math.inf
        for one in self.earlier:
            if one.get("event") == self.command:
                minutes = float(one["minutes"])
            elif one.get("event") == event:
                yield {**one, "minutes": minutes}

    @property
    def started_at(self) -> str:
        """When the first session of the search began; ISO 8601, UTC."""
        return str(next(self.journal.read("tune"))["time"])

    def spent(self) -> tuple[float, float]:
        """Wall time of the processes of races, and of pairs, in earlier sessions."""
        races = [float(one["seconds"]) for one in self.events("process")]
        journals = self.folder.glob(f"{_FINAL}*/{JOURNAL}")
        pairs = [
            float(one["seconds"]) for path in journals for one in Journal(path).read("process")
        ]
        return sum(races), sum(pairs)


class Budget:
    """The time of a search; `races` and `pairs` are seconds spent on them in earlier sessions."""

    def __init__(
        self,
        seconds: float,
        races: float = 0.0,
        pairs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begun = clock() - races - pairs
        self.pairs = pairs

    @property
    def minutes(self) -> float:
        """The whole budget, in minutes."""
        return self.seconds / 60

    @property
    def left(self) -> float:
        """Seconds; negative when it is used up."""
        return self.seconds - (self._clock() - self._begun)


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
    """A `race.CandidateBench` of processes; earlier ones are taken from the folder.

    `lengths` of the processes are known once `begin` has found them.
    """

    lengths: Lengths

    def __init__(
        self, folder: TuneFolder, campaign: Campaign, budget: Budget, question: TuneQuestion
    ) -> None:
        self.folder = folder
        self.campaign = campaign
        self.budget = budget
        self.question = question
        self._told = {(one.get("group"), one.get("round")): one for one in folder.events("time")}
        self._done = {(one["group"], one["round"]): one for one in folder.events("round")}
        self._lost: Counter[str] = Counter()
        self._proof = True
        # The minutes of the search when each process was run, and its seconds.
        self._spent = [(one["minutes"], float(one["seconds"])) for one in folder.events("process")]

    def begin(self) -> None:
        """Runs the given flags to measure the length of a step; BenchmarkError if they fail."""
        first, fixed = self.question.first, self.question.space.fixed
        told = {} if LENGTHS & set(fixed) else {"num_batches": _FIRST_STEPS}
        name = f"first-{first.key}"
        record = read(self.folder.record(name))
        if not isinstance(record, RunRecord) or record.status != "ok":
            self.campaign.expect([None])
            (ended,) = self._run("first process", {name: first}, told)
            if ended is None or ended.status != "ok":
                problem = "the process was killed" if ended is None else ended.message
                raise BenchmarkError(f"the flags as they are given fail: {problem}")
            record = ended.record
        self.lengths = Lengths(fixed, record)
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
        known = [seconds for _, seconds in self._spent]
        return known[1:] or known or [0.0]

    @property
    def reserve(self) -> float:
        """Seconds reserved for the final and for weights; 0 if too few for the fewest pairs."""
        return self._reserve_of(self.budget.seconds)

    def _reserve_of(self, total: float) -> float:
        fewest, most = map(self._reserve_for, (FEWEST_PAIRS, MOST_PAIRS))
        wanted = max(fewest, min(_FINAL_SHARE * total, most)) if self._proof else fewest
        if len(self._spent) > 1 and fewest > _MOST_FINAL_SHARE * total:
            return 0.0
        return min(wanted, _MOST_FINAL_SHARE * total)

    def enough_minutes(self, processes: int, pairs: int) -> int:
        """Estimated minutes for the whole search with more processes and pairs than so far."""
        more, final = processes * self.process_seconds, self._reserve_for(pairs)
        races = sum(seconds for _, seconds in self._spent) + more
        enough = max(
            self.budget.seconds - self.budget.left + more + final,
            races / (1 - _FINAL_SHARE),
            final / _MOST_FINAL_SHARE,
        )
        return max(math.ceil(enough / 60), math.floor(self.budget.minutes) + 1)

    def _reserve_for(self, pairs: int) -> float:
        # With the two processes whose weights are compared.
        return 2 * (pairs + 1) * self.final_seconds

    def affordable(self, group: str, number: int, proof: bool) -> int:
        """See `race.CandidateBench`; a resumed search gets its earlier answers again.

        Where the given flags lead, the time for more than the fewest pairs goes to the races. With
        more time than in the earlier session, it allows as many more processes as fit into the
        added time that is not spent yet.
        """
        self._proof = proof
        told = self._told.get((group, number))
        if told is None:
            processes = self._fitting
        elif told["minutes"] >= self.budget.minutes:
            return int(told["processes"])
        else:
            then = 60 * told["minutes"]
            known, left = int(told["processes"]), self.budget.seconds - then
            left -= self.reserve - self._reserve_of(then)
            left -= sum(seconds for minutes, seconds in self._spent if minutes > told["minutes"])
            processes = max(0, known + self._processes_in(left))
        self.folder.journal.add("time", group=group, round=number, processes=processes)
        return processes

    def measure(self, group: str, number: int, candidates: Sequence[Candidate], kept: int) -> Round:
        """See `race.CandidateBench`; the durations of its processes determine how many fit."""
        waiting = {
            f"{group}-{one.key}-r{number}": one for one in self._order(group, number, candidates)
        }
        before = self._done.get((group, number))
        if before is not None and before["minutes"] >= self.budget.minutes:
            waiting = {name: one for name, one in waiting.items() if one.key in before["keys"]}
        found = Round()
        taken: dict[str, RunRecord] = {}
        there, started = [], set()
        for name, one in list(waiting.items()):
            record = read(self.folder.record(name))
            if isinstance(record, RunRecord):
                del waiting[name]
                self._take(found, taken, one, record)
                started.add(one.key)
                if before is None or one.key not in before["keys"]:
                    there.append(one.key)
        if there:
            found.blocks.append(there)  # earlier results of an interrupted round
        self.campaign.expect([(group, number)] * len(waiting))
        lanes = self._lanes(waiting.values())
        while waiting:
            parts = math.ceil(len(waiting) / lanes)  # chunks of nearly equal size
            size = min(math.ceil(len(waiting) / parts), self._fitting - kept)
            if size < 1:
                self.campaign.drop((group, number))
                self.campaign.reporter.notice(f"{group}, round {number}: the time is up")
                break
            chunk = {name: waiting.pop(name) for name in list(waiting)[:size]}
            ended = self._run(f"{group} {number}", chunk, None)
            for one, end in zip(chunk.values(), ended, strict=True):
                if end is not None:
                    self._take(found, taken, one, end.record)
            found.blocks.append([one.key for one in chunk.values()])
            started.update(one.key for one in chunk.values())
        found.late.extend(one.key for one in candidates if one.key not in started)
        # Judged together, so that what disturbed few candidates of the round counts for none.
        speeds = throughputs([*taken.values()])
        found.speeds.update((key, speed) for key, speed in zip(taken, speeds, strict=True) if speed)
        self._close(group, number, found)
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

    def _close(self, group: str, number: int, found: Round) -> None:
        """Adds the blocks of an earlier session, and writes what is new to the journal."""
        before = self._done.get((group, number))
        if self.question.lanes < 2 and found.blocks:  # run one after the other: one block
            found.blocks[:] = [[key for block in found.blocks for key in block]]
        added = bool(found.blocks)
        if before is not None:
            found.blocks.extend(before["blocks"])
        if added or before is None:
            keys = [*found.speeds, *found.failed]
            self.folder.journal.add(
                "round", group=group, round=number, keys=keys, blocks=found.blocks
            )

    def closed(self, group: str, number: int, left: Sequence[Leaver], best: str) -> None:
        """See `race.CandidateBench`."""
        if left:
            hows = Counter(one.how for one in left)
            text = ", ".join(f"{many} {how}" for how, many in hows.items())
            self.campaign.reporter.notice(
                f"{group}, round {number}: {text} and out; best so far: {best}"
            )

    def _take(
        self, found: Round, taken: dict[str, RunRecord], one: Candidate, record: RunRecord
    ) -> None:
        if record.status == "ok" and throughput(record):
            taken[one.key] = record
        else:
            error = record.error
            found.failed[one.key] = "it has timed no step" if error is None else error.message

    @property
    def _fitting(self) -> int:
        # The reserve for the final includes its earlier pairs.
        return max(0, self._processes_in(self.budget.left + self.budget.pairs - self.reserve))

    def _processes_in(self, seconds: float) -> int:
        return int(seconds / max(self.process_seconds, 1e-3))

    def _lanes(self, candidates: Collection[Candidate]) -> int:
        """Processes that are alive at once, as memory allows."""
        lanes, memory = self.question.lanes, self.question.memory
        if memory is not None and candidates:
            needed = max(one.resolved.needed_bytes for one in candidates)
            lanes = max(1, min(lanes, int(_MEMORY * memory.available / max(1, needed))))
        return lanes

    def _run(
        self, what: str, chunk: Mapping[str, Candidate], flags: Mapping[str, int] | None
    ) -> list[Ended | None]:
        """Runs processes by name, in turn where there are several, and stores their records.

        None for a killed process that will be measured again. Without `flags`, processes have the
        length of a race.
        """
        question = self.question
        commands = []
        for name, one in chunk.items():
            length = self.length_flags(one) if flags is None else flags
            side = question.side({**one.flags, **length}, one.resolved)
            pending = self.folder.record(name).with_suffix(".part")
            commands.append(measuring(side, pending, self.folder.log(name)))
        labels = [f"{what}: {one.name}" for one in chunk.values()]
        self.campaign.begin(labels[0] if len(labels) == 1 else f"{what}: {len(labels)} in turn")
        in_turn = question.turn_seconds if len(commands) > 1 else 0.0
        timeout = min(question.timeout, max(self.budget.left, 10.0))
        ran = self.campaign.run(commands, timeout, in_turn)
        found: list[Ended | None] = []
        for command, label, (name, one), ended in zip(
            commands, labels, chunk.items(), ran, strict=True
        ):
            command.record.unlink(missing_ok=True)
            target = self.folder.record(name)
            lost = bool(ended.lost) and not ended.timed_out  # it was ended from outside
            self._lost[one.key] += lost
            lost = lost and self._lost[one.key] < _MOST_LOST
            found.append(None if lost else ended)
            # Not *.json: a process that was killed is no measurement, and will be repeated.
            self.folder.keep(ended.document, target.with_suffix(".lost") if lost else target)
            self._spent.append((self.budget.minutes, ended.seconds))
            journal = self.folder.journal
            self.campaign.end_measuring(journal, name, label, ended, candidate=one.name)
        return found
