"""The files of --result_json and --result_csv: checked before the work, written after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cnnbench.base.reading import parse_json
from cnnbench.errors import BenchmarkError
from cnnbench.records.codec import IMPLIED_KIND
from cnnbench.records.csv_table import CsvTable
from cnnbench.records.files import resolve_output, write_whole
from cnnbench.records.outputs import Output, check_outputs

_JSON, _CSV = "result_json", "result_csv"


class Record(Protocol):
    """A document of --result_json."""

    def to_json(self) -> str:
        """The document, in ASCII."""


class ResultFiles:
    """The files that one process writes: a document, and rows in a table."""

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
        """Whether a record will be written."""
        return self._json is not None or self._csv is not None

    def prepare(
        self, others: Iterable[Output] = (), inputs: Iterable[str | None] = ()
    ) -> str | None:
        """Checks, without a trace, that every file can be written; see `check_outputs`.

        Returns a notice if a table lacks columns.
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
        """The document of --result_json if it is of this run."""
        try:
            text = resolve_output(_JSON, self._json).read_text("ascii") if self._json else "{}"
            document = parse_json(text)
        except (OSError, ValueError):
            return None
        ours = isinstance(document, dict) and document.get("run_id") == run_id
        return text if ours else None

    def write(self, record: Record, rows: Callable[[], Iterable[Mapping[str, object]]]) -> None:
        """Writes the document anew and appends rows; does each even if the other fails.

        `rows` is called only for --result_csv; its values are by column. BenchmarkError names the
        files that could not be written.
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
    """Writes the document of --result_json; after an OSError an older one is unchanged."""
    write_whole(resolve_output(_JSON, path), record.to_json().encode("ascii"))
