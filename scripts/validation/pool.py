"""Pool of real processes: rounds of plain and slowed processes in random order, in a journal.

Events in the journal are the plan (flags, seed), the calibration (how much additional work causes
each slowdown), and one event per process. After an interrupt or a kill, one process is lost, and
the next start continues with the next round.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import measure

from cnnbench.base.slow_steps import largest_disturbance
from cnnbench.base.stats import median
from cnnbench.campaigns.ab.pairing import TURN_SECONDS
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes import Journal, ProcessResult
from cnnbench.judge.compare.disturbance import seconds_by_slice
from cnnbench.judge.metrics.judged import CPU_TIME
from cnnbench.machine.counters import read_counters
from cnnbench.machine.cpu import Host
from cnnbench.records.metrics.figures import throughput
from validation import planted_plugin

BASES = ("base 1", "base 2")


def slowed_by(shares: Iterable[float]) -> dict[str, float]:
    """Returns the share of its speed that each slowed subject loses, by name of the subject."""
    return {f"slower by {100 * share:g} %": share for share in shares}


SLOWED = slowed_by((0.05, 0.10))
"""Slowed subjects of validate_gate without --slowed."""

TIMEOUT = 300.0
# The calibration begins with this number of rows of the additional product.
_FIRST_ROWS = 400
_CALIBRATIONS = 4
# The calibration uses at least this share, because smaller slowdowns would vanish in noise.
_CALIBRATED = 0.10
_PATIENCE = 3


@dataclass(frozen=True)
class Process:
    """One process of the pool: its position and, after its end, its measurements.

    Attributes:
      round: number of the round, counted from 1; 0 for processes of the calibration.
      position: position in the round, counted from 1.
      subject: one of `BASES`, or a slowed subject of the pool.
      rows: rows of the additional matrix product.
      images_per_sec: images/sec over all timed steps; None if the process failed, see `speed`.
      disturbance: share of the timed steps' time that the largest disturbance took.
      step_seconds: duration of the median step in seconds.
      seconds: wall time of the process in seconds.
      load: load average of the machine before the process started.
      others: CPUs that other programs kept busy in the timed steps; None if unknown.
      problem: why the process failed, or "".
      cpu_seconds: mean CPU time per step in seconds; 0 if unknown.
      turn_cpu_seconds: mean CPU time per step in each time slice; empty if processes are not
        interleaved.
    """

    round: int
    position: int
    subject: str
    rows: int
    images_per_sec: float | None = None
    disturbance: float = 0.0
    step_seconds: float | None = None
    seconds: float = 0.0
    load: float = 0.0
    others: float | None = None
    problem: str = ""
    cpu_seconds: float = 0.0
    turn_cpu_seconds: Sequence[float] = ()

    @property
    def speed(self) -> float:
        """Images per second of a process that has not failed."""
        assert self.images_per_sec is not None
        return self.images_per_sec


class PoolError(ValueError):
    """The pool cannot be continued. The message is one line."""


class Pool:
    """A pool of processes, which is stored in a file.

    Attributes:
      plan: properties shared by all processes.
      slowed: the slowed subjects, see `slowed_by`.

    Args:
      folder: folder of the pool, which is created if it is missing.
      plan: properties of processes, which must equal the plan of an existing pool.

    Raises:
      PoolError: the file contains a different plan, or is not the file of a pool.
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / "pool.jsonl")
        self.plan = plan
        self.slowed = slowed_by(plan["slowed"])
        plans = [event["plan"] for event in self.journal.read("plan")]
        if not plans:
            self.journal.add("plan", plan=plan)
        elif plans != [plan]:
            message = "measured with other flags or on another machine; choose another folder"
            raise PoolError(f"{self.journal.path}: {message}")

    @property
    def is_interleaved(self) -> bool:
        """Whether the processes of a round are interleaved in short time slices."""
        return bool(self.plan["pairing"] == "turns")

    @property
    def subjects(self) -> tuple[str, ...]:
        """Names of the programs in each round."""
        return (*BASES, *self.slowed)

    @property
    def rows(self) -> dict[str, int] | None:
        """Rows of each subject's additional matrix product; None before the calibration."""
        found = [event["rows"] for event in self.journal.read("calibration")]
        return found[-1] if found else None

    def calibrated(self, rows: dict[str, int], step_seconds: float) -> None:
        """Stores the result of the calibration."""
        self.journal.add("calibration", rows=rows, step_seconds=step_seconds)

    def add(self, process: Process) -> None:
        """Stores a process in the pool."""
        self.journal.add("process", process=dataclasses.asdict(process))

    def processes(self) -> list[Process]:
        """Returns all processes in the order in which they ran."""
        return [Process(**event["process"]) for event in self.journal.read("process")]

    def rounds(self) -> list[dict[str, Process]]:
        """Returns the valid processes of each complete round, by subject, in order of rounds."""
        found: dict[int, dict[str, Process]] = {}
        for process in self.processes():
            if process.round and process.images_per_sec is not None:
                found.setdefault(process.round, {})[process.subject] = process
        return [one for one in found.values() if set(one) == set(self.subjects)]

    def next_round(self) -> int:
        """Returns a new round number, because a round must not continue in another session."""
        return max((process.round for process in self.processes()), default=0) + 1

    def run(self, places: Sequence[Process]) -> list[Process]:
        """Runs the processes in `places`; returns them with their measurements."""
        plugin = f"--plugin={Path(planted_plugin.__file__).resolve()}"
        load = read_counters(Host()).load_average or 0.0
        flags = (plugin, *self.plan["flags"])
        sides = [
            AbSide(flags=flags, variables={planted_plugin.ROWS: str(place.rows)})
            for place in places
        ]
        ended = measure(sides, TIMEOUT, TURN_SECONDS if self.is_interleaved else 0.0)
        return [_ended(*one, load) for one in zip(places, ended, strict=True)]


