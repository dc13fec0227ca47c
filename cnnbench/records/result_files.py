"""The files of --result_json and --result_csv: checked before the work, written after it.

A table has one row per run, or one row per reduction. Columns never change their order. Each has
the source of its value: a dotted path of attributes and keys; the cell is empty where a part of it
is None or missing.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile

from cnnbench.base.files import NO_LOCKS, parse_json
from cnnbench.base.terminal import csv_cell
from cnnbench.base.text import plain
from cnnbench.errors import FlagError
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import IMPLIED_KIND, Document, encode
from cnnbench.records.files import (
    Output,
    check_outputs,
    note,
    refusing,
    resolve_output,
    sync_folder,
    write_all,
    write_text,
    writing_output,
)
from cnnbench.records.metric import SUMMARY, load_metrics
from cnnbench.records.run import RunRecord, subject_of
from cnnbench.variable_mgr.spec import Packing

_JSON, _CSV = "result_json", "result_csv"


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
        note(json_path or "")  # also for a parent process that completes the document

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
        if not isinstance(document, dict) or document.get("run_id") != run_id:
            return None
        note(self._json or "")
        return text

    def write(self, record: Document, rows: Callable[[], Iterable[Mapping[str, object]]]) -> None:
        """Writes the document anew and appends rows; see `cnnbench.records.files.check_written`.

        `rows` is called only for --result_csv; its values are by column.
        """
        if self._json is not None:
            write_text(_JSON, self._json, record.to_json())
        if self._csv is not None:
            with writing_output(_CSV, self._csv):
                self._table.append(self._csv, rows())


class CsvTable:
    """A kind of table, to which several processes append atomically.

    Rows are written with one call under a lock. The next writer removes a row that a killed process
    left incomplete: cells have no line breaks, and the last cell of a row is the schema number.
    Files of earlier versions, which lack columns, are continued without these.
    """

    def __init__(self, columns: Sequence[str], schema: int, more: Collection[str] = ()) -> None:
        """A table of some columns, the last of which is the schema number, and `more` before it."""
        self._columns = columns
        self._schema = schema
        self._more = more

    @property
    def columns(self) -> tuple[str, ...]:
        """The header of new files."""
        *first, last = self._columns
        return (*first, *(name for name in self._more if name not in first), last)

    def prepare(self, path: str) -> tuple[str, ...]:
        """Checks that rows can be appended later, and returns the columns that the file lacks."""
        target = resolve_output(_CSV, path)
        if target.exists():
            with refusing(_CSV, path, "read"), target.open("rb") as file:
                there = self._columns_of(path, file.readline())
            return tuple(name for name in self.columns if name not in there)
        return ()

    def append(self, path: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Adds all rows or none, and the header before the first row; None is an empty cell.

        FlagError if the path has become another table; after an OSError the file is unchanged.
        """
        target = resolve_output(_CSV, path)
        found = [self.cells(row) for row in rows]
        if not found:
            return
        descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # the system releases it at the end
            except OSError as error:  # without locks O_APPEND still keeps rows apart
                if error.errno not in NO_LOCKS:
                    raise
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
        # One row is one line, whatever an error message contains.
        return {
            name: " ".join(plain(csv_cell(encode(values[name]))).split()) for name in self.columns
        }

    def _end_of_rows(self, path: str, descriptor: int) -> tuple[int, bytes, tuple[str, ...]]:
        """End of the complete rows, separator before the next one, and columns of the file."""
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
        """Columns in a header, with or without a byte order mark and CRLF line ends."""
        text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
        if not line or (not line.endswith(b"\n") and ",".join(self.columns).startswith(text)):
            return self.columns  # empty, or torn while the very first row was written
        try:
            names = next(csv.reader([text])) or [""]  # other programs put names in quotes
        except csv.Error:  # such as a NUL byte, or a line that is no header at all
            names = [""]
        ours = tuple(name for name in self.columns if name in names)
        if tuple(names) != ours or names[0] != self.columns[0] or names[-1] != self.columns[-1]:
            places = zip(names, self.columns, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], places))
            raise FlagError(
                _CSV,
                path,
                f"column {same + 1} is not that of this version, which writes {len(self.columns)} "
                "columns; give a new file",
            )
        return ours


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _start_of_last_line(file: io.BufferedReader, size: int) -> int:
    """Offset of the last line, complete or not; reads backwards in blocks."""
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


def _at(path: str, *names: str) -> dict[str, str]:
    """Columns with the names of attributes or keys below a path."""
    return {name: f"{path}.{name}" for name in names}


_ENVIRONMENT = _at(
    "record.environment",
    *("hostname", "platform", "cpu_model", "logical_cpus", "usable_cpus"),
    *("gpu_names", "gpu_driver"),
    *("python_version", "tensorflow_version", "cnnbench_version", "git_commit"),
)

_SUBJECT = {
    f"subject_{name}": f"subject.{name}" for name in ("repository", "revision", "dirty", "side")
}

