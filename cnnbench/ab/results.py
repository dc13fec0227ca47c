"""The results directory of an experiment.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/``
those of burn-in and of incomplete pairs, ``logs/`` the output of the processes,
``journal.jsonl`` the events. ``cnnbench compare DIR/a DIR/b --paired`` reads it. Only records
that count are named ``*.json``: ``--baseline_aa=DIR`` reads the whole directory and must not
find the others.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.processes.outcome import read
from cnnbench.processes.results_dir import Journal, cannot_write, unusable, write_durably
from cnnbench.records.run import RunRecord

SIDES = ("a", "b")
JOURNAL = "journal.jsonl"
_DISCARDED, _LOGS = "discarded", "logs"


def pair_name(number: int) -> str:
    """What the names of a pair's files begin with; number counts from 1."""
    return f"{number:04d}"


class ResultsFolder:
    """A results directory.

    Args:
      folder: is made; must be empty if it is there, since records of two experiments would
        be taken for those of one.
      resume: unless it holds the beginning of the very same experiment.

    Raises:
      FlagError: it cannot be used.
    """

    def __init__(self, folder: str, *, resume: bool = False) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not resume and any(self.folder.iterdir()):
                raise FlagError("results", folder, "is not empty; name another folder")
            for name in (*SIDES, _DISCARDED, _LOGS):
                (self.folder / name).mkdir(exist_ok=resume)
        except OSError as error:
            raise unusable(folder, error) from None
        self.journal = Journal(self.folder / JOURNAL, timespec="milliseconds")

    def pairs(self) -> list[tuple[RunRecord, ...]]:
        """The pairs that are there: records of both sides, up to the first that is not whole."""
        found: list[tuple[RunRecord, ...]] = []
        for number in itertools.count(1):
            paths = (self.folder / side / f"{pair_name(number)}-{side}.json" for side in SIDES)
            records = [read(path) for path in paths]
            pair = tuple(one for one in records if isinstance(one, RunRecord))
            if len(pair) < len(SIDES) or any(one.status != "ok" for one in pair):
                break
            found.append(pair)
        return found

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self.folder / _LOGS / f"{name}.log"

    def pending(self, name: str) -> Path:
        """Where a process writes its record, and where it stays if it has no partner."""
        return self.folder / _DISCARDED / f"{name}.{_DISCARDED}"

    def keep(self, name: str, document: dict[str, Any]) -> None:
        """Writes the record of a process, with what the experiment adds to it.

        Args:
          name: of the process, such as "0001-a".
          document: the record as JSON values.

        Raises:
          BenchmarkError: it cannot be written.
        """
        write_durably(self.pending(name), (json.dumps(document) + "\n").encode("ascii"))

    def set_aside(self, name: str, attempt: int) -> None:
        """Renames record and log of a process whose pair is measured again.

        Args:
          name: of the process.
          attempt: at the pair, from 1.

        Raises:
          BenchmarkError: they cannot be renamed.
        """
        for path_of in (self.pending, self.log):
            source = path_of(name)
            try:
                source.replace(path_of(f"{name}-lost-{attempt}"))
            except OSError as error:
                raise cannot_write(source, error) from error

    def accept(self, name: str, side: str) -> None:
        """Moves a record to those of its side.

        Args:
          name: of the process.
          side: "a" or "b".

        Raises:
          BenchmarkError: it cannot be moved.
        """
        source = self.pending(name)
        try:
            source.replace(self.folder / side / f"{name}.json")
        except OSError as error:
            raise cannot_write(source, error) from error
