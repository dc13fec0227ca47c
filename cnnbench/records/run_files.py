"""The files a run was asked to leave behind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records import run_csv, run_json
from cnnbench.records.run import RunRecord


class ResultFiles:
    """Proves before a run that its files can be written, and writes them after it.

    Args:
      json_path: --result_json; None without it.
      csv_path: --result_csv; None without it.
      train_dir: directory that checkpoints are saved to; None if none are.
    """

    def __init__(self, json_path: str | None, csv_path: str | None, train_dir: str | None) -> None:
        self._json = json_path
        self._csv = csv_path
        self._train_dir = train_dir

    @property
    def wanted(self) -> bool:
        """Whether anybody will read a record."""
        return self._json is not None or self._csv is not None

    def prepare(self) -> None:
        """Checks every path.

        Raises:
          FlagError: names the flag of a path that cannot be written.
        """
        if self._json is not None:
            run_json.prepare(self._json)
        if self._csv is not None:
            run_csv.prepare(self._csv)
        if self._train_dir is not None:
            if re.search(r"ckpt-\d+$", self._train_dir):
                raise FlagError(
                    "train_dir", self._train_dir, "names one checkpoint; only --eval can use one"
                )
            _prove_directory(self._train_dir)

    def write(self, record: RunRecord) -> None:
        """Writes every file, also when one of them fails.

        Raises:
          BenchmarkError: names the files that could not be written.
        """
        failures = []
        writers: list[tuple[str | None, Callable[[str, RunRecord], object]]] = [
            (self._json, run_json.write),
            (self._csv, run_csv.append),
        ]
        for path, write in writers:
            if path is not None:
                try:
                    write(path, record)
                except OSError as error:
                    failures.append(f"{path}: {error.strerror or error}")
        if failures:
            raise BenchmarkError(f"the results could not be written: {'; '.join(failures)}")


def _prove_directory(path: str) -> None:
    """Makes the directory, and a file in it for a moment."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise FlagError("train_dir", path, f"must be a directory to write to: {reason}") from None
