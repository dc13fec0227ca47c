"""Runs that never ran: a few per commit, as records and as entries; those of a report."""

from __future__ import annotations

import dataclasses
import random

import pytest
from pages import HOSTILE
from step_profiles import Profiles
from studies import SWEEP, roofline, tuning
from worker_runs import made_once

from cnnbench.judge.compare import SkippedFile
from cnnbench.judge.history import METRICS, HistoryEntry, all_series
from cnnbench.judge.report import build, gather, render
from cnnbench.records.all_reduce import Copying
from cnnbench.records.load import Loaded
from cnnbench.records.run import (
    ConditionNote,
    Conditions,
    Evaluation,
    Measured,
    ModelInfo,
    StartupSeconds,
)
from cnnbench.records.subject import Subject

ENVIRONMENT = {"hostname": "box", "cpu_model": "Fast CPU", "tensorflow_version": "2.21.0"}


class Commits:
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
def make_by_commit(lenet_runs):
    """Makes instances of `Commits`, which count for themselves."""
    return lambda: Commits(lenet_runs({"hostname": "box1", "usable_cpus": 8}))


@pytest.fixture
def by_commit(make_by_commit):
    return make_by_commit()


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


@pytest.fixture
def profiles(lenet_runs):
    """Makes profiles of processes on a machine with other programs."""
    return Profiles(lenet_runs())


class FullRuns:
    """Makes records with something in every field."""

    def __init__(self, lenet):
        self._lenet = lenet

    def __call__(self, speed=100.0, *, devices=1, flags=None, **parts):
        """A run of 24 steps; the median one is of the speed given, some are 10 % off."""
        flags = {"batch_size": 8, "num_batches": 24, **(flags or {})}
        images = flags["batch_size"] * devices
        step = images / speed
        seconds = tuple(step * factor for factor in (0.9, 1.0, 1.0, 1.1) * 6)
        details = {
            "command": ("cnnbench", "--model=lenet", f"--num_gpus={devices}"),
            "model": ModelInfo(
                name="lenet",
                parameters=10,
                trainable_parameters=10,
                forward_flops_per_image=2 * 10**9,
                training_flops_per_image=6 * 10**9,
            ),
            "startup_seconds": StartupSeconds(import_=2.0, build=1.0, first_step=0.5),
            "warmup_step_seconds": (step * 8, step * 1.02),
            "warmup_losses": (2.5, 2.4),
            "step_seconds": seconds,
            "losses": tuple(2.3 - 0.01 * i for i in range(24)),
            "measured": Measured(
                loop_seconds=sum(seconds) * 1.01,
                loop_images=images * 24,
                input_wait_seconds=0.0,
                peak_memory_bytes=(500 + 10 * devices) * 2**20,
                peak_flops_per_sec=2e12 * devices,
                peak_flops_source="given",
            ),
        }
        return self._lenet(speed, devices=devices, flags=flags, **{**details, **parts})

    def of(self, *speeds, **parts):
        """A run for each speed."""
        return [self(speed, **parts) for speed in speeds]

    def with_peak(self, peak, source="measured: x", **parts):
        """A run of 100 images/sec with another peak of its devices, measured by itself."""
        run = self(100, **parts)
        own = {"peak_flops_per_sec": peak, "peak_flops_source": source}
        return dataclasses.replace(run, measured=dataclasses.replace(run.measured, **own))


@pytest.fixture(scope="session")
def measured(make_reductions):
    """A measurement of two algorithms on two sizes, one of which sums wrongly once."""
    reductions = make_reductions()
    rows = (("xring", 4096, {}), ("xring", 65536, {}), ("pscpu", 4096, {}))
    points = [
        reductions.point(2.0 if spec == "xring" else 1.0, spec=spec, bytes=size, devices=2, **more)
        for spec, size, more in (*rows, ("pscpu", 65536, {"wrong": 3}))
    ]
    copies = [Copying(bytes=size, devices=2, seconds=(size / 4e9,)) for size in (4096, 65536)]
    return reductions(
        *points,
        run_id="reduce0",
        started_at="2026-11-20T12:00:00+00:00",
        command=("cnnbench", "allreduce", "--num_gpus=2"),
        copies=tuple(copies),
        environment=ENVIRONMENT,
    )


