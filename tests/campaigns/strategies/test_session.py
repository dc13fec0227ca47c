"""Rounds of processes that only write records."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.strategies.plan import make_plan
from cnnbench.campaigns.strategies.session import CaseRuns, StrategiesFolder, StrategiesSession
from cnnbench.flags import FLAGS, parse_flags
from cnnbench.judge.compare import load_records
from cnnbench.records.strategies import ONE_TOWER

MODES = ("parameter_server", "replicated")


@pytest.fixture
def run(tmp_path: Path, fake_python: str, quick_processes: None, monkeypatch: pytest.MonkeyPatch):
    """Runs some rounds; returns results by name, and the order of the processes."""

    def run(
        rounds: int = 2, steps: int = 0, **say: object
    ) -> tuple[dict[str, CaseRuns], list[str]]:
        trace = tmp_path / "trace"
        fake = {"parent": os.getpid(), "trace": str(trace), **say}
        monkeypatch.setenv("FAKE", json.dumps(fake))
        given = parse_flags(["--model=lenet", "--num_gpus=2", "--batch_size=4"], FLAGS)
        plan = make_plan(given, MODES, on_gpu=False, weights_steps=steps)
        with StrategiesFolder(str(tmp_path / "results"), plan) as folder:
            session = StrategiesSession(
                plan,
                folder,
                Campaign(Reporter(io.StringIO()), grace=1.0),
                rounds=rounds,
                seed=3,
                timeout=60.0,
                python=fake_python,
            )
            session.run()
        return {one.case.name: one for one in session.cases}, trace.read_text().split()

    return run


def test_every_case_runs_once_per_round(run, tmp_path: Path) -> None:
    results, order = run(rounds=4)
    cases = (ONE_TOWER, *MODES)
    for at in range(4):
        assert sorted(order[3 * at : 3 * at + 3]) == sorted(f"{name}-r{at + 1}" for name in cases)
    assert (
        len({tuple(name.rsplit("-", 1)[0] for name in order[i : i + 3]) for i in (0, 3, 6, 9)}) > 1
    )
    for name, result in results.items():
        assert sorted(result.records) == [1, 2, 3, 4]
        assert result.checkpoint is None
        records = load_records([tmp_path / "results" / name]).records
        assert [one.run_id for one in records] == [r.run_id for r in result.records.values()]


def test_weights_are_trained_first_in_processes_that_leave_no_record(run, tmp_path: Path) -> None:
    results, order = run(rounds=1, steps=3)
    assert order[:2] == [f"{mode}-weights" for mode in MODES]
    assert len(order) == 5
    for mode in MODES:
        assert results[mode].checkpoint == tmp_path / "results" / "checkpoints" / mode
        assert sorted(results[mode].records) == [1]
        (record,) = load_records([tmp_path / "results" / mode]).records
        assert record.config["train_dir"] is None
    assert results[ONE_TOWER].checkpoint is None


def test_a_case_that_fails_is_recorded_and_not_run_again(run, tmp_path: Path) -> None:
    results, order = run(rounds=3, fail=["replicated-r2"], message="no good")
    assert results["replicated"].problem == "no good"
    assert sorted(results["replicated"].records) == [1]
    assert "replicated-r3" not in order
    assert sorted(results["parameter_server"].records) == [1, 2, 3]
    (failed,) = [
        record
        for record in load_records([tmp_path / "results" / "replicated"]).records
        if record.status == "failed"
    ]
    assert failed.error.message == "no good"


def test_a_mode_whose_weights_cannot_be_trained_is_not_measured(run, tmp_path: Path) -> None:
    results, order = run(steps=3, fail=["replicated-weights"], message="replicas diverged")
    assert results["replicated"].problem == "replicas diverged"
    assert results["replicated"].checkpoint is None
    assert not any(name.startswith("replicated-r") for name in order)
    (failed,) = load_records([tmp_path / "results" / "replicated"]).records
    assert failed.status == "failed"
