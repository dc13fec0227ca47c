"""Writes the files of --result_json and --result_csv.

Paths of output files are checked before the run starts. A CSV table has one row per run, or one row
per reduction, and the order of its columns never changes. The source of each column is a dotted
path of attributes and keys. A cell is empty if a part of the path is None or missing.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any

from cnnbench.base.escapes import to_plain_line
from cnnbench.base.files import parse_json
from cnnbench.base.locks import NO_LOCKS
from cnnbench.base.tables import csv_cell
from cnnbench.errors import FlagError
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import Document, encode
from cnnbench.records.files import (
    OutputFile,
    check_and_resolve_output,
    check_outputs,
    collecting_write_errors,
    raising_flag_errors,
    sync_folder,
    write_all,
    write_text,
)
from cnnbench.records.metric import ALL, SUMMARY
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import subject_of_record
from cnnbench.variable_mgr.packing import Packing

_JSON, _CSV = "result_json", "result_csv"


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
        target = check_and_resolve_output(_CSV, path)
        if target.exists():
            with raising_flag_errors(_CSV, path, "read"), target.open("rb") as file:
                there = self._parse_header(path, file.readline())
            return tuple(name for name in self.columns if name not in there)
        return ()

    def append(self, path: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Appends all rows or none. The header is written before the first row. None becomes an
        empty cell.

        FlagError if the file is now a different table. After an OSError, the file is unchanged.
        """
        target = check_and_resolve_output(_CSV, path)
        rows_of_cells = [self.format_cells(row) for row in rows]
        if not rows_of_cells:
            return
        descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            try:
                # The system releases the lock at the end of this process, so even a killed process
                # does not block others.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Some file systems have no locks. Even then, O_APPEND prevents that the rows of two
            # processes are mixed.
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            end, separator, columns = self._end_of_rows(path, descriptor)
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

    def _end_of_rows(self, path: str, descriptor: int) -> tuple[int, bytes, tuple[str, ...]]:
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
        # A last row without a line break is complete if only an editor has removed the line break.
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
            # The file is empty, or the process that wrote the header was killed meanwhile.
            return self.columns
        try:
            # The csv module parses the header, because other programs put column names in quotes.
            names = next(csv.reader([text])) or [""]
        # Some headers, for example with a NUL byte, are errors for the csv module.
        except csv.Error:
            names = [""]
        ours = tuple(name for name in self.columns if name in names)
        if tuple(names) != ours or names[0] != self.columns[0] or names[-1] != self.columns[-1]:
            places = zip(names, self.columns, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], places))
            raise FlagError(
                _CSV,
                path,
                f"its column {same + 1} differs from the column that this version of cnnbench "
                f"writes there, of {len(self.columns)}; choose a new file",
            )
        return ours


def _cell(value: object) -> int | float | str | None:
    """Returns a cell: a number or Boolean, None if unknown, or a text in one line."""
    if value is None or isinstance(value, float):  # NaN, too; `encode` makes it a text.
        return value
    encoded = encode(value)
    if isinstance(encoded, (int, float)):
        return encoded
    # Line breaks, as in error messages, become spaces, so that a row stays on one line.
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


class ResultFiles:
    """Writes the result files of a process: --result_json, and rows of --result_csv."""

    def __init__(self, json_path: str | None, csv_path: str | None, table: CsvTable) -> None:
        self._json = json_path
        self._csv = csv_path
        self._table = table

    @property
    def is_requested(self) -> bool:
        """Whether a result file was requested."""
        return self._json is not None or self._csv is not None

    @property
    def output_files(self) -> tuple[OutputFile, OutputFile]:
        """The files of --result_json and --result_csv."""
        return OutputFile(_JSON, self._json), OutputFile(_CSV, self._csv)

    def check_writable(
        self, others: Iterable[OutputFile] = (), inputs: Iterable[str | None] = ()
    ) -> str | None:
        """Checks that every output file can be written, without leaving a file behind (see
        `check_outputs`).

        Returns a notice if a table lacks columns.
        """
        as_json, as_csv = self.output_files
        check_outputs((as_json, *others, as_csv), inputs)
        lacking = () if self._csv is None else self._table.find_missing_columns(self._csv)
        if not lacking:
            return None
        made = f"--{_CSV}={self._csv} was created by an earlier version of cnnbench"
        return (
            f"{made} and is continued without the columns {', '.join(lacking)}; a new file has them"
        )

    def read_document_of_run(self, run_id: str) -> str | None:
        """Returns the text of --result_json if the run of this id wrote it; otherwise None."""
        if not self._json:
            return None
        try:
            text = check_and_resolve_output(_JSON, self._json).read_text("ascii")
            document = parse_json(text)
        except (OSError, ValueError):
            return None
        is_of_run = isinstance(document, dict) and document.get("run_id") == run_id
        return text if is_of_run else None

    def write(self, record: Document, rows: Callable[[], Iterable[Mapping[str, object]]]) -> None:
        """Writes the document to --result_json and appends rows to --result_csv. Failures are
        reported by `cnnbench.records.files.report_failed_writes`.

        `rows` is called only for --result_csv; its values are by column.
        """
        if self._json is not None:
            write_text(_JSON, self._json, record.to_json())
        if self._csv is not None:
            with collecting_write_errors(_CSV, self._csv):
                self._table.append(self._csv, rows())


def _columns(path: str, names: str) -> dict[str, str]:
    """Maps names of columns to their sources: attributes or keys of the object at `path`."""
    return {name: f"{path}.{name}" for name in names.split()}