def order(number: int, seed: int, subjects: Sequence[str]) -> list[str]:
    """Returns the subjects of a round in a random order that depends only on the arguments."""
    mixed = list(subjects)
    random.Random(f"{seed} {number}").shuffle(mixed)
    return mixed


def _ended(place: Process, found: ProcessResult, load: float) -> Process:
    record, conditions = found.record, found.record.conditions
    measured: dict[str, Any] = {}
    if not found.message and record.step_seconds:
        measured = {
            "images_per_sec": throughput(record),
            "disturbance": largest_disturbance(record.step_seconds)[0],
            "step_seconds": median(record.step_seconds),
            "cpu_seconds": CPU_TIME.value(record) or 0.0,
            "turn_cpu_seconds": seconds_by_slice(record),
        }
    return dataclasses.replace(
        place,
        seconds=found.seconds,
        load=load,
        others=None if conditions is None else conditions.during.get("other_cpus"),
        problem=found.message,
        **measured,
    )


def calibrate(pool: Pool) -> None:
    """Finds the number of rows with which each slowed subject loses its share of speed.

    Raises:
      PoolError: processes fail, or the extra work cannot be seen.
    """
    rows = _FIRST_ROWS
    # The calibration is repeated, because the time per row depends on the number of rows.
    for _ in range(2):
        plain, slowed = _steps(pool, rows)
        if slowed <= plain:
            raise PoolError(
                f"{rows} rows cost no time ({slowed:.4f} s a step, {plain:.4f} s without): "
                "the machine is too noisy to calibrate"
            )
        per_row = (slowed - plain) / rows
        rows = _rows(max(_CALIBRATED, *pool.slowed.values()), plain, per_row)
    rows_by_name = {name: _rows(share, plain, per_row) for name, share in pool.slowed.items()}
    pool.calibrated(rows_by_name, plain)


def fill(pool: Pool, seconds: float) -> None:
    """Runs rounds of a calibrated pool until the time is too short for another round.

    Raises:
      PoolError: processes fail again and again.
    """
    begun = time.monotonic()
    rows = pool.rows or {}
    number, failures, longest = pool.next_round(), 0, 0.0
    while number == pool.next_round() and time.monotonic() - begun + longest < seconds:
        round_begun = time.monotonic()
        places = [
            Process(number, position, subject, rows.get(subject, 0))
            for position, subject in enumerate(
                order(number, pool.plan["seed"], pool.subjects), start=1
            )
        ]
        groups = [places] if pool.is_interleaved else [[place] for place in places]
        for process in (process for group in groups for process in pool.run(group)):
            pool.add(process)
            failures = failures + 1 if process.problem else 0
            if failures >= _PATIENCE:
                raise PoolError(f"{failures} processes failed, the last one: {process.problem}")
            _report(process, max(0.0, seconds - (time.monotonic() - begun)))
        longest = max(longest, time.monotonic() - round_begun)
        number += 1


def _rows(share: float, plain: float, per_row: float) -> int:
    """Returns how many rows lower the speed by `share`, so that steps take 1 / (1 - share) times
    as long.
    """
    return max(1, round((1 / (1 - share) - 1) * plain / per_row))


def _steps(pool: Pool, rows: int) -> tuple[float, float]:
    """Returns the median step times of plain processes, and of processes with additional rows.

    A process of each kind runs in each round. The ratio is the median over rounds, because a
    disturbance of a round affects both processes.
    """
    plain, quotients = [], []
    for position in range(1, _CALIBRATIONS + 1):
        steps = []
        for process in pool.run([Process(0, position, f"calibration {n}", n) for n in (0, rows)]):
            pool.add(process)
            _report(process, None)
            if process.step_seconds is None:
                raise PoolError(f"a process of the calibration failed: {process.problem}")
            steps.append(process.step_seconds)
        plain.append(steps[0])
        quotients.append(steps[1] / steps[0])
    return median(plain), median(plain) * median(quotients)


def _report(process: Process, left: float | None) -> None:
    speed = process.problem or f"{process.images_per_sec:.1f} images/sec"
    where = f"round {process.round}, {process.subject}" if process.round else process.subject
    eta = "" if left is None else f", {left / 60:.0f} min left"
    print(f"{where}: {speed} ({process.seconds:.1f} s{eta})", file=sys.stderr, flush=True)
