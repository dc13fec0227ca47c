"""The results directory of sweeps: one record per run, a log beside each, a journal.

The records alone determine what is done: their names hold key and repeat. A child writes to
a file below ``.sweep``; its record gets its final name only after the child has ended and its
record has been checked, so that the output of an orphaned process is never read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.processes.results_dir import Journal, hold, unusable, write_durably
from cnnbench.records.codec import to_text

JOURNAL = "sweep.jsonl"
_PRIVATE = ".sweep"
_NAME_LENGTH = 120
_NAME = re.compile(r"(?P<label>.+)\.(?P<key>[0-9a-f]{12})\.r(?P<repeat>\d+)\.(?P<stamp>[\dTZ]{22})")


@dataclass(frozen=True)
class Run:
    """One process of a case.

    Attributes:
      label: suite and name of the case, for people who look at the directory.
      key: of the case.
      repeat: counted from 1.
    """

    label: str
    key: str
    repeat: int


class Store:
    """A results directory, held by one sweep at a time.

    Args:
      folder: made if it is not there.

    Raises:
      FlagError: it cannot be made or written, or another process holds it.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._private = self.folder / _PRIVATE
        try:
            self._private.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(folder, error) from None
        self._lock = hold(folder)
        self.journal = Journal(self.folder / JOURNAL)
        self.stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        self._clean()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        """Lets another sweep have the directory."""
        self._lock.release()

    def find(self, run: Run) -> list[Path]:
        """Records of this run, oldest first; sound or not."""
        found = []
        for path in self.folder.glob(f"*.{run.key}.r{run.repeat}.*.json"):
            match = _NAME.fullmatch(path.stem)
            if match is not None:
                found.append((match["stamp"], path))
        return [path for _, path in sorted(found)]

    def path(self, run: Run) -> Path:
        """Where a new record of this run goes."""
        label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", run.label)[:_NAME_LENGTH].strip("-.") or "run"
        return self.folder / f"{label}.{run.key}.r{run.repeat}.{self.stamp}.json"

    def attempt(self) -> Path:
        """A new path for a child to write its record to."""
        return self._private / f"{os.getpid()}-{secrets.token_hex(6)}.part"

    def commit(self, document: Mapping[str, Any], target: Path) -> None:
        """Makes a record visible, whole or not at all.

        Args:
          document: the record as JSON values.
          target: its file, see `path`.

        Raises:
          BenchmarkError: it cannot be written.
        """
        self._write(target, to_text(document).encode("ascii"))

    def keep_unusable(self, data: bytes, target: Path) -> None:
        """Keeps what a child wrote in place of a record, for debugging.

        Args:
          data: the bytes.
          target: the file of the record; these go beside it.

        Raises:
          BenchmarkError: it cannot be written.
        """
        self._write(target.with_suffix(".unusable"), data)

    def last_sweep(self, suite: str) -> dict[str, Any] | None:
        """The event with which the newest sweep of a suite began."""
        found = None
        for event in self.journal.read():
            if event.get("event") == "sweep" and event.get("suite") == suite:
                found = event
        return found

    def _write(self, target: Path, data: bytes) -> None:
        # By way of our own folder: what a kill leaves half written is removed from there.
        write_durably(target, data, via=self.attempt())

    def _clean(self) -> None:
        """Removes unfinished files of earlier sweeps."""
        for path in (*self._private.glob("*.part"), *self._private.glob(".*.tmp")):
            with contextlib.suppress(OSError):
                path.unlink()
