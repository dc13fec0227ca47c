"""Runs jobs with different numbers of workers, and a process without communication.

A step without communication is measured in one process whose towers do not exchange gradients. It
uses as many processors as one process of the largest job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import JobLayout, TaskCommand, flags_to_arguments
from cnnbench.campaigns.processes.identity import (
    CampaignIdentity,
    ConfigurationIdentity,
    identity_values,
)
from cnnbench.campaigns.processes.requests import ProcessRequests, make_rounds, run_process
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder
from cnnbench.campaigns.scaling.points import WEAK
from cnnbench.errors import BenchmarkError
from cnnbench.plan import RunPlan
from cnnbench.records.files import OutputFile, check_outputs
from cnnbench.records.run import RunRecord

_A_DAY = 86400.0

SCALING = CampaignKind(
    command="scaling",
    noun="measurement",
    shared=True,
    log="{}/command.log",
    pending="{}/command.pending",
)
"""Kind of campaign for scaling. Each job and repeat has a record and a folder of logs."""


@dataclass(frozen=True, kw_only=True)
class ScalingJobs:
    """Jobs with different numbers of workers, whose speeds are measured and compared.

    Attributes:
      layouts, chiefs: processes of each job, and plan of its chief, by number of workers.
      command: the command that all processes run.
      kind: "weak" or "strong".
      towers: number of towers of each worker; None if not set.
      cores: number of processors for each process; 0 if all processes share all processors.
    """

    layouts: Mapping[int, JobLayout]
    chiefs: Mapping[int, RunPlan]
    command: TaskCommand
    kind: str = WEAK
    towers: int | None = None
    cores: int = 0

    def identity(self, facts: Mapping[str, Any]) -> CampaignIdentity:
        """The identity that a resumed scaling measurement must match. Repeats may be added."""
        return CampaignIdentity(
            plans={
                f"{n} workers": ConfigurationIdentity(
                    identity_values(plan.identity),
                    plan.to_json(),
                    parts=plugins.files_used_by_plugins(plan.config),
                )
                for n, plan in self.chiefs.items()
            },
            facts=facts,
            policy={
                **{"name": "scaling", "towers": self.towers, "shared": not self.cores},
                **({} if self.kind == WEAK else {"kind": self.kind}),
            },
        )

    def requests(
        self, folder: ResultsFolder, repeats: int
    ) -> ProcessRequests[dict[int, list[RunRecord]]]:
        """Requests the processes of all jobs, and returns their records by number of workers.

        Number 0 means one process without communication.
        """
        records: dict[int, list[RunRecord]] = {n: [] for n in (0, *self.layouts)}
        # The jobs are interleaved, so that a slowdown of the machine affects all jobs equally.
        rounds = make_rounds(records, repeats, seed=None)
        targets = {}
        for count, repeat in rounds.order:
            name = f"workers-{count}" if count else "alone"
            targets[count, repeat] = folder.folder / f"{name}-{repeat}.json"
        outputs = [OutputFile("results", str(path), RunRecord.kind) for path in targets.values()]
        check_outputs(outputs)
        for count, repeat, later_keys in rounds:
            target = targets[count, repeat]
            name = target.stem
            logs = folder.log_path(name).parent
            side = self._job_side(folder.unfinished_path(logs), count)
            request = make_process_request(
                folder, name, side, key=(count, False), target=target, leaves=logs
            )
            ended = yield from run_process(folder, request, _A_DAY, later_keys)
            if ended.status != "ok":
                raise BenchmarkError(f"{name} failed; its logs are in {logs}")
            records[count].append(ended.record)
        return records

    def _job_side(self, logs: Path, count: int) -> AbSide:
        """Creates an `AbSide`, which describes the command of a job with `count` workers.

        With 0 workers, this is a single process on the processors of one worker.
        """
        chief = self.chiefs.get(count) or next(iter(self.chiefs.values()))
        side = AbSide(flags=self.command.single_process_flags(chief.params.num_gpus))
        layout = self.layouts.get(count, JobLayout())
        if count:
            own = {"log_dir": logs, "towers": self.towers, "affinity": self.cores > 0}
            options = flags_to_arguments({name: value for name, value in own.items() if value})
            side = AbSide(flags=self.command.words, layout=layout._replace(options=options))
        free = sorted(os.sched_getaffinity(0))[: self.cores * layout.size]
        return replace(side, resolved=ResolvedRun(config=chief.to_json()), cores=free or None)