@pytest.fixture(scope="session")
def make_full_runs(lenet_runs):
    """Makes instances of `FullRuns`, which count for themselves."""
    return lambda: FullRuns(lenet_runs(ENVIRONMENT))


@pytest.fixture
def full_runs(make_full_runs):
    return make_full_runs()


@pytest.fixture(scope="session")
def everything(make_full_runs, measured):
    """Results with something for every section of a report."""
    full_runs = make_full_runs()
    noisy = Conditions(
        before={"other_cpus": 0.5},
        during={"other_cpus": 1.5, "steal_fraction": 0.25, "load_average": 3.0},
        notes=(
            ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop"),
        ),
    )
    quiet = Conditions(before={}, during={"other_cpus": 0.1, "steal_fraction": 0.0})
    good = [
        *full_runs.of(100, 101, 99, 100.5, 99.5, conditions=quiet),
        *full_runs.of(102, conditions=noisy),
        *full_runs.of(180, 181, devices=2, flags={"variable_update": "replicated"}),
        *full_runs.of(320, devices=4, flags={"variable_update": "replicated"}),
        *full_runs.of(
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
        full_runs(error=("ResourceExhaustedError", "no memory left"), step_seconds=(), losses=()),
        full_runs(status="interrupted", step_seconds=(0.1,), losses=(1.0,)),
    ]
    base = full_runs.of(110, 111, 109, 110.5, 109.5, 112)
    loaded = Loaded((*good, *bad), (), (measured,))
    return gather(loaded, Loaded(tuple(base), ()), labels=("results/base", "results/new"))


@pytest.fixture(scope="session")
def report(everything):
    """The report on `everything`."""
    return build(everything)


@pytest.fixture(scope="session")
def made_page(tmp_path_factory):
    """made_page(NAME, MAKE): the file of a page on the report that MAKE returns.

    It is drawn by the process that asks first.
    """

    def made(name, make):
        def write(folder):
            (folder / "page.html").write_text(render(make(), "html"), "utf-8")

        folder, _ = made_once(tmp_path_factory, f"page-{name}", write)
        return folder / "page.html"

    return made


@pytest.fixture(scope="session")
def folder(make_full_runs, measured):
    """What a sweep, tune, roofline and allreduce leave of one machine."""
    full_runs = make_full_runs()
    nets = Subject(repository="nets", revision="b" * 40)
    records = [
        *full_runs.of(100, 101, 99, 100.5, 99.5, 102, sweep=SWEEP),
        *full_runs.of(120, flags={"batch_size": 16}, sweep=SWEEP),
        *full_runs.of(150, flags={"precision": "bf16"}, subject=nets),
        *full_runs.of(300, flags={"forward_only": True}),
        *full_runs.of(180, 182, devices=2, flags={"variable_update": "replicated"}),
    ]
    profiled = full_runs(
        118,
        flags={"batch_size": 16, "num_batches": 10},
        command=("cnnbench", "roofline", "lenet", "--batch_size=16"),
    )
    other = full_runs(390, flags={"model": "resnet20", "data_name": "cifar10"})
    found = (roofline(profiled), roofline(other), tuning())
    return Loaded(tuple(records), (), (measured,), found)


@pytest.fixture(scope="session")
def hostile(make_full_runs):
    """Hostile text wherever a record or a path can bring it in."""
    full_runs = make_full_runs()
    bad = {"model": HOSTILE, "data_name": HOSTILE, "variable_update": HOSTILE}
    good = full_runs.of(
        *(100, 101, 102, 99, 98, 97),
        flags=bad,
        environment={"hostname": HOSTILE, HOSTILE: HOSTILE},
        command=("cnnbench", f"--model={HOSTILE}"),
        run_id=HOSTILE,
    )
    good = [dataclasses.replace(run, run_id=f"{HOSTILE}{i}") for i, run in enumerate(good)]
    other = full_runs.of(100, devices=2, flags=bad, environment={HOSTILE: "x"})
    failed = full_runs(error=(HOSTILE, HOSTILE), flags=bad)
    loaded = Loaded((*good, *other, failed), (SkippedFile(f"{HOSTILE}.json", HOSTILE),))
    base = full_runs.of(100, 101, 102, 99, 98, 97, flags=bad)
    return gather(loaded, Loaded(tuple(base), ()), labels=(HOSTILE, HOSTILE))
