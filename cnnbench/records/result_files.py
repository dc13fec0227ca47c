"""--result_json and --result_csv: proved writable before the work, written after it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.csv import CsvTable
from cnnbench.records.files import resolve_output, write_whole

_JSON, _CSV = "result_json", "result_csv"


class Record(Protocol):
    """What is written to --result_json."""

    def to_json(self) -> str:
        """The document, in ASCII."""


class ResultFiles:
    """The files that one process writes.

    Args:
      json_path: --result_json, a document of the whole process; None without it.
      csv_path: --result_csv, a table to append to; None without it.
      table: the kind of table.
      train_dir: directory that checkpoints are saved to; None if none are.
    """

    def __init__(
        self,
        json_path: str | None,
        csv_path: str | None,
        table: CsvTable,
        train_dir: str | None = None,
    ) -> None:
        self._json = json_path
        self._csv = csv_path
        self._table = table
        self._train_dir = train_dir

    @property
    def wanted(self) -> bool:
        """Whether a record will be written anywhere."""
        return self._json is not None or self._csv is not None

    def prepare(self) -> None:
        """Proves that every file can be written, and leaves no trace.

        Raises:
          FlagError: names the flag of a path that cannot be written.
        """
        if self._json is not None:
            resolve_output(_JSON, self._json)
        if self._csv is not None:
            self._table.prepare(self._csv)
            if self._json and os.path.realpath(self._json) == os.path.realpath(self._csv):
                raise FlagError(_CSV, self._csv, f"is the file of --{_JSON} too")
        if self._train_dir is not None:
            if re.search(r"ckpt-\d+$", self._train_dir):
                raise FlagError(
                    "train_dir", self._train_dir, "names one checkpoint; only --eval can use one"
                )
            _prove_directory(self._train_dir)

    def write(self, record: Record, rows: Callable[[], Iterable[Mapping[str, object]]]) -> None:
        """Writes the document anew and appends rows; each also where the other fails.

        Args:
          record: the document of --result_json.
          rows: makes the rows of --result_csv, values by column; called if they are wanted.

        Raises:
          BenchmarkError: names the files that could not be written.
        """
        failures = []
        writers: list[tuple[str | None, Callable[[str], None]]] = [
            (self._json, lambda path: write_json(path, record)),
            (self._csv, lambda path: self._table.append(path, rows())),
        ]
        for path, write in writers:
            if path is not None:
                try:
                    write(path)
                except OSError as error:
                    failures.append(f"{path}: {error.strerror or error}")
        if failures:
            raise BenchmarkError(f"the results could not be written: {'; '.join(failures)}")


def write_json(path: str, record: Record) -> None:
    """Writes the document of --result_json; replaces a file that exists.

    Args:
      path: as given.
      record: what to write.

    Raises:
      FlagError: the path can no longer be written.
      OSError: such as a full disk; an older file is unchanged.
    """
    write_whole(resolve_output(_JSON, path), record.to_json().encode("ascii"))


def _prove_directory(path: str) -> None:
    """Makes the directory, and a file in it for a moment."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise FlagError("train_dir", path, f"must be a directory to write to: {reason}") from None
