"""Whole runs on a machine whose counters the test makes up.

Tests cnnbench/machine/watch.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from short_runs import TINY, run

from cnnbench import BenchmarkCNN, Params, RunRecord
from cnnbench.machine import watch
from cnnbench.machine.counters import MachineCounters
from cnnbench.machine.energy import EnergyCounter
from cnnbench.run.driver.membership import JobMembership

pytestmark = pytest.mark.usefixtures("quick_start")


class Machine:
    """Busy with others while a run starts, robbed by the hypervisor in its loop.

    Attributes:
      peers: the other processes of the run that each sample counts as its own.
    """

    def __init__(self) -> None:
        self.peers: list[list[int]] = []
        self._changes = itertools.cycle([(0, 0, 0), (1, 2, 0), (0, 0, 0), (10, 0, 5)])
        self._now = np.zeros(3)
        self._joules = itertools.cycle([10.0, 50.0])

    def take(self, host: object, clock: object, peers: Collection[int]) -> MachineCounters:
        self.peers.append(list(peers))
        self._now += next(self._changes)
        at, busy, steal = self._now.tolist()
        return MachineCounters(at=at, busy_seconds=busy, steal_seconds=steal, own_seconds=0.0)

    def counters(self, host: object) -> tuple[EnergyCounter, ...]:
        return (EnergyCounter("RAPL package-0", False, lambda: next(self._joules)),)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(watch, "read_counters", made.take)
    monkeypatch.setattr(watch, "gpu_states", lambda host: pytest.fail("asked for a run on a CPU"))
    monkeypatch.setattr(watch, "rapl_counters", made.counters)
    return made


def test_conditions_are_said_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record, _, err = run(result_json=str(path), peak_flops=1e12)
    assert "cnnbench: warning: other processes keep 2.0 of " in err
    assert "(--quiet_conditions=load silences this)\n" in err
    assert "cnnbench: warning: in the timed loop the hypervisor withheld 100% of " in err
    assert record.conditions.before == {"seconds": 1.0, "other_cpus": 2.0, "steal_fraction": 0.0}
    assert record.conditions.during == {"seconds": 10.0, "other_cpus": 0.0, "steal_fraction": 1.0}
    assert [(n.id, n.when) for n in record.conditions.notes] == [
        ("load", "before"),
        ("steal", "during"),
    ]
    assert RunRecord.from_json(path.read_text()) == record
    assert (record.measured.cpu_energy_joules, record.measured.gpu_energy_joules) == (40.0, None)
    summary = record.summary()
    # 4 steps of 2 images.
    assert (summary.energy_joules, summary.joules_per_image) == (40.0, 5.0)
    assert (
        "cnnbench: 40 J in the timed loop, 5.000 J per image (RAPL package-0, all processes)" in err
    )


def test_silenced_conditions_are_recorded_all_the_same() -> None:
    record, _, err = run(quiet_conditions="load,steal")
    assert "warning" not in err
    assert len(record.conditions.notes) == 2


def test_processes_of_the_job_are_not_among_the_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobMembership, "connect", lambda self: [4242])
    run()
    assert machine.peers == [[], *[[4242]] * 4]


def test_energy_of_a_loop_that_pauses_for_evaluations_is_unknown() -> None:
    record, _, err = run(eval_during_training_at_specified_steps=(2,), num_eval_batches=1)
    assert record.measured.cpu_energy_joules is None
    assert record.summary().joules_per_image is None
    assert " J " not in err


def test_evaluation_runs_have_conditions_and_energy_too(tmp_path: Path) -> None:
    run(train_dir=str(tmp_path))
    record, _, _ = run(train_dir=str(tmp_path), eval=True, num_eval_batches=2)
    assert record.conditions.during["steal_fraction"] == 1.0
    assert record.summary().joules_per_image == 10.0
    assert record.warmup_status is None


def test_a_run_that_fails_in_its_loop_records_what_there_was() -> None:
    flags = {"model": "lenet", "data_name": "imagenet", "init_learning_rate": 1e9}
    benchmark = BenchmarkCNN(Params(**{**TINY, **flags, "num_batches": 30}))
    with pytest.raises(RuntimeError, match="loss is"):
        benchmark.run()
    assert benchmark.record.conditions.notes[0].id == "load"
