"""Results directory of sweeps: one record per run, a log beside each, a journal.

The records alone determine what is done: their names hold key and repeat. A child writes to a file
below ``.sweep``; its record gets its final name only after the child has ended and its record has
been checked, so that the output of an orphaned process is never read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.records.files import remove_abandoned

JOURNAL = "sweep.jsonl"
_PRIVATE = ".sweep"
_NAME_LENGTH = 120
_NAME = re.compile(r"(?P<label>.+)\.(?P<key>[0-9a-f]{12})\.r(?P<repeat>\d+)\.(?P<stamp>[\dTZ]{22})")


class Store(ResultsFolder):
    """A results directory, locked by one sweep at a time and made if missing."""

    command = "sweep"

    def __init__(self, folder: str) -> None:
        super().__init__(folder, journal=JOURNAL, folders=(_PRIVATE,), used=True)
        self._private = self.folder / _PRIVATE
        self.stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        # What earlier sweeps did not finish.
        for path in self._private.glob("*.part"):
            with contextlib.suppress(OSError):
                path.unlink()
        for place in (self.folder, self._private):
            remove_abandoned(place)

    def find(self, key: str, repeat: int) -> list[Path]:
        """Records of a run, oldest first, valid or not; repeats are counted from 1."""
        found = []
        for path in self.folder.glob(f"*.{key}.r{repeat}.*.json"):
            match = _NAME.fullmatch(path.stem)
            if match is not None:
                found.append((match["stamp"], path))
        return [path for _, path in sorted(found)]

    def path(self, label: str, key: str, repeat: int) -> Path:
        """Path of a new record of a run; the label is for people who look at the directory."""
        label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", label)[:_NAME_LENGTH].strip("-.") or "run"
        return self.folder / f"{label}.{key}.r{repeat}.{self.stamp}.json"

    def attempt(self) -> Path:
        """A new path for a child to write its record to."""
        return self._private / f"{os.getpid()}-{secrets.token_hex(6)}.part"

    def last_sweep(self, suite: str) -> dict[str, Any] | None:
        """The event that started the newest sweep of a suite."""
        found = [one for one in self.journal.read("sweep") if one.get("suite") == suite]
        return found[-1] if found else None
