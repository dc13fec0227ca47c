"""Runs all cases in turn, a fresh process for each, and keeps their records."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnnbench.ab.side import ProcessResult, Side, SideFlags, run_once
from cnnbench.errors import FlagError
from cnnbench.processes.child import GRACE_SECONDS
from cnnbench.processes.outcome import headline
from cnnbench.processes.results_dir import unusable, write_durably
from cnnbench.records.codec import to_text
from cnnbench.records.run import RunRecord
from cnnbench.strategies.plan import StrategiesPlan, StrategyCase
from cnnbench.text.progress import Reporter

_CHECKPOINTS, _LOGS = "checkpoints", "logs"


@dataclass
class CaseResult:
    """What the processes of one case have given.

    Attributes:
      case: the case.
      records: those that went well, by round, from 1.
      problem: why a process failed; none of the case has run since.
      checkpoint: folder with the weights to compare; None if there are none.
    """

    case: StrategyCase
    records: dict[int, RunRecord] = field(default_factory=dict)
    problem: str = ""
    checkpoint: Path | None = None


class Session:
    """One run of the command.

    Args:
      plan: what to measure.
      results: a new or empty folder; DIR/MODE gets a record per round.
      rounds: processes of each case.
      seed: of the order within rounds.
      timeout: seconds for each process.
      reporter: progress.
      facts: about this machine, for processes that leave no record.
      grace: seconds between SIGTERM and SIGKILL.
      python: an interpreter; the one that runs this if None.

    Raises:
      FlagError: the folder cannot be used.
    """

    def __init__(
        self,
        plan: StrategiesPlan,
        results: str,
        *,
        rounds: int,
        seed: int,
        timeout: float,
        reporter: Reporter,
        facts: Mapping[str, Any] | None = None,
        grace: float = GRACE_SECONDS,
        python: str | None = None,
    ) -> None:
        self._plan = plan
        self.folder = Path(results)
        self._rounds = rounds
        self._coins = random.Random(seed)
        self._timeout = timeout
        self._reporter = reporter
        self._facts = facts or {}
        self._grace = grace
        self._python = python
        self._done, self._seconds = 0, 0.0
        self._results = {case.name: CaseResult(case) for case in plan.cases}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise FlagError("results", results, "is not empty; name another folder")
            for name in (*self._results, _CHECKPOINTS, _LOGS):
                (self.folder / name).mkdir()
        except OSError as error:
            raise unusable(results, error) from None

    def run(self) -> tuple[CaseResult, ...]:
        """Trains the weights to compare, then runs every case once per round, in random order.

        A case that fails is not run again.

        Returns:
          A result per case, in the order of the plan.

        Raises:
          KeyboardInterrupt: the process is gone; earlier records are in the folder.
          BenchmarkError: results cannot be written, or no process can be started.
        """
        results = list(self._results.values())
        training = [one for one in results if one.case.weights_flags]
        total = len(training) + self._rounds * len(results)
        for result in training:
            self._train(result, total)
        for round_ in range(1, self._rounds + 1):
            due = list(results)
            self._coins.shuffle(due)
            for result in due:
                if not result.problem:
                    self._measure(result, round_, total)
        return tuple(results)

    def discard_checkpoints(self) -> None:
        """Removes the weights, which nobody needs once they are compared."""
        shutil.rmtree(self.folder / _CHECKPOINTS, ignore_errors=True)

    def _train(self, result: CaseResult, total: int) -> None:
        """The process whose weights are compared; its record is kept if it fails."""
        name = f"{result.case.name}-weights"
        folder = self.folder / _CHECKPOINTS / result.case.name
        flags = (*result.case.weights_flags, f"--train_dir={folder}")
        done = self._process(result, name, flags, total, lambda record: "ok")
        if done.status == "ok":
            result.checkpoint = folder
        else:
            self._keep(result, "weights", done)

    def _measure(self, result: CaseResult, round_: int, total: int) -> None:
        name = f"{result.case.name}-r{round_}"
        done = self._process(result, name, result.case.flags, total, headline)
        self._keep(result, f"r{round_}", done)
        if done.status == "ok":
            result.records[round_] = done.record

    def _process(
        self,
        result: CaseResult,
        name: str,
        flags: tuple[str, ...],
        total: int,
        said: Callable[[RunRecord], str],
    ) -> ProcessResult:
        index = self._done + 1
        self._reporter.started(index, total, name)
        pending = self.folder / result.case.name / f"{name}.part"
        done = run_once(
            Side(flags=flags, python=self._python),
            pending,
            self.folder / _LOGS / f"{name}.log",
            self._timeout,
            facts=self._facts,
            like=SideFlags(result.case.resolved.config, result.case.resolved.explicit_flags),
            grace=self._grace,
        )
        pending.unlink(missing_ok=True)
        result.problem = done.problem
        self._done = index
        self._seconds += done.seconds
        left = (total - index) * self._seconds / index
        text = done.problem or said(done.record)
        self._reporter.ended(index, total, name, text, done.seconds, left)
        return done

    def _keep(self, result: CaseResult, stem: str, done: ProcessResult) -> None:
        target = self.folder / result.case.name / f"{stem}.json"
        write_durably(target, to_text(done.document).encode("ascii"))
