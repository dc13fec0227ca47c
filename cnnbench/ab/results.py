"""The results directory of an experiment.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/``
those of burn-in and what an interrupt left without its partner, ``logs/`` what processes
printed, ``journal.jsonl`` what was done when. ``cnnbench compare DIR/a DIR/b --paired``
reads it. Only records that count are named ``*.json``: who reads all of the directory, as
``--baseline_aa=DIR`` does, must not take the others for results.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.files import write_whole

SIDES = ("a", "b")
JOURNAL = "journal.jsonl"
_DISCARDED, _LOGS = "discarded", "logs"


class Results:
    """A results directory.

    Args:
      folder: is made; must be empty if it is there, since records of two experiments would
        be taken for those of one.

    Raises:
      FlagError: it cannot be used.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise FlagError("results", folder, "is not empty; name another folder")
            for name in (*SIDES, _DISCARDED, _LOGS):
                (self.folder / name).mkdir()
        except OSError as error:
            raise FlagError("results", folder, f"cannot be used: {error.strerror}") from None

    def side(self, name: str) -> Path:
        """The folder of the records of a side."""
        return self.folder / name

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self.folder / _LOGS / f"{name}.log"

    def pending(self, name: str) -> Path:
        """Where a process writes its record, and where it stays if it has no partner."""
        return self.folder / _DISCARDED / f"{name}.{_DISCARDED}"

    def keep(self, name: str, document: dict[str, Any]) -> None:
        """Writes the record of a process, with what the experiment adds to it.

        Raises:
          BenchmarkError: it cannot be written.
        """
        try:
            write_whole(self.pending(name), (json.dumps(document) + "\n").encode("ascii"))
        except OSError as error:
            raise self._broken(error) from error

    def accept(self, name: str, side: str) -> None:
        """Moves a record to those of its side.

        Raises:
          BenchmarkError: it cannot be moved.
        """
        source = self.pending(name)
        try:
            source.replace(self.side(side) / f"{name}.json")
        except OSError as error:
            raise self._broken(error) from error

    def note(self, event: str, **facts: Any) -> None:
        """Adds a line to the journal.

        Raises:
          BenchmarkError: it cannot be written.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "time": now, **facts}, default=str)
        try:
            with open(self.folder / JOURNAL, "a", encoding="ascii") as file:
                file.write(line + "\n")
        except OSError as error:
            raise self._broken(error) from error

    def _broken(self, error: OSError) -> BenchmarkError:
        return BenchmarkError(f"{self.folder}: cannot be written: {error.strerror}")
