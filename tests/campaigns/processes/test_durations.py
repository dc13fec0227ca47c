"""How long a campaign takes, while it runs (campaign.py)."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes.campaign import Campaign, ProcessRequest, RequestBatch
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.sweep.run import SWEEP


def test_time_left_is_of_what_was_measured(tmp_path, make_record):
    seconds = iter((10.0, 20.0, 3.0, 1.0))

    class Timed(Campaign):
        def run(self, *_: object) -> list[ProcessResult]:
            return [ProcessResult(0, next(seconds), status="ok", document=make_record().to_dict())]

    campaign = Timed(ChildProcessReporter(said := io.StringIO()), cool_down=0.001)
    campaign.add_process_seconds("old", 5.0)
    command: Any = SimpleNamespace(record=tmp_path / "x.part", log=tmp_path / "x.log")

    def policy(folder):
        for place, (key, then) in enumerate((("a", "abca"), ("a", "bca"), ("b", "ca"), ("c", ""))):
            request = ProcessRequest(name=str(place), label="x", command=command, key=key)
            keys = [*then, "old"]
            yield RequestBatch(folder=folder, requests=[request], later_keys=keys, timeout=1)

    with ResultsFolder(SWEEP, tmp_path) as folder:
        campaign.run_requests(policy(folder))
    # What is not known yet takes as long as the others of this campaign did.
    etas = [line.rpartition(" ETA ")[2] for line in said.getvalue().splitlines()]
    assert etas == ["45 s", "50 s", "31 s", "5 s"]
