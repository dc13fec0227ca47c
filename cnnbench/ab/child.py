"""Runs one process of a side to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.ab.side import Side
from cnnbench.errors import DataError, UsageError
from cnnbench.processes.child import GRACE_SECONDS, execute
from cnnbench.processes.commands import resolve
from cnnbench.processes.outcome import Attempt, judge
from cnnbench.records.run import RunRecord


@dataclass(frozen=True)
class Sample:
    """What a process measured.

    Attributes:
      document: its record as JSON values; of a process that left none, one that says why.
      record: the same.
      status: ok; what else there is, see `Outcome`, is no measurement.
      problem: why it is none, in one line; "" if it is ok.
      seconds: wall time.
    """

    document: dict[str, Any]
    record: RunRecord
    status: str
    problem: str
    seconds: float


def run_once(
    side: Side,
    record: Path,
    log: Path,
    timeout: float,
    *,
    facts: Mapping[str, Any] | None = None,
    like: RunRecord | None = None,
    grace: float = GRACE_SECONDS,
) -> Sample:
    """Runs a process of a side; never raises for what it does.

    Args:
      side: what to start.
      record: file that the process writes; what it holds afterwards is the process's own.
      log: takes its output and errors.
      timeout: seconds until it and all its children are ended.
      facts: about this machine, for the record of a process that leaves none.
      like: an earlier run of the side, for the same.
      grace: seconds between SIGTERM and SIGKILL.

    Raises:
      KeyboardInterrupt: the process has been ended.
      BenchmarkError: no process can be started.
    """
    started = datetime.now(timezone.utc)
    finished = execute(
        side.command(record.absolute()),
        log,
        timeout,
        grace,
        environment=side.variables,
        folder=side.checkout,
    )
    config, explicit = _flags(side, like)
    outcome = judge(
        Attempt(
            kind="run",
            command=("cnnbench", "run", *side.flags),
            config=config,
            explicit_flags=explicit,
            environment=facts or {},
            started_at=started,
            record=record,
            log=log,
            finished=finished,
        )
    )
    return Sample(
        document=outcome.document,
        record=RunRecord.from_dict(outcome.document),
        status=outcome.status,
        problem=outcome.message,
        seconds=finished.seconds,
    )


def _flags(side: Side, like: RunRecord | None) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What the flags came to before; else as far as this cnnbench understands them."""
    if like is not None:
        return like.config, like.explicit_flags
    with contextlib.suppress(UsageError, DataError):
        resolved = resolve("run", side.flags)
        return resolved.config, resolved.explicit_flags
    return {}, ()
