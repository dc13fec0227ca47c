"""A CSV file to which several processes append rows."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile

from cnnbench.base.escapes import to_plain_line
from cnnbench.base.locks import NO_LOCKS
from cnnbench.base.tables import csv_cell
from cnnbench.errors import FlagError
from cnnbench.records.codec import encode
from cnnbench.records.files import (
    check_and_resolve_output,
    raising_flag_errors,
    sync_folder,
    write_all,
)

_FLAG = "result_csv"


class CsvTable:
    """A CSV file to which several processes can append rows atomically.

    Rows are written with one call under a lock. If a killed process left an incomplete row, the
    next writer removes it. Incomplete rows are recognised, because cells contain no line breaks and
    the last cell of a row is the schema number. If a file of an earlier version lacks columns, new
    rows lack them, too.
    """

    def __init__(self, columns: Sequence[str], schema: int, more: Collection[str] = ()) -> None:
        """Describes a table with the given columns. The last column is the schema number; the
        columns `more` are inserted before it.
        """
        self._columns = columns
        self._schema = schema
        self._more = more

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in the header of a new file."""
        *first, last = self._columns
        return (*first, *(name for name in self._more if name not in first), last)

    def find_missing_columns(self, path: str) -> tuple[str, ...]:
        """Checks that rows can be appended later. Returns columns that an existing file lacks."""
        target = check_and_resolve_output(_FLAG, path)
        if target.exists():
            with raising_flag_errors(_FLAG, path, "read"), target.open("rb") as file:
                there = self._parse_header(path, file.readline())
            return tuple(name for name in self.columns if name not in there)
        return ()

    def append(self, path: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Appends all rows or none. The header is written before the first row. None becomes an
        empty cell.

        FlagError if the file is now a different table. After an OSError, the file is unchanged.
        """
        target = check_and_resolve_output(_FLAG, path)
        rows_of_cells = [self.format_cells(row) for row in rows]
        if not rows_of_cells:
            return
        descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            try:
                # The lock ends with this process, so a killed process cannot block other writers.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Without locks in this file system, O_APPEND still prevents that rows are mixed.
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            end, separator, columns = self._find_end_of_rows(path, descriptor)
            os.ftruncate(descriptor, end)
            header = _csv_line(columns) if end == 0 else b""
            lines = b"".join(_csv_line(cells[name] for name in columns) for cells in rows_of_cells)
            try:
                write_all(descriptor, header + separator + lines)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        sync_folder(target.parent)

    def cells(self, row: Mapping[str, object]) -> dict[str, int | float | str | None]:
        """The cells of a row by column, in the order of the file: numbers, Booleans, None if
        unknown, and texts in one line.
        """
        values = {**dict.fromkeys(self.columns), **row, self.columns[-1]: self._schema}
        return {name: _cell(values[name]) for name in self.columns}

    def format_cells(self, row: Mapping[str, object]) -> dict[str, str]:
        """Formats the cells of a row. Returns the texts by column, in the order of the file."""
        return {name: csv_cell(value) for name, value in self.cells(row).items()}

    def _find_end_of_rows(self, path: str, descriptor: int) -> tuple[int, bytes, tuple[str, ...]]:
        """Finds where the next row belongs. Returns the offset after the last complete row, the
        bytes to write before the next row, and the columns of the file.
        """
        size = os.fstat(descriptor).st_size
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            header = file.readline()
            if not header.endswith(b"\n") and _csv_line(self.columns).startswith(header):
                return 0, b"", self.columns
            columns = self._parse_header(path, header)
            if not header.endswith(b"\n"):
                return size, b"\n", columns
            last_start = _last_line_start(file, size)
            file.seek(last_start)
            last = file.read()
        if last.endswith(b"\n"):
            return size, b"", columns
        # A last row without line break is complete if an editor removed only the line break.
        if self._is_complete(last, len(columns)):
            return size, b"\n", columns
        return last_start, b"", columns

    def _is_complete(self, line: bytes, columns: int) -> bool:
        try:
            (cells,) = csv.reader([line.decode("utf-8")], strict=True)
        except (csv.Error, UnicodeDecodeError, ValueError):
            return False
        return len(cells) == columns and cells[-1] == str(self._schema)

    def _parse_header(self, path: str, line: bytes) -> tuple[str, ...]:
        """Parses the header of a CSV file and returns the names of its columns. A byte order mark
        and CRLF line ends are allowed.
        """
        text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
        if not line or (not line.endswith(b"\n") and ",".join(self.columns).startswith(text)):
            # The file is empty, or a process was killed while it wrote the header.
            return self.columns
        try:
            # Other programs write column names in quotes, so the csv module parses the header.
            names = next(csv.reader([text])) or [""]
        # The csv module cannot parse some headers, for example if they contain a NUL byte.
        except csv.Error:
            names = [""]
        ours = tuple(name for name in self.columns if name in names)
        if tuple(names) != ours or names[0] != self.columns[0] or names[-1] != self.columns[-1]:
            places = zip(names, self.columns, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], places))
            raise FlagError(
                _FLAG,
                path,
                f"its column {same + 1} differs from the {len(self.columns)} columns that this "
                "version of cnnbench writes; name a new file",
            )
        return ours


def _cell(value: object) -> int | float | str | None:
    """Returns a cell: a number or Boolean, None if unknown, or a text in one line."""
    if value is None or isinstance(value, float):  # Also NaN, which `encode` writes as a text.
        return value
    encoded = encode(value)
    if isinstance(encoded, (int, float)):
        return encoded
    # Line breaks (as in error messages) become spaces.
    return " ".join(to_plain_line(csv_cell(encoded)).split())


def _csv_line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _last_line_start(file: io.BufferedReader, size: int) -> int:
    """Finds the offset of the last line, which may be incomplete, reading backwards in blocks."""
    block = 1 << 14
    position = size - 1
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