_RUN = {
    **_at("record", "run_id", "started_at", "status"),
    **_at("computed", "model"),
    **_at(
        "record.placement", "device", "num_towers", "num_workers", "variable_update", "all_reduce"
    ),
    "batch_per_device": "record.batch.per_device",
    "batch_global": "record.batch.global_",
    **_at("computed", "num_warmup_steps", "num_steps"),
    **_at(
        "summary",
        *("images_per_sec", "images_per_sec_uncertainty", "images_per_sec_jitter"),
        "total_images_per_sec",
        *("achieved_flops_per_sec", "mfu", "peak_flops_per_sec", "peak_flops_source"),
        *("input_wait_fraction", "peak_memory_bytes"),
    ),
    **_at("record", "last_loss"),
    "eval_top_1": "evaluation.top_1",
    "eval_top_5": "evaluation.top_5",
    "startup_import_seconds": "record.startup_seconds.import_",
    "startup_build_seconds": "record.startup_seconds.build",
    "startup_first_step_seconds": "record.startup_seconds.first_step",
    **_at("record.model", "parameters", "training_flops_per_image"),
    **_at(
        "record.config",
        *("data_name", "data_dir", "precision", "data_format", "optimizer"),
        *("forward_only", "eval", "gradient_reduction", "bn_stats", "all_reduce_spec"),
        *("xla", "xla_compile", "num_intra_threads", "num_inter_threads", "tf_random_seed"),
    ),
    **_ENVIRONMENT,
    **_at("computed", "error", "command"),
    **_SUBJECT,
    **_at("record.config", "result_label"),
    **_at("summary", "latency_p50_seconds", "latency_p90_seconds", "latency_p99_seconds"),
    **_at("record.measured", "loop_user_seconds", "loop_system_seconds"),
    **_at("summary", "cpu_seconds_per_step", "busy_cpus"),
    **_at("summary", "images_per_sec_median"),
    **_at("record.conditions.during", "other_cpus"),
    "subject_changes": "subject.changes",
}

# Fields of Packing, with whether they were added later.
_PACKING = {one.name: one.metadata.get("optional", False) for one in fields(Packing)}

_ALL_REDUCE = {
    **_at("record", "run_id", "started_at"),
    **_at("point", "workload", "bytes", "elements", "tensors", "dtype"),
    **_at("record.placement", "device"),
    **_at("point", "devices", "spec"),
    **_at("computed", "peer"),
    **_at("point.packing", *(name for name, later in _PACKING.items() if not later)),
    **_at("computed", "calls"),
    **_at("record.config", "iters_per_step"),
    "median_seconds": "point.median",
    "p99_seconds": "point.p99",
    "algorithm_bytes_per_sec": "point.algorithm_bandwidth",
    "bus_bytes_per_sec": "point.bus_bandwidth",
    **_at("computed", "share_of_copy_bound"),
    **_at("point", "wrong", "checked", "trace_seconds", "build_seconds", "operations"),
    **_ENVIRONMENT,
    **_at("point", "error"),
    **_at("computed", "command"),
    "max_seconds": "point.longest",
    **_SUBJECT,
    **_at("record.config", "result_label"),
    **_at("point.packing", *(name for name, later in _PACKING.items() if later)),
    "subject_changes": "subject.changes",
}

load_metrics()
RUNS = CsvTable((*_RUN, "schema"), RunRecord.schema, SUMMARY)
REDUCTIONS = CsvTable((*_ALL_REDUCE, "schema"), AllReduceRecord.schema)


def run_row(record: RunRecord) -> dict[str, object]:
    """The values of a run by column of `RUNS`."""
    error = record.error
    computed = {
        "model": record.config.get("model") if record.model is None else record.model.name,
        "num_warmup_steps": len(record.warmup_step_seconds),
        "num_steps": len(record.step_seconds),
        "error": None if error is None else f"{error.type}: {error.message}",
        "command": shlex.join(record.command),
    }
    summary = record.summary()
    sources = {
        "record": record,
        "summary": summary,
        "evaluation": record.evaluations[-1] if record.evaluations else None,
        "computed": computed,
        "subject": subject_of(record.subject, record.config, record.ab),
    }
    return {**summary, **{name: _value(sources, path) for name, path in _RUN.items()}}


def all_reduce_row(record: AllReduceRecord, point: Point) -> dict[str, object]:
    """The values of a row by column of `REDUCTIONS`."""
    computed = {
        "peer": point in record.peers,
        "calls": len(point.seconds),
        "share_of_copy_bound": record.share_of_estimate(point),
        "command": shlex.join(record.command),
    }
    sources = {
        "record": record,
        "point": point,
        "computed": computed,
        "subject": subject_of(record.subject, record.config),
    }
    return {name: _value(sources, path) for name, path in _ALL_REDUCE.items()}


def _value(sources: Mapping[str, object], path: str) -> object:
    found: object = sources
    for name in path.split("."):
        if found is None:
            return None
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
    return found
