"""Runs that never ran, a few per commit, as records in a directory and as entries."""

from __future__ import annotations

import random

import pytest

from cnnbench.judge.history import METRICS, HistoryEntry, all_series


class Runs:
    """Makes records by their commit."""

    def __init__(self, lenet):
        self._lenet = lenet

    def __call__(
        self, speed=100.0, commit=None, *, flags=None, facts=None, error=None, placed=True, **parts
    ):
        label = None if commit is None else f"commit={commit}"
        return self._lenet(
            None if error else speed,
            flags={"result_label": label, **(flags or {})},
            environment=facts,
            error=("E", error) if error else None,
            **({} if placed else {"placement": None}),
            **parts,
        )

    def history(self, levels, *, scatter=0.01, per_commit=3, seed=0, **parts):
        """Runs of a commit for each level, in order."""
        draw = random.Random(seed)
        return [
            self(level * (1 + draw.gauss(0, scatter)), f"c{index:03}", **parts)
            for index, level in enumerate(levels)
            for _ in range(per_commit)
        ]


@pytest.fixture(scope="session")
def make_runs(lenet_runs):
    """Makes instances of `Runs`, which count for themselves."""
    return lambda: Runs(lenet_runs({"hostname": "box1", "usable_cpus": 8}))


@pytest.fixture
def runs(make_runs):
    return make_runs()


@pytest.fixture
def save():
    """Writes records to a folder, a file each."""

    def write(folder, records):
        folder.mkdir(parents=True, exist_ok=True)
        for record in records:
            (folder / f"{record.run_id}.json").write_text(record.to_json())
        return folder

    return write


@pytest.fixture(scope="session")
def series_of():
    """Series of records."""

    def make(records, metric="throughput", **more):
        return all_series(
            [entry for one in records for entry in HistoryEntry.all_of(one)],
            METRICS[metric],
            **more,
        )

    return make
