"""Records of runs that never ran: of a given speed, machine and outcome."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone

import pytest

from cnnbench.params import Params
from cnnbench.record import (
    Batch,
    ErrorInfo,
    Measured,
    ModelInfo,
    Placement,
    RunRecord,
    StartupSeconds,
)
from cnnbench.record_codec import encode

_ENVIRONMENT = {
    "hostname": "box",
    "cpu_model": "Fast CPU",
    "logical_cpus": 2,
    "tensorflow_version": "2.21.0",
    "git_commit": "a" * 40,
}


class Runs:
    """Makes records; each has another run_id and a later start than the one before."""

    def __init__(self):
        self._numbers = itertools.count()

    def __call__(
        self,
        images_per_sec=100.0,
        *,
        environment=None,
        error=None,
        status=None,
        flags=None,
        **parts,
    ):
        """A run whose every step has the speed given.

        Args:
          images_per_sec: of every step; None for a run without timed steps.
          environment: facts to replace; None as a value removes one.
          error: (type, message) of a failed run.
          status: "ok" or "failed" by itself.
          flags: parameters to replace.
          **parts: fields of the record to replace.
        """
        number = next(self._numbers)
        batch = Batch(per_device=8, global_=8)
        config = {
            **encode(Params().as_dict()),
            "batch_size": 8,
            "device": "cpu",
            "data_name": "imagenet",
        }
        config |= flags or {}
        if "batch_size" in (flags or {}):
            batch = Batch(per_device=config["batch_size"], global_=config["batch_size"])
        steps = () if images_per_sec is None else (batch.global_ / images_per_sec,) * 3
        facts = {**_ENVIRONMENT, **(environment or {})}
        start = datetime(2026, 11, 20, tzinfo=timezone.utc) + timedelta(minutes=number)
        values = {
            "run_id": f"run{number}",
            "started_at": start.isoformat(),
            "status": status or ("failed" if error else "ok"),
            "error": ErrorInfo(type=error[0], message=error[1]) if error else None,
            "command": ("cnnbench", "--model=lenet"),
            "config": {**config, "model": (flags or {}).get("model", "lenet")},
            "model": ModelInfo(
                name="lenet",
                parameters=10,
                trainable_parameters=10,
                forward_flops_per_image=20,
                training_flops_per_image=60,
            ),
            "placement": Placement(
                device="cpu",
                devices=("/device:CPU:0",),
                num_towers=1,
                num_workers=1,
                variable_update="parameter_server",
            ),
            "batch": batch,
            "step_seconds": steps,
            "losses": (1.0,) * len(steps),
            "environment": {name: fact for name, fact in facts.items() if fact is not None},
        }
        return RunRecord(**{**values, **parts})

    def of(self, *speeds, **parts):
        """A run for each speed."""
        return [self(speed, **parts) for speed in speeds]

    def with_memory(self, *mebibytes, **parts):
        """A run for each peak memory, all of one speed."""
        return [
            self(measured=Measured(peak_memory_bytes=int(size * 2**20)), **parts)
            for size in mebibytes
        ]

    def with_startup(self, *seconds, **parts):
        """A run for each start-up time, a second of it import and a second the first step."""
        return [
            self(
                startup_seconds=StartupSeconds(import_=1.0, build=total - 2.0, first_step=1.0),
                **parts,
            )
            for total in seconds
        ]


@pytest.fixture
def runs():
    return Runs()
