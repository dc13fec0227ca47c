"""How a job scales: arithmetic, files, and what is measured.

Tests cnnbench/campaigns/scaling.py.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden import golden

from cnnbench.campaigns import scaling
from cnnbench.campaigns.launch import JobLayout, parse_task_command
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.cli.commands import launch
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.plan import check_flags
from cnnbench.variable_mgr.all_reduce.cost import Link


@pytest.fixture
def of(lenet_runs):
    """Makes runs of a job by the speed of all its devices."""
    make = lenet_runs()
    return lambda speed, devices: make(speed, devices=devices)


COMMAND = ("--model=lenet", "--device=cpu", "--variable_update=replicated")


def points(alone, jobs, *, towers, shared, predicted=None, kind="weak"):
    """Speed and efficiency of jobs, from the runs of one process and of jobs by their workers."""
    chief = SimpleNamespace(params=SimpleNamespace(num_gpus=towers))
    made = scaling.ScalingJobs(
        layouts={},
        chiefs=dict.fromkeys([0, *jobs], chief),
        command=parse_task_command(COMMAND),
        kind=kind,
        cores=0 if shared else 1,
        records={0: alone, **jobs},
    )
    return made.points(predicted)


def test_every_process_has_equally_many_processors(monkeypatch, tmp_path):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(8)})
    chief = SimpleNamespace(params=SimpleNamespace(num_gpus=2), to_json=dict)
    jobs = scaling.ScalingJobs(
        layouts={n: JobLayout(workers=n) for n in (1, 3)},
        chiefs={1: chief, 3: chief},
        command=parse_task_command(COMMAND),
        cores=8 // 3,
    )
    ended = SimpleNamespace(status="ok", record=None)
    with ResultsFolder(scaling.SCALING, tmp_path / "r") as folder:
        policy = jobs.requests(folder, 1)
        found = [next(policy), policy.send([ended]), policy.send([ended])]
    commands = [batch.requests[0].command for batch in found]
    assert [one.cores for one in commands] == [[0, 1], [0, 1], [0, 1, 2, 3, 4, 5]]
    assert ["--affinity" in one.words for one in commands] == [False, True, True]
    assert {"--variable_update=independent", "--num_gpus=2"} < {*commands[0].words}
    assert commands[2].words[4:6] == ("launch", "--workers=3")


def test_jobs_that_are_not_measured_yet_have_no_point(of):
    jobs = {1: [of(40.0, 1)], 2: []}
    (one,) = points([of(80.0, 1)], jobs, towers=1, shared=False)
    assert (one.workers, one.towers) == (1, 1)
    assert one.efficiency == pytest.approx(0.5)


def test_workers_with_processors_of_their_own(of):
    # 8 images per device: 0.1 s alone, 0.1 s with one worker, 0.16 s with two.
    found = points(
        [of(80.0, 1), of(40.0, 1), of(800.0, 1)],
        {1: [of(80.0, 1)], 2: [of(100.0, 2)]},
        towers=1,
        shared=False,
        predicted={2: 0.05},
    )
    one, two = found
    assert (one.workers, one.towers, two.workers, two.towers) == (1, 1, 2, 2)
    assert (one.efficiency, one.communication) == pytest.approx((1.0, 0.0))
    assert one.predicted_images_per_sec is None
    assert two.step_seconds == pytest.approx(0.16)
    assert two.compute_seconds == pytest.approx(0.1)
    assert two.efficiency == pytest.approx(100 / 160)
    assert two.communication == pytest.approx(0.06 / 0.16)
    assert two.predicted_images_per_sec == pytest.approx(16 / 0.15)
    assert two.predicted_efficiency == pytest.approx(0.1 / 0.15)


def test_the_range_of_efficiencies(of):
    jobs = {1: [of(80.0, 1), of(84.0, 1)], 2: [of(100.0, 2), of(120.0, 2), of(110.0, 2)]}
    one, two = points([of(64.0, 1), of(80.0, 1)], jobs, towers=1, shared=False)
    # The slowest job beside the fastest process without exchange, and the other way round.
    assert (one.efficiency_low, one.efficiency_high) == pytest.approx((80 / 80, 84 / 64), rel=0.01)
    assert (two.efficiency_low, two.efficiency_high) == pytest.approx(
        (100 / 160, 120 / 128), rel=0.01
    )
    assert one.efficiency_low < one.efficiency < one.efficiency_high
    assert two.efficiency_low < two.efficiency < two.efficiency_high
    (alone,) = points([of(80.0, 1)], {1: [of(84.0, 1)]}, towers=1, shared=False)
    assert alone.efficiency == pytest.approx(1.05)
    assert (alone.efficiency_low, alone.efficiency_high) == (None, None)


def test_workers_that_share_processors(of):
    (two,) = points([of(80.0, 1)], {2: [of(40.0, 2)]}, towers=1, shared=True, predicted={2: 0.1})
    # 0.4 s, of which the computation of both takes 0.2.
    assert two.compute_seconds == pytest.approx(0.2)
    assert two.communication == pytest.approx(0.5)
    assert two.efficiency == pytest.approx(0.25)
    assert two.predicted_images_per_sec == pytest.approx(16 / 0.3)


@pytest.mark.parametrize(("shared", "compute"), [(False, 0.05), (True, 0.1)])
def test_strong_scaling_divides_the_batch_of_one_worker(of, shared, compute):
    # One worker takes 0.1 s for 8 images. Two share these: 0.08 s, where 0.05 s would be ideal.
    alone, half = of(80.0, 1), of(100.0, 1)
    (two,) = points(
        [alone], {2: [half]}, towers=1, shared=shared, predicted={2: 0.03}, kind="strong"
    )
    assert (two.kind, two.images_per_step) == ("strong", 8)
    assert two.step_seconds == pytest.approx(0.08)
    assert two.efficiency == pytest.approx(100 / 160)
    assert two.compute_seconds == pytest.approx(compute)
    assert two.predicted_images_per_sec == pytest.approx(8 / (compute + 0.03))


@pytest.mark.parametrize(
    ("words", "batch"), [(["--batch_size=6"], 6), (["--global_batch_size=8"], 8), ([], 32)]
)
def test_strong_scaling_fixes_the_global_batch(words, batch, call, monkeypatch, tmp_path):
    jobs = {}

    def planned(**parts):
        jobs.update(parts)
        raise BenchmarkError("not measured")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "ScalingJobs", planned)
    flags = ["--model=lenet", "--device=cpu", "--variable_update=collective_all_reduce", *words]
    call("launch", "--scaling=1,2", "--scaling_kind=strong", "--", *flags, code=4)
    length = jobs["chiefs"][2].length
    assert (length.batch_per_device, length.global_batch) == (batch // 2, batch)
    err = call("launch", "--scaling=1,5", "--scaling_kind=strong", "--", *flags, code=2).err
    assert err.startswith(f"cnnbench: error: --global_batch_size={batch}: ")


def test_kinds_of_scaling_that_contradict_the_batch(call):
    flags = ["--model=lenet", "--global_batch_size=8", "--device=cpu"]
    err = call("launch", "--scaling=1,2", "--", *flags, code=2).err
    assert err.startswith("cnnbench: error: --global_batch_size=8: ")
    assert "--scaling_kind=strong" in err
    flags = ["--variable_update=parameter_server", "--nocross_replica_sync", "--device=cpu"]
    words = ("--ps=1", "--scaling=1,2", "--scaling_kind=strong")
    err = call("launch", *words, "--", *flags, code=2).err
    assert err.startswith("cnnbench: error: --scaling_kind=strong: ")


def test_a_run_without_steps(of):
    with pytest.raises(BenchmarkError, match="has no steps"):
        points([of(None, 1)], {}, towers=1, shared=False)


@pytest.mark.parametrize(
    ("flags", "ps", "seconds"),
    [
        # lenet has 4 * N bytes; a ring moves 2 (n - 1) / n of them in 2 (n - 1) messages.
        ({"variable_update": "distributed_all_reduce", "all_reduce_spec": "xring"}, 0, "ring"),
        ({"variable_update": "parameter_server"}, 1, None),
        ({"variable_update": "parameter_server"}, 3, None),
        ({"variable_update": "collective_all_reduce"}, 0, None),
    ],
)
def test_predictions_by_mode(flags, ps, seconds):
    link = Link("test", 0.0, 1e-9, 0.0)
    setup = check_flags(Params.from_dict({"model": "lenet", "device": "cpu", **flags}))
    found, reason = scaling.predict_exchange_seconds(setup, link, ps, (1, 2, 4))
    assert reason == ""
    assert found[1] == 0
    assert 0 < found[2] < found[4]
    if seconds == "ring":
        from cnnbench.plan.network import model_gradients

        size = sum(4 * math.prod(s) for s in model_gradients("lenet", None)[1])
        assert found[4] == pytest.approx(size * 2 * 3 / 4 * 1e-9, rel=0.01)


def test_towers_of_a_worker_share_memory():
    link = Link("test", 0.0, 1e-9, 0.0)
    values = {"model": "lenet", "variable_update": "distributed_all_reduce", "num_gpus": 2}
    setup = check_flags(Params.from_dict({**values, "all_reduce_spec": "xring"}))
    found, _ = scaling.predict_exchange_seconds(setup, link, 0, (1, 2))
    assert found[1] == pytest.approx(0, abs=1e-9)
    assert found[2] > 0


def test_table_and_chart(of, monkeypatch):
    found = points([of(80.0, 1)], {2: [of(100.0, 2)]}, towers=1, shared=False)
    monkeypatch.setenv("COLUMNS", "160")
    strong = points(
        [of(80.0, 1), of(64.0, 1)],
        {2: [of(100.0, 1), of(110.0, 1)]},
        towers=1,
        shared=True,
        predicted={2: 0.03},
        kind="strong",
    )
    text = f"{scaling.table_text(found)}\n\n{scaling.table_text(strong)}\n"
    golden(Path(__file__).parent / "golden" / "scaling.txt", text)
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, scaling.table_text(found).splitlines())) <= 100
    lines = scaling.scaling_chart(found, "title")
    assert {series.name: series.points for series in lines.series} == {
        "measured": ((2.0, 100.0),),
        "no exchange": ((2.0, pytest.approx(160.0)),),
    }