_ENVIRONMENT = _columns(
    "record.environment",
    """
    hostname platform cpu_model logical_cpus usable_cpus gpu_names gpu_driver
    python_version tensorflow_version cnnbench_version git_commit
    """,
)

_SUBJECT = {
    f"subject_{name}": f"subject.{name}" for name in ("repository", "revision", "dirty", "side")
}

_RUN = {
    **_columns("record", "run_id started_at status"),
    **_columns("computed", "model"),
    **_columns("record.placement", "device num_towers num_workers variable_update all_reduce"),
    "batch_per_device": "record.batch.per_device",
    "batch_global": "record.batch.global_",
    **_columns("computed", "num_warmup_steps num_steps"),
    **_columns(
        "summary",
        """
        images_per_sec images_per_sec_uncertainty images_per_sec_jitter total_images_per_sec
        achieved_flops_per_sec mfu peak_flops_per_sec peak_flops_source input_wait_fraction
        peak_memory_bytes
        """,
    ),
    **_columns("record", "last_loss"),
    "eval_top_1": "evaluation.top_1",
    "eval_top_5": "evaluation.top_5",
    "startup_import_seconds": "record.startup_seconds.import_",
    "startup_build_seconds": "record.startup_seconds.build",
    "startup_first_step_seconds": "record.startup_seconds.first_step",
    **_columns("record.model", "parameters training_flops_per_image"),
    **_columns(
        "record.config",
        """
        data_name data_dir precision data_format optimizer forward_only eval gradient_reduction
        bn_stats all_reduce_spec xla xla_compile num_intra_threads num_inter_threads tf_random_seed
        """,
    ),
    **_ENVIRONMENT,
    **_columns("computed", "error command"),
    **_SUBJECT,
    **_columns("record.config", "result_label"),
    **_columns("summary", "latency_p50_seconds latency_p90_seconds latency_p99_seconds"),
    **_columns("record.measured", "loop_user_seconds loop_system_seconds"),
    **_columns("summary", "cpu_seconds_per_step busy_cpus images_per_sec_median"),
    **_columns("record.conditions.during", "other_cpus"),
    "subject_changes": "subject.changes",
    "batch_requested_per_device": "record.batch.requested_per_device",
    **_columns("record.model", "recomputed_flops_per_image"),
    **_columns("computed", "throughput flags"),
}

_PACKING = [field.name for field in fields(Packing) if not field.metadata.get("optional")]
_LATER_PACKING = [field.name for field in fields(Packing) if field.metadata.get("optional")]
"""Names of the fields of `Packing`: those of the first version, and those that were added later."""

_ALL_REDUCE = {
    **_columns("record", "run_id started_at"),
    **_columns("point", "workload bytes elements tensors dtype"),
    **_columns("record.placement", "device"),
    **_columns("point", "devices spec"),
    **_columns("computed", "peer"),
    **_columns("point.packing", " ".join(_PACKING)),
    **_columns("computed", "calls"),
    **_columns("record.config", "iters_per_step"),
    "median_seconds": "point.median_seconds",
    "p99_seconds": "point.p99_seconds",
    "algorithm_bytes_per_sec": "point.algorithm_bandwidth",
    "bus_bytes_per_sec": "point.bus_bandwidth",
    **_columns("computed", "share_of_copy_bound"),
    **_columns("point", "wrong checked trace_seconds build_seconds operations"),
    **_ENVIRONMENT,
    **_columns("point", "error"),
    **_columns("computed", "command"),
    "max_seconds": "point.longest_seconds",
    **_SUBJECT,
    **_columns("record.config", "result_label"),
    **_columns("point.packing", " ".join(_LATER_PACKING)),
    "subject_changes": "subject.changes",
}

ALL.load_own()
RUNS = CsvTable((*_RUN, "schema"), RunRecord.schema, SUMMARY)
REDUCTIONS = CsvTable((*_ALL_REDUCE, "schema"), AllReduceRecord.schema)


def run_row(record: RunRecord, flags: Mapping[str, Any]) -> dict[str, object]:
    """Returns the values of a run's row in the file of --result_csv, by column.

    `flags` are the flags that identify the run and differ from their defaults. The column `flags`
    contains them as a JSON object.
    """
    error = record.error
    computed = {
        "model": record.config.get("model") if record.model is None else record.model.name,
        "num_warmup_steps": record.warmup_steps,
        "num_steps": record.steps,
        "throughput": ALL["throughput"].value(record),
        "flags": json.dumps(flags, sort_keys=True),
        "error": None if error is None else f"{error.type}: {error.message}",
        "command": shlex.join(record.command),
    }
    summary = record.summary()
    sources = {
        "record": record,
        "summary": summary,
        "evaluation": record.evaluations[-1] if record.evaluations else None,
        "computed": computed,
        "subject": subject_of_record(record.subject, record.config, record.ab),
    }
    return {
        **summary,
        **{name: _value_at(sources, path) for name, path in _RUN.items()},
    }


def all_reduce_row(record: AllReduceRecord, point: Point) -> dict[str, object]:
    """Returns the values of a row in the file of ``cnnbench allreduce --result_csv``, by column."""
    computed = {
        "peer": point in record.peers,
        "calls": len(point.seconds),
        "share_of_copy_bound": record.copy_time_share(point),
        "command": shlex.join(record.command),
    }
    sources = {
        "record": record,
        "point": point,
        "computed": computed,
        "subject": subject_of_record(record.subject, record.config),
    }
    return {name: _value_at(sources, path) for name, path in _ALL_REDUCE.items()}


def _value_at(sources: Mapping[str, object], path: str) -> object:
    value: object = sources
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value
