"""Runs that never ran, a few per commit, as records in a directory and as entries."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timedelta, timezone

import pytest

from cnnbench.history import METRICS, Entry, all_series
from cnnbench.params import Params
from cnnbench.record import Batch, ErrorInfo, Placement, RunRecord
from cnnbench.record_codec import encode

ENVIRONMENT = {"hostname": "box1", "cpu_model": "Fast CPU", "usable_cpus": 8}


class Runs:
    """Makes records; each has another run_id and starts a minute after the one before."""

    def __init__(self):
        self._numbers = itertools.count()

    def __call__(
        self, speed=100.0, commit=None, *, flags=None, facts=None, error=None, placed=True
    ):
        number = next(self._numbers)
        start = datetime(2026, 11, 20, tzinfo=timezone.utc) + timedelta(minutes=number)
        config = {
            **encode(Params().as_dict()),
            "model": "lenet",
            "batch_size": 8,
            "device": "cpu",
            "data_name": "imagenet",
            "result_label": None if commit is None else f"commit={commit}",
            **(flags or {}),
        }
        return RunRecord(
            run_id=f"run{number}",
            started_at=start.isoformat(),
            status="failed" if error else "ok",
            error=ErrorInfo(type="E", message=error) if error else None,
            command=("cnnbench",),
            config=config,
            placement=Placement(
                device="cpu",
                devices=("/device:CPU:0",),
                num_towers=1,
                num_workers=1,
                variable_update="parameter_server",
            )
            if placed
            else None,
            batch=Batch(per_device=8, global_=8),
            step_seconds=() if error else (8 / speed,) * 3,
            environment={**ENVIRONMENT, **(facts or {})},
        )

    def history(self, levels, *, scatter=0.01, per_commit=3, seed=0, **parts):
        """Runs of a commit for each level, in order."""
        draw = random.Random(seed)
        return [
            self(level * (1 + draw.gauss(0, scatter)), f"c{index:03}", **parts)
            for index, level in enumerate(levels)
            for _ in range(per_commit)
        ]


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def save():
    """Writes records to a folder, a file each."""

    def write(folder, records):
        folder.mkdir(parents=True, exist_ok=True)
        for record in records:
            (folder / f"{record.run_id}.json").write_text(record.to_json())
        return folder

    return write


@pytest.fixture
def series_of():
    """Series of records."""

    def make(records, metric="throughput", **more):
        return all_series([Entry.of(one) for one in records], METRICS[metric], **more)

    return make
