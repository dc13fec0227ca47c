"""What reports are made of: records of runs that never ran, in files and in memory."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone

import pytest

from cnnbench.allreduce.record import AllReduceRecord, Copying, Devices, Point
from cnnbench.allreduce.ways import Packing
from cnnbench.params import Params
from cnnbench.record import (
    Batch,
    ConditionNote,
    Conditions,
    ErrorInfo,
    Evaluation,
    Measured,
    ModelInfo,
    Placement,
    RunRecord,
    StartupSeconds,
)
from cnnbench.record_codec import encode
from cnnbench.report import Sources, gather

ENVIRONMENT = {"hostname": "box", "cpu_model": "Fast CPU", "tensorflow_version": "2.21.0"}


class Runs:
    """Makes records; each has another run_id and a later start than the one before."""

    def __init__(self):
        self._numbers = itertools.count()

    def __call__(
        self,
        speed=100.0,
        *,
        devices=1,
        flags=None,
        error=None,
        status=None,
        environment=None,
        steps=24,
        **parts,
    ):
        """A run of the given images/sec, for all devices together.

        Args:
          speed: of the median step; steps before and after it are 10 % off.
          devices: towers, 8 images each.
          flags: parameters to replace.
          error: (type, message) of a failed run.
          status: "ok" or "failed" by itself.
          environment: facts to replace.
          steps: timed ones.
          **parts: fields of the record to replace.
        """
        number = next(self._numbers)
        batch = 8 * devices
        config = {
            **encode(Params().as_dict()),
            "model": "lenet",
            "batch_size": 8,
            "device": "cpu",
            "data_name": "imagenet",
            "num_gpus": devices,
            "num_batches": steps,
            **(flags or {}),
        }
        step = batch / speed
        seconds = tuple(step * (0.9, 1.0, 1.0, 1.1)[i % 4] for i in range(steps))
        start = datetime(2026, 11, 20, tzinfo=timezone.utc) + timedelta(minutes=number)
        values = {
            "run_id": f"run{number}",
            "started_at": start.isoformat(),
            "status": status or ("failed" if error else "ok"),
            "error": ErrorInfo(type=error[0], message=error[1]) if error else None,
            "command": ("cnnbench", "--model=lenet", f"--num_gpus={devices}"),
            "config": config,
            "model": ModelInfo(
                name="lenet",
                parameters=10,
                trainable_parameters=10,
                forward_flops_per_image=2 * 10**9,
                training_flops_per_image=6 * 10**9,
            ),
            "placement": Placement(
                device="cpu",
                devices=tuple(f"/device:CPU:{i}" for i in range(devices)),
                num_towers=devices,
                num_workers=1,
                variable_update=config["variable_update"],
            ),
            "batch": Batch(per_device=8, global_=batch),
            "startup_seconds": StartupSeconds(import_=2.0, build=1.0, first_step=0.5),
            "warmup_step_seconds": (step * 8, step * 1.02),
            "warmup_losses": (2.5, 2.4),
            "step_seconds": seconds,
            "losses": tuple(2.3 - 0.01 * i for i in range(steps)),
            "measured": Measured(
                loop_seconds=sum(seconds) * 1.01,
                loop_images=batch * steps,
                input_wait_seconds=0.0,
                peak_memory_bytes=(500 + 10 * devices) * 2**20,
                peak_flops_per_sec=2e12 * devices,
                peak_flops_source="given",
            ),
            "environment": {**ENVIRONMENT, **(environment or {})},
        }
        return RunRecord(**{**values, **parts})

    def of(self, *speeds, **parts):
        """A run for each speed."""
        return [self(speed, **parts) for speed in speeds]


def reductions(speed=2e9, **parts):
    """A measurement of two algorithms on two sizes, one of which sums wrongly once."""

    def point(spec, size, factor=1.0, **more):
        values = {
            "spec": spec,
            "packing": Packing(),
            "workload": f"{size}",
            "dtype": "float32",
            "bytes": size,
            "tensors": 1,
            "elements": size // 4,
            "devices": 2,
            "seconds": (size / speed / factor,) * 3,
            "checked": size // 2,
        }
        return Point(**{**values, **more})

    values = {
        "run_id": "reduce0",
        "started_at": "2026-11-20T12:00:00+00:00",
        "status": "ok",
        "command": ("cnnbench", "allreduce", "--num_gpus=2"),
        "config": {},
        "placement": Devices(device="cpu", devices=("a", "b")),
        "copies": tuple(
            Copying(bytes=size, devices=2, seconds=(size / 4e9,)) for size in (4096, 65536)
        ),
        "points": (
            point("xring", 4096),
            point("xring", 65536),
            point("pscpu", 4096, 0.5),
            point("pscpu", 65536, 0.5, wrong=3),
        ),
        "environment": ENVIRONMENT,
    }
    return AllReduceRecord(**{**values, **parts})


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def everything(runs):
    """Material with something for every section of a report."""
    noisy = Conditions(
        before={"other_cpus": 0.5},
        during={"other_cpus": 1.5, "steal_fraction": 0.25, "load_average": 3.0},
        notes=(
            ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop"),
        ),
    )
    quiet = Conditions(before={}, during={"other_cpus": 0.1, "steal_fraction": 0.0})
    good = [
        *runs.of(100, 101, 99, 100.5, 99.5, conditions=quiet),
        *runs.of(102, conditions=noisy),
        *runs.of(180, 181, devices=2, flags={"variable_update": "replicated"}),
        *runs.of(320, devices=4, flags={"variable_update": "replicated"}),
        *runs.of(
            400,
            flags={"model": "resnet20", "data_name": "cifar10"},
            environment={"hostname": "other"},
            evaluations=(
                Evaluation(
                    global_step=10, top_1=0.5, top_5=0.9, examples=100, images_per_sec=900.0
                ),
            ),
        ),
    ]
    bad = [
        runs(error=("ResourceExhaustedError", "no memory left"), step_seconds=(), losses=()),
        runs(status="interrupted", step_seconds=(0.1,), losses=(1.0,)),
    ]
    base = runs.of(110, 111, 109, 110.5, 109.5, 112)
    sources = Sources(runs=(*good, *bad), allreduces=(reductions(),))
    return gather(sources, Sources(runs=tuple(base)), labels=("results/base", "results/new"))
