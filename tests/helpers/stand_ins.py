"""Campaigns whose processes never start: a function says how each of them ends."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.records.run import ErrorInfo, RunRecord


class StandIns(Campaign):
    """Runs nothing.

    Args:
      end: returns how the process of a command ends.
      reporter: what says how far the campaign is; by default it writes to `said`.
      **options: of the campaign.
    """

    def __init__(
        self,
        end: Callable[[BenchmarkCommand], ProcessResult],
        reporter: ChildProcessReporter | None = None,
        **options: Any,
    ) -> None:
        self.said = io.StringIO()
        super().__init__(reporter or ChildProcessReporter(self.said), **options)
        self._end = end
        self.started: list[BenchmarkCommand] = []

    @property
    def names(self) -> list[str]:
        """The names of the processes that have run, in their order."""
        return [one.log.stem for one in self.started]

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        results = []
        for command in commands:
            self.started.append(command)
            results.append(self._end(command))
        return results


def value_of(command: BenchmarkCommand, flag: str, default: str = "") -> str:
    """The last value of a flag in a command line."""
    values = [word.partition("=")[2] for word in command.words if word.startswith(f"--{flag}=")]
    return values[-1] if values else default


def well(record: RunRecord, seconds: float = 1.0) -> ProcessResult:
    """The end of a process that left this record."""
    return ProcessResult(0, seconds, status="ok", document=record.to_dict())


def failed(record: RunRecord, message: str = "no good", seconds: float = 1.0) -> ProcessResult:
    """The end of a process whose record says that it failed."""
    error = ErrorInfo(type="BenchmarkError", message=message)
    document = replace(record, status="failed", error=error).to_dict()
    return ProcessResult(4, seconds, status="failed", message=message, document=document)
