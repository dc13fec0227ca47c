"""The results folder of a search: a journal, records of all processes, and the pairs of the proof.

``race/`` has a record per process of the races. ``final/`` is a folder of `cnnbench ab`, and so is
``final-2/`` where a continued search came to another leader.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cnnbench.campaigns.ab.results import PairsFolder
from cnnbench.campaigns.processes.results_dir import JOURNAL, LOGS, Journal, ResumableFolder

RACE = "race"
_FINAL, _CHECKPOINTS = "final", "checkpoints"
_SESSION = "session"


class TuneFolder(ResumableFolder):
    """The directory, held by one search at a time; removes the `checkpoints` in the end."""

    command = "tune"
    noun = "search"

    def __init__(self, folder: str, question: Mapping[str, Any], *, resume: bool) -> None:
        super().__init__(folder, question, resume=resume, folders=(RACE, LOGS))
        self.checkpoints = self.folder / _CHECKPOINTS
        self.journal.add("tune", question=self.question)

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

    def begin(self, minutes: float) -> None:
        """Notes the beginning of a session and the minutes for all sessions so far."""
        self.journal.add(_SESSION, minutes=minutes)

    def events(self, event: str) -> Iterator[dict[str, Any]]:
        """Earlier events of one kind, oldest first, each with its session's `minutes`."""
        minutes = math.inf
        for one in self.earlier:
            if one.get("event") == _SESSION:
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


def seed_of(folder: str) -> int | None:
    """The seed of the search in a folder; None if there is none."""
    for event in Journal(Path(folder) / JOURNAL).read():
        seed = (event.get("question") or {}).get("seed")
        if isinstance(seed, int):
            return seed
    return None
