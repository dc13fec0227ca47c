"""The results directory of an experiment.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/``
those of burn-in and of incomplete pairs, ``logs/`` the output of the processes,
``journal.jsonl`` the events. ``cnnbench compare DIR/a DIR/b --paired`` reads it. Only records
that count are named ``*.json``: ``--baseline_aa=DIR`` reads the whole directory and must not
find the others.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from cnnbench.campaigns.processes.outcome import read
from cnnbench.campaigns.processes.results_dir import LOGS, ResultsFolder, writing
from cnnbench.records.run import RunRecord

SIDES = ("a", "b")
_DISCARDED = "discarded"


def pair_name(number: int) -> str:
    """What the names of a pair's files begin with; number counts from 1."""
    return f"{number:04d}"


class PairsFolder(ResultsFolder):
    """A results directory, see `ResultsFolder`.

    Args:
      folder: must be empty if it is there, since records of two experiments would be taken for
        those of one.
      resume: unless it holds the beginning of the very same experiment.

    Raises:
      FlagError: it cannot be used.
    """

    def __init__(self, folder: str | Path, *, resume: bool = False) -> None:
        folders = (*SIDES, _DISCARDED, LOGS)
        super().__init__(folder, timespec="milliseconds", folders=folders, used=resume)

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

    def pending(self, name: str) -> Path:
        """Where a process writes its record, and where it stays if it has no partner."""
        return self.folder / _DISCARDED / f"{name}.{_DISCARDED}"

    def set_aside(self, name: str, attempt: int) -> None:
        """Renames record and log of a process whose pair is measured again.

        Args:
          name: of the process.
          attempt: at the pair, from 1.

        Raises:
          BenchmarkError: they cannot be renamed.
        """
        for path_of in (self.pending, self.log):
            _move(path_of(name), path_of(f"{name}-lost-{attempt}"))

    def accept(self, name: str, side: str) -> None:
        """Moves a record to those of its side.

        Args:
          name: of the process.
          side: "a" or "b".

        Raises:
          BenchmarkError: it cannot be moved.
        """
        _move(self.pending(name), self.folder / side / f"{name}.json")


def _move(source: Path, target: Path) -> None:
    with writing(source):
        source.replace(target)
