"""Requests the processes of a comparison of modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.processes.identity import CampaignIdentity, configuration_identity
from cnnbench.campaigns.processes.requests import (
    ProcessRequest,
    ProcessRequests,
    Rounds,
    make_rounds,
    run_process,
)
from cnnbench.campaigns.processes.results_dir import LOGS, CampaignKind, ResultsFolder
from cnnbench.campaigns.strategies.plan import StrategyCase
from cnnbench.campaigns.strategies.weights import CHECKPOINTS, stored_weight_distances
from cnnbench.records.run import RunRecord


def campaign_identity(
    cases: Sequence[StrategyCase], facts: Mapping[str, Any], weights_steps: int, seed: int
) -> CampaignIdentity:
    """The identity that a resumed comparison of modes must match. Rounds may be added."""
    names = [case.name for case in cases]
    return CampaignIdentity(
        plans={case.name: configuration_identity(case.resolved) for case in cases},
        facts=facts,
        policy={"name": "modes", "modes": names, "weights_steps": weights_steps, "seed": seed},
    )


STRATEGIES = CampaignKind(command="strategies", noun="comparison", subfolders=(LOGS,))
"""Kind of campaign for comparisons of modes. DIR/MODE contains a record per round, and
DIR/strategies.json contains the rows.
"""


class StrategiesSession:
    """Requests the processes of `cnnbench strategies`, and contains their results.

    Attributes:
      records: records of successful rounds, by case and round number.
      problems: by case, why a process failed. After a failure, the case is not run again.
      checkpoints: by case, folder with the weights to compare.
    """

    def __init__(self, cases: Sequence[StrategyCase], results: ResultsFolder) -> None:
        self.cases = cases
        self._results = results
        self.records: dict[str, dict[int, RunRecord]] = {case.name: {} for case in cases}
        self.problems: dict[str, str] = {}
        self.checkpoints: dict[str, Path] = {}

    def requests(self, repeats: int, seed: int, timeout: float) -> ProcessRequests[None]:
        """Requests all processes: trainings whose weights are compared, then rounds of all modes.

        Each round runs every mode once, in random order. `timeout` is in seconds per process.
        """
        cases = {case.name: case for case in self.cases}
        known = stored_weight_distances(self._results) is not None
        trained = [(case.name, 0) for case in self.cases if case.weights_flags and not known]
        rounds = Rounds([*trained, *make_rounds(cases, repeats, seed).order])
        for name, number, later_keys in rounds:
            request = self._case_request(cases[name], number)
            ended = yield from run_process(self._results, request, timeout, later_keys)
            if ended.message:
                self.problems[name] = ended.message
                rounds.leave_out(name)
            elif number:
                self.records[name][number] = ended.record
            else:
                self.checkpoints[name] = self._results.folder / CHECKPOINTS / name

    def _case_request(self, case: StrategyCase, number: int) -> ProcessRequest:
        """Creates the request for a mode's process in round `number` (from 1).

        Number 0 is the process that trains weights for the comparison. Its record is only stored if
        it fails.
        """
        stem, flags, checkpoint = f"r{number}", case.flags, None
        if not number:
            checkpoint = self._results.folder / CHECKPOINTS / case.name
            stem, flags = "weights", dict(case.weights_flags)
            flags["train_dir"] = str(self._results.unfinished_path(checkpoint))
        path = self._results.folder / case.name / f"{stem}.json"
        return make_process_request(
            self._results,
            f"{case.name}-{stem}",
            AbSide(resolved=case.resolved).with_added_flags(flags),
            key=(case.name, not number),
            target=path if number else None,
            failed=path,
            leaves=checkpoint,
        )
