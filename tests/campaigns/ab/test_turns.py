"""Which sides can step in turn.

Tests cnnbench/campaigns/ab/pairing.py.
"""

from __future__ import annotations

import dataclasses

import pytest

from cnnbench.campaigns.ab.pairing import why_not_interleavable
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.resolved import _why_sequential
from cnnbench.flags import Params
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.plan import make_plan

GIB = 2**30
JOB = {"worker_hosts": "a:1,b:2", "variable_update": "collective_all_reduce"}


@pytest.fixture(autouse=True)
def room(monkeypatch, made_up_machine):
    """A machine with enough memory."""
    kilobytes = f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"
    (made_up_machine / "proc/meminfo").write_text(kilobytes)
    name = "cnnbench.run.driver.estimates.least_free_gpu_memory"
    monkeypatch.setattr(name, lambda *flags: MemoryCapacity(total=64 * GIB, available=3 * GIB))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({}, None),
        ({"forward_only": True}, None),
        ({"device": "gpu", "allow_growth": True}, None),
        ({**JOB, "job_name": "worker"}, "several processes"),
        ({"eval": True, "train_dir": "d"}, "steps that can wait"),
        ({"device": "gpu"}, "--allow_growth"),
        ({"device": "gpu", "allow_growth": True, "batch_size": 50_000}, "and 3 GiB is free"),
    ],
)
def test_runs_that_can_and_that_cannot(flags, why):
    found = _why_sequential(make_plan(Params(**{"model": "lenet", "device": "cpu", **flags})))
    assert found is None if why is None else why in found


def test_runs_with_files_cannot():
    plan = make_plan(Params(model="lenet", device="cpu"))
    reading = dataclasses.replace(plan, params=plan.params.replace(data_dir="/data"))
    assert "read ahead" in (_why_sequential(reading) or "")


@pytest.mark.parametrize("place", ["run/runtime", "runtime", None])
def test_another_cnnbench_is_asked(tmp_path, place):
    package = tmp_path / "cnnbench"
    package.mkdir()
    (package / "__init__.py").touch()
    if place is not None:
        (package / place).mkdir(parents=True)
        (package / place / "turns.py").touch()
    found = why_not_interleavable({"a": AbSide(), "b": AbSide(checkout=tmp_path)})
    assert found == (None if place else "side B: its version of cnnbench does not support this")
