"""--result_json and --result_csv: proved writable before the work, written after it.

Several processes may append to one CSV table, and any of them may be killed: rows are
written with one call under a lock, and the next writer removes a row that a killed process
left incomplete. To make incomplete rows recognisable, no cell contains a line break and
the last cell of every row is the schema number.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Protocol

from cnnbench.base.lock import NO_LOCKS
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.records.codec import IMPLIED_KIND, Json, encode
from cnnbench.records.files import resolve_output, sync_folder, write_all, write_whole
from cnnbench.records.outputs import Output, check_outputs

_JSON, _CSV = "result_json", "result_csv"


class Record(Protocol):
    """What is written to --result_json."""

    def to_json(self) -> str:
        """The document, in ASCII."""


class CsvTable:
    """One kind of table.

    A file of an earlier version, which had some of the columns, is continued with those it has.

    Args:
      flag: name of the flag that gives the path, for errors.
      columns: the header, always all of it in this order; the last is the schema number.
      schema: that number.
    """

    def __init__(self, flag: str, columns: Sequence[str], schema: int) -> None:
        self._flag = flag
        self.columns = tuple(columns)
        self._schema = schema

    def prepare(self, path: str) -> tuple[str, ...]:
        """Proves that rows can be appended later.

        Returns:
          Columns that the file, begun by an earlier version, does not have.

        Raises:
          FlagError: the path cannot be written, or it is a table with other columns.
        """
        target = resolve_output(self._flag, path)
        if target.exists():
            try:
                with target.open("rb") as file:
                    there = self._columns_of(path, file.readline())
            except OSError as error:
                raise FlagError(self._flag, path, f"cannot be read: {error.strerror}") from error
            return tuple(name for name in self.columns if name not in there)
        return ()

    def append(self, path: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Adds rows, all of them or none, and the header before the first row.

        Args:
          path: of the table.
          rows: values by column; what is missing or None is an empty cell.

        Raises:
          FlagError: the path can no longer be written, or has become another table.
          OSError: such as a full disk; the file is as it was.
        """
        target = resolve_output(self._flag, path)
        found = [self.cells(row) for row in rows]
        if not found:
            return
        descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            with _locked(descriptor):
                end, separator, columns = self._end_of_rows(path, descriptor)
                os.ftruncate(descriptor, end)
                header = _line(columns) if end == 0 else b""
                lines = b"".join(_line(cells[name] for name in columns) for cells in found)
                try:
                    write_all(descriptor, header + separator + lines)
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, end)
                    raise
        finally:
            os.close(descriptor)
        sync_folder(target.parent)

    def cells(self, row: Mapping[str, object]) -> dict[str, str]:
        """The text of every cell of a row, in the order of the columns."""
        values = {**dict.fromkeys(self.columns), **row, self.columns[-1]: self._schema}
        return {name: _cell(encode(values[name])) for name in self.columns}

    def _end_of_rows(self, path: str, descriptor: int) -> tuple[int, bytes, tuple[str, ...]]:
        """Where the complete rows end, what to write between them and the next one, and the
        columns of the file."""
        size = os.fstat(descriptor).st_size
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            header = file.readline()
            if not header.endswith(b"\n") and _line(self.columns).startswith(header):
                return 0, b"", self.columns
            columns = self._columns_of(path, header)
            if not header.endswith(b"\n"):
                return size, b"\n", columns
            last_start = _start_of_last_line(file, size)
            file.seek(last_start)
            last = file.read()
        if last.endswith(b"\n"):
            return size, b"", columns
        # An editor may have removed the last line break; a killed process truncates the row.
        if self._is_complete(last, len(columns)):
            return size, b"\n", columns
        return last_start, b"", columns

    def _is_complete(self, line: bytes, columns: int) -> bool:
        try:
            (cells,) = csv.reader([line.decode("utf-8")], strict=True)
        except (csv.Error, UnicodeDecodeError, ValueError):
            return False
        return len(cells) == columns and cells[-1] == str(self._schema)

    def _columns_of(self, path: str, line: bytes) -> tuple[str, ...]:
        """The columns in a header; accepts a byte order mark and CRLF line ends.

        Raises:
          FlagError: it is of another table: not of some of these columns, in their order.
        """
        text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
        if not line or (not line.endswith(b"\n") and ",".join(self.columns).startswith(text)):
            return self.columns  # empty, or torn while the very first row was written
        names = text.split(",")  # no name of a column needs quotes
        ours = tuple(name for name in self.columns if name in names)
        if tuple(names) != ours or names[0] != self.columns[0] or names[-1] != self.columns[-1]:
            places = zip(names, self.columns, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], places))
            raise FlagError(
                self._flag,
                path,
                f"column {same + 1} is not that of this version, which writes {len(self.columns)} "
                "columns; give a new file",
            )
        return ours


class ResultFiles:
    """The files that one process writes.

    Args:
      json_path: --result_json, a document of the whole process; None without it.
      csv_path: --result_csv, a table to append to; None without it.
      table: the kind of table.
      kind: of the document.
    """

    def __init__(
        self,
        json_path: str | None,
        csv_path: str | None,
        table: CsvTable,
        kind: str = IMPLIED_KIND,
    ) -> None:
        self._json = json_path
        self._csv = csv_path
        self._table = table
        self._kind = kind

    @property
    def wanted(self) -> bool:
        """Whether a record will be written anywhere."""
        return self._json is not None or self._csv is not None

    def prepare(
        self, others: Iterable[Output] = (), inputs: Iterable[str | None] = ()
    ) -> str | None:
        """Proves that every file can be written, and leaves no trace.

        Args:
          others: files that the command writes besides.
          inputs: files that it reads, see `check_outputs`.

        Returns:
          A notice that a table lacks columns; None if none does.

        Raises:
          FlagError: names the flag of a path that cannot be written.
        """
        document = Output(_JSON, self._json, self._kind)
        check_outputs((document, *others, Output(_CSV, self._csv, appended=True)), inputs)
        notice = None
        if self._csv is not None:
            lacking = self._table.prepare(self._csv)
            if lacking:
                notice = f"--{_CSV}={self._csv} was begun by an earlier version and is continued "
                notice += f"without the columns {', '.join(lacking)}; a new file has them"
        return notice

    def holds(self, run_id: str) -> str | None:
        """The document of --result_json, if it is of a run; None if it is another's or not there.

        Args:
          run_id: of that run.
        """
        try:
            text = resolve_output(_JSON, self._json).read_text("ascii") if self._json else "{}"
            document = json.loads(text)
        except (OSError, ValueError, UsageError):
            return None
        ours = isinstance(document, dict) and document.get("run_id") == run_id
        return text if ours else None

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


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ";".join(_cell(item) for item in value)
    if isinstance(value, str):
        # One row is one line, whatever an error message contains.
        return " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return repr(value)


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Excludes other writers; the kernel releases the lock of a killed process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # Some network file systems have no locks; O_APPEND still keeps rows apart.
        if error.errno not in NO_LOCKS:
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _start_of_last_line(file: io.BufferedReader, size: int) -> int:
    """Offset of the last line, with or without its end; reads backwards in blocks."""
    block = 1 << 14
    position = size - 1
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        found = file.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0
