"""`--result_csv`: one row per run in a table with fixed columns.

Several processes may append to one file at a time, and any of them may be killed:
a row is written with one call under a lock, and a row that a dead process left torn
is taken off before the next one is added. To make torn rows recognisable, no cell
contains a line break and the last cell of every row is the schema number.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from cnnbench.errors import FlagError
from cnnbench.files import resolve_output, sync_folder, write_all
from cnnbench.record import SCHEMA, RunRecord
from cnnbench.record_codec import Json, encode

_FLAG = "result_csv"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)

_SUMMARY = (
    "images_per_sec",
    "images_per_sec_uncertainty",
    "images_per_sec_jitter",
    "total_images_per_sec",
    "achieved_flops_per_sec",
    "mfu",
    "peak_flops_per_sec",
    "peak_flops_source",
    "input_wait_fraction",
    "peak_memory_bytes",
)
_CONFIG = (
    "data_name",
    "data_dir",
    "precision",
    "data_format",
    "optimizer",
    "forward_only",
    "eval",
    "gradient_reduction",
    "bn_stats",
    "all_reduce_spec",
    "xla",
    "xla_compile",
    "num_intra_threads",
    "num_inter_threads",
    "tf_random_seed",
)
_ENVIRONMENT = (
    "hostname",
    "platform",
    "cpu_model",
    "logical_cpus",
    "usable_cpus",
    "gpu_names",
    "gpu_driver",
    "python_version",
    "tensorflow_version",
    "cnnbench_version",
    "git_commit",
)

COLUMNS = (
    "run_id",
    "started_at",
    "status",
    "model",
    "device",
    "num_towers",
    "num_workers",
    "variable_update",
    "all_reduce",
    "batch_per_device",
    "batch_global",
    "num_warmup_steps",
    "num_steps",
    *_SUMMARY,
    "last_loss",
    "eval_top_1",
    "eval_top_5",
    "startup_import_seconds",
    "startup_build_seconds",
    "startup_first_step_seconds",
    "parameters",
    "training_flops_per_image",
    *_CONFIG,
    *_ENVIRONMENT,
    "error",
    "command",
    "schema",
)
"""The header, always all of it in this order; unknown values are empty cells."""


def prepare(path: str) -> None:
    """Proves before the run that a row can be appended after it.

    Raises:
      FlagError: the path cannot be written, or it is a table with other columns.
    """
    target = resolve_output(_FLAG, path)
    if target.exists():
        try:
            with target.open("rb") as file:
                _check_header(path, file.readline())
        except OSError as error:
            raise FlagError(_FLAG, path, f"cannot be read: {error.strerror}") from error


def append(path: str, record: RunRecord) -> None:
    """Adds the row of a record, and the header before the first row.

    Raises:
      FlagError: the path can no longer be written, or has become another table.
      OSError: such as a full disk; the file is as it was.
    """
    target = resolve_output(_FLAG, path)
    cells = row(record)
    line = _line([cells[name] for name in COLUMNS])
    descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        with _locked(descriptor):
            end, separator = _end_of_rows(path, descriptor)
            os.ftruncate(descriptor, end)
            header = _line(COLUMNS) if end == 0 else b""
            try:
                write_all(descriptor, header + separator + line)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
    finally:
        os.close(descriptor)
    sync_folder(target.parent)


def row(record: RunRecord) -> dict[str, str]:
    """The cells of a record by column, unknown values empty."""
    startup = record.startup_seconds
    evaluation = record.evaluations[-1] if record.evaluations else None
    values: dict[str, object] = {
        **dict.fromkeys(COLUMNS),
        "run_id": record.run_id,
        "started_at": record.started_at,
        "status": record.status,
        "model": record.config.get("model"),
        "num_warmup_steps": len(record.warmup_step_seconds),
        "num_steps": len(record.step_seconds),
        **asdict(record.summary()),
        "last_loss": record.losses[-1] if record.losses else None,
        "eval_top_1": None if evaluation is None else evaluation.top_1,
        "eval_top_5": None if evaluation is None else evaluation.top_5,
        "startup_import_seconds": startup.import_,
        "startup_build_seconds": startup.build,
        "startup_first_step_seconds": startup.first_step,
        **{name: record.config.get(name) for name in _CONFIG},
        **{name: record.environment.get(name) for name in _ENVIRONMENT},
        **_sections(record),
        "error": f"{record.error.type}: {record.error.message}" if record.error else None,
        "command": shlex.join(record.command),
        "schema": SCHEMA,
    }
    return {name: _cell(encode(values[name])) for name in COLUMNS}


def _sections(record: RunRecord) -> Mapping[str, object]:
    """Cells from the parts that a run has only when it got that far."""
    values: dict[str, object] = {}
    if record.model is not None:
        values |= {
            "model": record.model.name,
            "parameters": record.model.parameters,
            "training_flops_per_image": record.model.training_flops_per_image,
        }
    if record.batch is not None:
        values |= {
            "batch_per_device": record.batch.per_device,
            "batch_global": record.batch.global_,
        }
    if record.placement is not None:
        names = ("device", "num_towers", "num_workers", "variable_update", "all_reduce")
        values |= {name: getattr(record.placement, name) for name in names}
    return values


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
    """Keeps other processes that append out; the kernel frees a dead one's lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # Some network file systems have no locks; O_APPEND still keeps rows apart.
        if error.errno not in _NO_LOCKS:
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _end_of_rows(path: str, descriptor: int) -> tuple[int, bytes]:
    """Where the complete rows end, and what to write between them and the next one."""
    size = os.fstat(descriptor).st_size
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        header = file.readline()
        if not header.endswith(b"\n") and _line(COLUMNS).startswith(header):
            return 0, b""
        _check_header(path, header)
        if not header.endswith(b"\n"):
            return size, b"\n"
        last_start = _start_of_last_line(file, size)
        file.seek(last_start)
        last = file.read()
    if last.endswith(b"\n"):
        return size, b""
    # An editor may have dropped the last line's end; a killed process tears the row.
    return (size, b"\n") if _is_complete(last) else (last_start, b"")


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


def _is_complete(line: bytes) -> bool:
    try:
        (cells,) = csv.reader([line.decode("utf-8")], strict=True)
    except (csv.Error, UnicodeDecodeError, ValueError):
        return False
    return len(cells) == len(COLUMNS) and cells[-1] == str(SCHEMA)


def _check_header(path: str, line: bytes) -> None:
    """Refuses a table that is not ours; accepts what spreadsheets do to line ends."""
    text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
    if not line or (not line.endswith(b"\n") and ",".join(COLUMNS).startswith(text)):
        return  # empty, or torn while the very first row was written
    names = text.split(",")  # no name of a column needs quotes
    if tuple(names) == COLUMNS:
        return
    unlike = next(
        (i for i, pair in enumerate(zip(names, COLUMNS, strict=False)) if pair[0] != pair[1]),
        min(len(names), len(COLUMNS)),
    )
    found = repr(names[unlike]) if unlike < len(names) else "nothing"
    wanted = repr(COLUMNS[unlike]) if unlike < len(COLUMNS) else "nothing"
    raise FlagError(
        _FLAG,
        path,
        f"has other columns than this version writes (column {unlike + 1} is {found}, not "
        f"{wanted}); give a new file",
    )
