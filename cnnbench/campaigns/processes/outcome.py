"""Records of ended processes: their own if valid, else one with the error."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from cnnbench.base.interrupts import SIGNALS, name_of
from cnnbench.base.reading import parse_json, read_json
from cnnbench.base.text.escape import plain
from cnnbench.base.text.messages import fatal_message, notice_line
from cnnbench.base.text.numbers import number
from cnnbench.campaigns.processes.child import Command, Ended, end_of
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.errors import ExitCode
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import encode
from cnnbench.records.load import record_of
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.parts import ErrorInfo
from cnnbench.records.run import RunRecord

Record: TypeAlias = RunRecord | AllReduceRecord

_MESSAGE_LENGTH = 500

# Errors that count as out of memory; a smaller batch does not fix any other error.
_OOM_TYPES = ("ResourceExhaustedError", "MemoryError", "OutOfMemoryError")
_OOM_MESSAGE = re.compile(
    r"^out of memory: |\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCUDNN_STATUS_ALLOC_FAILED\b"
    r"|\bCUBLAS_STATUS_ALLOC_FAILED\b"
)
_OOM_ABORT = "std::bad_alloc"

# Sent by the kernel, a scheduler or a person. Others come from the process's own code, as SIGSEGV.
_SENT_FROM_OUTSIDE = (signal.SIGKILL, *SIGNALS)


@dataclass(frozen=True, kw_only=True)
class Measuring(Command):
    """Process that writes a record to a file; `blank` (`blank_record`) replaces a missing one."""

    record: Path
    blank: Record


def blank_record(kind: str, command: Sequence[str], resolved: Resolved | Record) -> Record:
    """Record ("run" or "allreduce") of a process before its start, without measurements."""
    make = RunRecord if kind == RunRecord.kind else AllReduceRecord
    return make(
        run_id=uuid.uuid4().hex,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        status="interrupted",
        command=tuple(command),
        config=resolved.config,
        explicit_flags=resolved.explicit_flags,
    )


def judge(command: Measuring, ended: Ended, facts: Mapping[str, Any]) -> Ended:
    """An ended process with its record; does not raise for its failures.

    `facts` describe this machine, for a record of a process that left none.
    """
    document, defect, unusable = _read(command)
    problem = _problem(ended, document, defect, end_of(command.log) or full_disk(command.log))
    if problem is None:
        assert document is not None
        return replace(ended, status="ok", document=document)
    status, error, lost = problem
    if document is None:
        left = replace(command.blank, status="failed", error=error, environment=facts)
        document = left.to_dict()
    elif document["status"] != "failed" or ended.timed_out:
        document = {**document, "status": "failed", "error": encode(error)}
    return replace(
        ended,
        status=status,
        # An exception without a message is reported by its type.
        message=plain(error.message) or plain(error.type) or "unknown error",
        lost=lost,
        document=document,
        unusable=unusable,
    )


def read(path: Path) -> Record | None:
    """The record in a file; None without a valid one."""
    try:
        return record_of(read_json(path))
    except (ValueError, RecursionError):
        return None


def bus_bandwidth(record: AllReduceRecord) -> float | None:
    """Bytes per second of the fastest point, as defined by nccl-tests."""
    rates = [point.bus_bandwidth for point in record.points]
    return max((rate for rate in rates if rate is not None), default=None)


def headline(record: Record) -> str:
    """The main result of a successful run, for its progress line."""
    if isinstance(record, AllReduceRecord):
        rate = bus_bandwidth(record)
        return "ok" if rate is None else f"ok up to {number(rate / 1e9)} GB/s"
    speed = throughput(record)
    return "ok" if speed is None else f"ok {number(speed)} images/sec"


def _problem(
    ended: Ended, document: Mapping[str, Any] | None, defect: str | None, tail: str
) -> tuple[str, ErrorInfo, str] | None:
    """Status, error and `lost` of a run that is not ok; see `Ended`."""
    if ended.timed_out:
        text = f"killed after {ended.seconds:.0f} s; {last_line(tail)}"
        return "timed_out", _error("TimedOut", text), "ended by its time-out"
    if ended.error is not None:
        return "failed", _error("NotStarted", ended.error), ""
    if ended.code is None:
        text = f"the process and its guard were killed; {last_line(tail)}"
        return "killed", _error("Killed", text), "killed with its guard"
    if ended.code < 0:
        return _signalled(-ended.code, ended.oom_kills, tail)
    if document is not None and document["status"] == "failed":
        error = ErrorInfo(**{k: str(document["error"][k]) for k in ("type", "message")})
        # As the driver reports it.
        full = error.type in _OOM_TYPES or _OOM_MESSAGE.search(error.message) is not None
        return ("out_of_memory" if full else "failed"), error, ""
    is_interrupted = document is not None and document["status"] == "interrupted"
    if is_interrupted or ended.code == ExitCode.INTERRUPTED:  # it may have no record yet
        error = _error("Interrupted", "interrupted by an external signal")
        return "killed", error, "interrupted by a signal"
    if ended.code != 0:
        text = f"exit status {ended.code}; {last_line(tail)}"
        return "failed", _error("ExitStatus", text), ""
    if defect is not None:
        return "failed", _error("UnusableRecord", defect), ""
    return None


def _signalled(code: int, oom_kills: int, tail: str) -> tuple[str, ErrorInfo, str]:
    name = name_of(code)
    if code == signal.SIGKILL and oom_kills > 0:
        text = "out of memory: ended by the kernel's OOM killer (SIGKILL)"
        lost = "killed by the OOM killer (SIGKILL)"
        return "out_of_memory", _error("OutOfMemory", text), lost
    if code == signal.SIGABRT and _OOM_ABORT in tail:
        text = f"out of memory: {name}, {_OOM_ABORT}"
        return "out_of_memory", _error("OutOfMemory", text), ""
    text = f"ended by {name}; {fatal_message(tail) or last_line(tail)}"
    lost = f"{'killed' if code == signal.SIGKILL else 'ended'} by {name}"
    return "killed", _error("Killed", text), lost if code in _SENT_FROM_OUTSIDE else ""


def _read(command: Measuring) -> tuple[dict[str, Any] | None, str | None, bytes | None]:
    """The child's record; or why there is none, and its output in place of one."""
    try:
        data = command.record.read_bytes()
    except FileNotFoundError:
        return None, "no record was written", None
    except OSError as error:
        return None, f"the record cannot be read: {error.strerror}", None
    try:
        document = parse_json(data)
        record = record_of(document)
        if record.kind != command.blank.kind:
            raise ValueError(f"of the kind {record.kind!r}")
    except RecursionError:
        return None, "not a valid record: nested too deeply", data
    except ValueError as error:
        return None, f"not a valid record: {error}", data
    return document, None, None


def _error(kind: str, message: str) -> ErrorInfo:
    return ErrorInfo(type=kind, message=" ".join(message.split())[:_MESSAGE_LENGTH])


def full_disk(log: Path) -> str:
    """The error line where a process could print nothing because the disk is full; else ""."""
    with contextlib.suppress(OSError):
        if not os.statvfs(log.parent).f_bavail:
            return f"{log.parent}: {os.strerror(errno.ENOSPC)}"
    return ""


def last_line(tail: str) -> str:
    """The last output of a process, from the end of its log, in words for an error."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    # Frames of a plug-in are below its error.
    lines = [line for line in lines if not line.startswith(notice_line("at /"))]
    return f"last log line: {lines[-1]}" if lines else "no output"
