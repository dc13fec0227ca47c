"""A pool of real processes on disk: rounds of like and of slowed ones, in random order.

One JSON object per line: first the plan (flags, seed), then the calibration, then a line per
process. Appending is all that is ever done, so that an interrupt or a kill costs one process,
and the next start goes on with the next round.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASES = ("base 1", "base 2")
SLOWED = {"slower by 5 %": 0.05, "slower by 10 %": 0.10}
SUBJECTS = (*BASES, *SLOWED)


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
      round: counted from 1; 0 for those of the calibration.
      position: in the round, counted from 1.
      subject: one of `SUBJECTS`.
      rows: of the extra matrix product.
      images_per_sec: at the median step; None if it failed.
      step_seconds: the median step.
      seconds: wall time of the process.
      load: of the machine before it started.
      others: CPUs that others kept busy meanwhile, None if unknown.
      problem: why it failed, or "".
    """

    round: int
    position: int
    subject: str
    rows: int
    images_per_sec: float | None
    step_seconds: float | None
    seconds: float
    load: float
    others: float | None
    problem: str = ""


class PoolError(ValueError):
    """A pool that cannot be gone on with; one line."""


class Pool:
    """The file of a pool.

    Args:
      folder: made if it is not there.
      plan: what every process has in common; must be that of what is there.

    Raises:
      PoolError: the file is of another plan, or none of a pool.
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "pool.jsonl"
        lines = list(self._lines())
        if not lines:
            self._append("plan", plan)
        elif lines[0] != {"kind": "plan", **plan}:
            raise PoolError(f"{self.path}: of other flags or another machine; name another folder")

    @property
    def rows(self) -> dict[str, int] | None:
        """Rows of the extra product by subject; None before the calibration."""
        found = [line["rows"] for line in self._lines() if line["kind"] == "calibration"]
        return found[-1] if found else None

    def calibrated(self, rows: dict[str, int], step_seconds: float) -> None:
        """Notes the calibration."""
        self._append("calibration", {"rows": rows, "step_seconds": step_seconds})

    def add(self, process: Process) -> None:
        """Notes a process."""
        self._append("process", dataclasses.asdict(process))

    def processes(self) -> list[Process]:
        """All, in the order of time."""
        found = []
        for line in self._lines():
            if line.pop("kind") == "process":
                found.append(Process(**line))
        return found

    def rounds(self) -> list[dict[str, Process]]:
        """The complete rounds, in the order of time: sound processes by subject."""
        found: dict[int, dict[str, Process]] = {}
        for process in self.processes():
            if process.round and process.images_per_sec is not None:
                found.setdefault(process.round, {})[process.subject] = process
        return [one for one in found.values() if set(one) == set(SUBJECTS)]

    def next_round(self) -> int:
        """The first number that no process has, so that no round is of two sittings."""
        return max((process.round for process in self.processes()), default=0) + 1

    def _append(self, kind: str, content: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="ascii") as file:
            file.write(json.dumps({"kind": kind, **content}) + "\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The objects; what a kill left of a line is passed over."""
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="ascii")
        if text and not text.endswith("\n"):
            with open(self.path, "a", encoding="ascii") as file:
                file.write("\n")
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict) and "kind" in found:
                yield found


def order(number: int, seed: int, subjects: Sequence[str] = SUBJECTS) -> list[str]:
    """The subjects of a round in the order they run in; the same whenever it is asked for."""
    mixed = list(subjects)
    random.Random(f"{seed} {number}").shuffle(mixed)
    return mixed
