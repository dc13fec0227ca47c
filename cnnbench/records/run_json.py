"""`--result_json`: one run's record as a JSON document, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from cnnbench.errors import UsageError
from cnnbench.records.files import resolve_output, write_whole
from cnnbench.records.run import RunRecord

_FLAG = "result_json"


def prepare(path: str) -> None:
    """Proves before the run that the record can be written after it.

    Raises:
      FlagError: it cannot; says why.
    """
    resolve_output(_FLAG, path)


def write(path: str, record: RunRecord) -> None:
    """Writes the record; replaces a file that exists.

    Raises:
      FlagError: the path can no longer be written.
      OSError: such as a full disk; an older file is unchanged.
    """
    write_whole(resolve_output(_FLAG, path), record.to_json().encode("ascii"))


def read(path: str) -> RunRecord:
    """The record in a file.

    Raises:
      UsageError: no such file, or not a record; one line that names the file.
    """
    try:
        return RunRecord.from_json(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a run record: {error}") from error
