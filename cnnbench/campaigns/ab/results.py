"""Results directory of an experiment.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/``
those of burn-in and of incomplete pairs, ``logs/`` the output of the processes, ``explain/`` what
was profiled after them, ``journal.jsonl`` the events. ``cnnbench compare DIR/a DIR/b --paired``
reads it. Only records that count are named ``*.json``: ``--baseline_aa=DIR`` reads the whole
directory and must not find the others.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from cnnbench.campaigns.processes.outcome import read
from cnnbench.campaigns.processes.results_dir import LOGS, ResultsFolder, writing
from cnnbench.records.run import RunRecord

SIDES = ("a", "b")
_DISCARDED = "discarded"

EXPLANATION = "explanation"
"""Event in the journal: where the difference is."""

PROFILES = "explain"
"""Folder with what was profiled after the pairs."""


def pair_name(number: int) -> str:
    """Prefix of the names of a pair's files; numbers start at 1."""
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
        """Pairs in the folder: records of both sides, up to the first incomplete pair."""
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
        """Path of a process's record until its pair is complete."""
        return self.folder / _DISCARDED / f"{name}.{_DISCARDED}"

    def set_aside(self, name: str, attempt: int) -> None:
        """Renames record and log of a process whose pair is measured again.

        Args:
          attempt: at the pair, from 1.

        Raises:
          BenchmarkError: they cannot be renamed.
        """
        for path_of in (self.pending, self.log):
            _move(path_of(name), path_of(f"{name}-lost-{attempt}"))

    def accept(self, name: str, side: str) -> None:
        """Moves a record to its side's folder.

        Args:
          side: "a" or "b".

        Raises:
          BenchmarkError: it cannot be moved.
        """
        _move(self.pending(name), self.folder / side / f"{name}.json")


def _move(source: Path, target: Path) -> None:
    with writing(source):
        source.replace(target)
