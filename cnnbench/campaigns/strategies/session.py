"""Execution of all cases in turn, a fresh process for each, and storage of their records."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cnnbench.campaigns.ab.side import Side, measuring
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.outcome import headline
from cnnbench.campaigns.processes.results_dir import LOGS, ResultsFolder
from cnnbench.campaigns.strategies.plan import StrategiesPlan, StrategyCase
from cnnbench.records.run import RunRecord
from cnnbench.records.strategies import StrategiesDocument

_CHECKPOINTS = "checkpoints"
_SUMMARY = "strategies.json"


@dataclass
class CaseRuns:
    """The processes of one case: rounds by number, from 1, and the training of weights.

    `checkpoint` is the folder with the weights; None if there are none.
    """

    case: StrategyCase
    rounds: dict[int, Ended] = field(default_factory=dict)
    weights: Ended | None = None
    checkpoint: Path | None = None

    @property
    def records(self) -> dict[int, RunRecord]:
        """Maps the number of each successful round to its record."""
        return {at: one.record for at, one in self.rounds.items() if one.status == "ok"}

    @property
    def problem(self) -> str:
        """The reason of a failed process, after which the case is not run again; else ""."""
        ended = [one for one in (self.weights, *self.rounds.values()) if one is not None]
        return next((one.message for one in ended if one.status != "ok"), "")


class StrategiesFolder(ResultsFolder):
    """A new results directory: DIR/MODE has a record per round, DIR/strategies.json the rows."""

    def __init__(self, folder: str, plan: StrategiesPlan) -> None:
        names = (one.name for one in plan.cases)
        super().__init__(folder, folders=(*names, _CHECKPOINTS, LOGS))
        self.checkpoints = self.folder / _CHECKPOINTS

    def summarise(self, document: StrategiesDocument) -> None:
        """Writes the rows, for reports."""
        self.write(self.folder / _SUMMARY, document.to_json().encode("ascii"))

    def __exit__(self, *error: object) -> None:
        """Removes the weights, which are not needed after the comparison."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        super().__exit__(*error)


class StrategiesSession:
    """One run of the command; the seed is that of the order within rounds, time-outs in seconds."""

    def __init__(
        self,
        plan: StrategiesPlan,
        results: StrategiesFolder,
        campaign: Campaign,
        *,
        rounds: int,
        seed: int,
        timeout: float,
    ) -> None:
        self._results = results
        self._campaign = campaign
        self._rounds = rounds
        self._coins = random.Random(seed)
        self._timeout = timeout
        self.cases = tuple(CaseRuns(case) for case in plan.cases)

    @property
    def progress(self) -> str:
        """Number of successful processes of the rounds."""
        done = sum(len(one.records) for one in self.cases)
        return f"{done} of {self._rounds * len(self.cases)} processes measured"

    def run(self) -> None:
        """Trains the weights to compare, then runs every case once per round, in random order.

        A case that fails is not run again. On KeyboardInterrupt earlier results are kept.
        """
        training = [one for one in self.cases if one.case.weights_flags]
        due: list[tuple[CaseRuns, int]] = []
        for number in range(1, self._rounds + 1):
            shuffled = list(self.cases)
            self._coins.shuffle(shuffled)
            due += ((one, number) for one in shuffled)
        self._campaign.expect(f"{one.case.name} weights" for one in training)
        self._campaign.expect(one.case.name for one, _ in due)
        for one in training:
            self._train(one)
        for one, number in due:
            if not one.problem:
                self._measure(one, number)

    def _train(self, runs: CaseRuns) -> None:
        """Trains the weights to compare; the record is kept only if the process fails."""
        folder = self._results.checkpoints / runs.case.name
        flags = (*runs.case.weights_flags, f"--train_dir={folder}")
        runs.weights = self._process(runs, "weights", flags, lambda record: "ok")
        if runs.problem:
            self._keep(runs, "weights", runs.weights)
        else:
            runs.checkpoint = folder

    def _measure(self, runs: CaseRuns, number: int) -> None:
        ended = self._process(runs, f"r{number}", runs.case.flags, headline)
        self._keep(runs, f"r{number}", ended)
        runs.rounds[number] = ended

    def _process(
        self,
        runs: CaseRuns,
        stem: str,
        flags: tuple[str, ...],
        said: Callable[[RunRecord], str],
    ) -> Ended:
        name = f"{runs.case.name}-{stem}"
        self._campaign.begin(name)
        pending = self._results.folder / runs.case.name / f"{name}.part"
        command = measuring(
            Side(flags=flags, resolved=runs.case.resolved),
            pending,
            self._results.log(name),
            facts=self._campaign.facts,
        )
        (ended,) = self._campaign.run([command], self._timeout)
        pending.unlink(missing_ok=True)
        if ended.status != "ok":
            self._campaign.drop(runs.case.name)
        self._campaign.end(name, ended.message or said(ended.record), ended.seconds)
        return ended

    def _keep(self, runs: CaseRuns, stem: str, ended: Ended) -> None:
        target = self._results.folder / runs.case.name / f"{stem}.json"
        self._results.keep(ended.document, target)
