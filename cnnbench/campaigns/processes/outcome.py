"""What a measuring process leaves: its record, and how it ended.

If a process leaves no valid record, cnnbench makes a record of the error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from cnnbench.base.child import exit_manner, exit_sentence
from cnnbench.base.escapes import to_plain_line
from cnnbench.base.files import parse_json, read_json
from cnnbench.base.interrupts import SIGNALS
from cnnbench.base.locks import SCRATCH_OF_PARENT
from cnnbench.base.log_lines import fatal_message, notice_line
from cnnbench.base.text import billions, number
from cnnbench.campaigns.processes.child import Command, ProcessResult, log_tail
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.errors import ExitCode, is_out_of_memory, out_of_memory_reason
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import encode
from cnnbench.records.load import record_from_json
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import ErrorInfo, RunRecord

Record: TypeAlias = RunRecord | AllReduceRecord

_MESSAGE_LENGTH = 500

# Signals that the kernel, a scheduler or a person sends to a process.
# Other signals, such as SIGSEGV, are caused by the process itself.
_SENT_FROM_OUTSIDE = (signal.SIGKILL, *SIGNALS)


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(Command):
    """The command line of a child process that measures and writes a record to the file `record`.

    If the process leaves no record, `blank` is used (see `blank_record`).
    """

    record: Path
    blank: Record

    def extra_environment(self) -> dict[str, str]:
        """Returns the environment variables of `Command.extra_environment`, and a variable with the
        process's temporary folder.
        """
        return {
            **super().extra_environment(),
            SCRATCH_OF_PARENT: os.path.realpath(self.record.parent),
        }


def blank_record(kind: str, command: Sequence[str], resolved: ResolvedRun | Record) -> Record:
    """Creates a record without measurements, for a process that leaves no record of its own.

    `kind` is "run" or "allreduce". `resolved` contains the flags for the record.
    """
    make = RunRecord if kind == RunRecord.kind else AllReduceRecord
    return make(
        run_id=uuid.uuid4().hex,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        status="interrupted",
        command=tuple(command),
        config=resolved.config,
        explicit_flags=resolved.explicit_flags,
    )


def add_record_and_status(
    command: BenchmarkCommand, ended: ProcessResult, facts: Mapping[str, Any]
) -> ProcessResult:
    """Adds the record and the status of a process to its result. Failures raise no exception.

    `facts` describes this machine. It is used if the process left no record.
    """
    document, defect, unusable = _read_record(command)
    problem = _failure(
        ended, document, defect, log_tail(command.log) or full_disk_error_line(command.log)
    )
    if problem is None:
        assert document is not None
        return replace(ended, status="ok", document=document)
    status, error, lost = problem
    if document is None:
        record = replace(command.blank, status="failed", error=error, environment=facts)
        document = record.to_dict()
    elif document["status"] != "failed" or ended.timed_out:
        document = {**document, "status": "failed", "error": encode(error)}
    return replace(
        ended,
        status=status,
        # An exception without a message is reported by its type.
        message=to_plain_line(error.message) or to_plain_line(error.type) or "unknown error",
        lost=lost,
        document=document,
        unusable=unusable,
    )


def read_record(path: Path) -> Record | None:
    """Reads the record in a file. Returns None if the file contains no valid record."""
    try:
        return record_from_json(read_json(path))
    except (ValueError, RecursionError):
        return None


def bus_bandwidth(record: AllReduceRecord) -> float | None:
    """The highest bus bandwidth in an all-reduce record, in bytes/sec as nccl-tests defines it."""
    rates = [point.bus_bandwidth for point in record.points]
    return max((rate for rate in rates if rate is not None), default=None)


def main_result_text(record: Record) -> str:
    """The main result of a successful process as text for a progress line: "ok 512 images/sec"."""
    if isinstance(record, AllReduceRecord):
        rate = bus_bandwidth(record)
        return "ok" if rate is None else f"ok up to {billions(rate)} GB/s"
    speed = throughput(record)
    return "ok" if speed is None else f"ok {number(speed)} images/sec"


def _failure(
    ended: ProcessResult, document: Mapping[str, Any] | None, defect: str | None, tail: str
) -> tuple[str, ErrorInfo, str] | None:
    """The status, the error and `ProcessResult.lost` of a failed process; None if the process
    succeeded.
    """
    if ended.timed_out:
        text = f"killed after {ended.seconds:.0f} s; {last_output_text(tail)}"
        return "timed_out", _error_info("TimedOut", text), "ended by its time-out"
    if ended.error is not None:
        return "failed", _error_info("NotStarted", ended.error), ""
    if ended.code is None:
        text = f"{exit_sentence('the process', None)}; {last_output_text(tail)}"
        return "killed", _error_info("Killed", text), f"killed {exit_manner(None)}"
    if ended.code < 0:
        return _failure_by_signal(-ended.code, ended.oom_kills, tail)
    if document is not None and document["status"] == "failed":
        error = ErrorInfo(**{k: str(document["error"][k]) for k in ("type", "message")})
        full = is_out_of_memory(error.type, error.message)
        return ("out_of_memory" if full else "failed"), error, ""
    is_interrupted = document is not None and document["status"] == "interrupted"
    # A process that is interrupted early writes no record: only its exit code shows the interrupt.
    if is_interrupted or ended.code == ExitCode.INTERRUPTED:
        error = _error_info("Interrupted", "interrupted by an external signal")
        return "killed", error, "interrupted by a signal"
    if ended.code != 0:
        text = f"ended {exit_manner(ended.code)}; {last_output_text(tail)}"
        return "failed", _error_info("ExitStatus", text), ""
    if defect is not None:
        return "failed", _error_info("UnusableRecord", defect), ""
    return None


def _failure_by_signal(code: int, oom_kills: int, tail: str) -> tuple[str, ErrorInfo, str]:
    manner = exit_manner(-code)
    if text := out_of_memory_reason(code, oom_kills, tail):
        lost = "killed by the OOM killer (SIGKILL)" if code == signal.SIGKILL else ""
        return "out_of_memory", _error_info("OutOfMemory", text), lost
    text = f"ended {manner}; {fatal_message(tail) or last_output_text(tail)}"
    lost = f"{'killed' if code == signal.SIGKILL else 'ended'} {manner}"
    return "killed", _error_info("Killed", text), lost if code in _SENT_FROM_OUTSIDE else ""


def _read_record(
    command: BenchmarkCommand,
) -> tuple[dict[str, Any] | None, str | None, bytes | None]:
    """Reads the record that a child process has written.

    Returns the record, the reason why it cannot be used, and the invalid content of the file.
    Missing values are None.
    """
    try:
        data = command.record.read_bytes()
    except FileNotFoundError:
        return None, "no record was written", None
    except OSError as error:
        return None, f"the record cannot be read: {error.strerror}", None
    try:
        document = parse_json(data)
        record = record_from_json(document)
        if record.kind != command.blank.kind:
            raise ValueError(f"of the kind {record.kind!r}")
    except RecursionError:
        return None, "not a valid record: nested too deeply", data
    except ValueError as error:
        return None, f"not a valid record: {error}", data
    return document, None, None


def _error_info(kind: str, message: str) -> ErrorInfo:
    return ErrorInfo(type=kind, message=" ".join(message.split())[:_MESSAGE_LENGTH])


def full_disk_error_line(log: Path) -> str:
    """An error message if no space is left on the disk with a process's log; otherwise ""."""
    with contextlib.suppress(OSError):
        if not os.statvfs(log.parent).f_bavail:
            return f"{log.parent}: {os.strerror(errno.ENOSPC)}"
    return ""


def last_output_text(tail: str) -> str:
    """Quotes the last line of a process's output, given the end of its log, for error messages."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    # Ignores the lines "at /FILE", which cnnbench prints after an error message of a plug-in.
    lines = [line for line in lines if not line.startswith(notice_line("at /"))]
    return f"last log line: {lines[-1]}" if lines else "no output"
