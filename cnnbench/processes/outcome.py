"""What became of a child: its record if it is sound, else one that says what went wrong."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.processes import child_records
from cnnbench.processes.child import Finished
from cnnbench.records.codec import encode
from cnnbench.records.run import ErrorInfo
from cnnbench.text.escape import plain

_TAIL_BYTES = 8192
_MESSAGE_LENGTH = 500

# What is taken for a lack of memory; anything else is a defect, and a smaller batch no remedy.
_OOM_TYPES = ("ResourceExhaustedError", "MemoryError", "OutOfMemoryError")
_OOM_MESSAGE = re.compile(
    r"^out of memory: |\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCUDNN_STATUS_ALLOC_FAILED\b"
    r"|\bCUBLAS_STATUS_ALLOC_FAILED\b"
)
_OOM_ABORT = "std::bad_alloc"


@dataclass(frozen=True)
class Outcome:
    """The end of one run.

    Attributes:
      status: ok, failed, timed_out, killed or out_of_memory.
      document: the record, as JSON values.
      message: why it is not ok, in one line that is never empty; "" if it is ok.
      unusable: what the child wrote in place of a record, or None.
      max_rss_bytes: most memory it held, None if unknown.
    """

    status: str
    document: dict[str, Any]
    message: str
    unusable: bytes | None = None
    max_rss_bytes: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One child that has ended, and what a record of it must say.

    Attributes:
      kind: "run" or "allreduce", the command.
      command: argv, for the record.
      config, explicit_flags, environment: for a record that the child did not write.
      started_at: when it was started.
      record: file that it was to write.
      log: file of its standard output and error.
      finished: how it ended.
    """

    kind: str
    command: tuple[str, ...]
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...]
    environment: Mapping[str, Any]
    started_at: datetime
    record: Path
    log: Path
    finished: Finished


def judge(attempt: Attempt) -> Outcome:
    """The outcome of a child; never raises for what the child did."""
    finished = attempt.finished
    tail = _tail(attempt.log)
    document, defect, unusable = _read(attempt)
    problem = _problem(attempt, document, defect, tail)
    if problem is None:
        assert document is not None
        return Outcome("ok", document, "", max_rss_bytes=finished.max_rss_bytes)
    status, error = problem
    if document is None:
        document = _failed(attempt, error)
    elif document["status"] != "failed" or finished.timed_out:
        document = {**document, "status": "failed", "error": encode(error)}
    return Outcome(status, document, _said(error), unusable, finished.max_rss_bytes)


def is_out_of_memory(error: ErrorInfo) -> bool:
    """Whether the error of a record is a lack of memory, as the driver reports it."""
    return error.type in _OOM_TYPES or _OOM_MESSAGE.search(error.message) is not None


def _problem(
    attempt: Attempt, document: Mapping[str, Any] | None, defect: str | None, tail: str
) -> tuple[str, ErrorInfo] | None:
    """Status and error of a run that is not ok."""
    finished, said = attempt.finished, _last_line(tail)
    if finished.timed_out:
        return "timed_out", _error("TimedOut", f"killed after {finished.seconds:.0f} s; {said}")
    if finished.error is not None:
        return "failed", _error("NotStarted", finished.error)
    if finished.status is None:
        return "killed", _error("Killed", f"it and its guard were killed; {said}")
    if finished.status < 0:
        return _signalled(-finished.status, finished.oom_kills, tail)
    if document is not None and document["status"] == "failed":
        error = ErrorInfo(**{k: str(document["error"][k]) for k in ("type", "message")})
        return ("out_of_memory" if is_out_of_memory(error) else "failed"), error
    if document is not None and document["status"] == "interrupted":
        return "killed", _error("Interrupted", "somebody else interrupted it")
    if finished.status != 0:
        text = f"exit status {finished.status}; {said}"
        return "failed", _error("ExitStatus", text)
    if defect is not None:
        return "failed", _error("UnusableRecord", defect)
    return None


def _said(error: ErrorInfo) -> str:
    """An error in one line; an exception without a message is told by its type."""
    return plain(error.message) or plain(error.type) or "it does not say why"


def _signalled(number: int, oom_kills: int, tail: str) -> tuple[str, ErrorInfo]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL and oom_kills > 0:
        text = "out of memory: the kernel ended the process (SIGKILL, oom_kill counted)"
        return "out_of_memory", _error("OutOfMemory", text)
    if number == signal.SIGABRT and _OOM_ABORT in tail:
        text = f"out of memory: {name}, {_OOM_ABORT}"
        return "out_of_memory", _error("OutOfMemory", text)
    return "killed", _error("Killed", f"ended by {name}; {_last_line(tail)}")


def _read(attempt: Attempt) -> tuple[dict[str, Any] | None, str | None, bytes | None]:
    """The child's record; or why there is none, and what there is instead."""
    try:
        data = attempt.record.read_bytes()
    except FileNotFoundError:
        return None, "it wrote no record", None
    except OSError as error:
        return None, f"its record cannot be read: {error.strerror}", None
    try:
        document = json.loads(data)
        child_records.parse(document, attempt.kind)
    except RecursionError:
        return None, "what it wrote is not a record: nested too deeply", data
    except ValueError as error:
        return None, f"what it wrote is not a record: {error}", data
    return document, None, None


def _failed(attempt: Attempt, error: ErrorInfo) -> dict[str, Any]:
    """The record of a run that left none."""
    facts = child_records.Facts(
        run_id=uuid.uuid4().hex,
        started_at=attempt.started_at.isoformat(timespec="seconds"),
        command=attempt.command,
        config=attempt.config,
        explicit_flags=attempt.explicit_flags,
        environment=attempt.environment,
    )
    return child_records.failed(attempt.kind, facts, error)


def _error(kind: str, message: str) -> ErrorInfo:
    return ErrorInfo(type=kind, message=" ".join(message.split())[:_MESSAGE_LENGTH])


def _tail(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last_line(tail: str) -> str:
    said = [line.strip() for line in tail.splitlines() if line.strip()]
    return f"its last words: {said[-1]}" if said else "it said nothing"
