"""Ended processes: how they ended, and what they left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cnnbench.records.run import RunRecord


@dataclass(frozen=True)
class Ended:
    """The end of a process; with the record of a measuring one, see `outcome.judge`.

    Attributes:
      code: exit status; the negative number of the signal that ended it; None if it was
        lost with its guard.
      seconds: wall time; of processes that stepped in turn, the share of each in the time of all.
      timed_out: whether it was ended for taking too long.
      max_rss_bytes: most memory it held, None if unknown.
      oom_kills: processes that the kernel's OOM killer ended meanwhile.
      error: why it could not be started, or None.
      status: ok, failed, timed_out, killed or out_of_memory; only "ok" is a measurement. "" of a
        process that does not measure.
      message: why it is not ok, in one line that is never empty; "" if it is ok.
      lost: how a signal from outside or its time-out ended it, in words that complete "it was";
        "" if it ended by itself.
      document: its record as JSON values; of a process that left none, one with the error.
      unusable: what it wrote in place of a record, or None.
    """

    code: int | None
    seconds: float
    timed_out: bool = False
    max_rss_bytes: int | None = None
    oom_kills: int = 0
    error: str | None = None
    status: str = ""
    message: str = ""
    lost: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    unusable: bytes | None = None

    @cached_property
    def record(self) -> RunRecord:
        """The record of a run, decoded."""
        return RunRecord.from_dict(self.document)
