"""parameter_server_strategy: a coordinator has updates made by whichever worker is free.

Tests cnnbench/run/step/train_step.py.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_random_cifar10
from forked import unhurried
from jobs import SECONDS, record_of, started
from short_runs import NETWORKS
from worker_runs import saved_values

from cnnbench import BenchmarkCNN, Params
from cnnbench.base.job import Task
from cnnbench.data.synthetic import draw_synthetic_rows
from cnnbench.errors import BenchmarkError
from cnnbench.plan import make_plan, parse_run
from cnnbench.run.driver.step_loop import CoordinatedLoop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_start")]

MODE = "--variable_update=parameter_server_strategy"
HOSTS = ("--worker_hosts=a:1,b:1", "--ps_hosts=c:1", "--controller_host=d:1")
JOB = ("--job_name=controller", *HOSTS)


def test_the_others_go_on_without_a_worker_that_is_gone_but_not_without_one_that_is_silent():
    spares = parse_run([MODE, *JOB]).place.tolerates_loss_of
    worker = Task("worker", 1)
    assert spares(worker, ended=True)
    assert not spares(worker, ended=False)
    assert not spares(Task("ps"), ended=True)
    assert not spares(Task("controller"), ended=True)


class TestLoop:
    def test_lost_workers_are_told_and_no_update_is_made_again_for_them(self):
        gone: dict[str, str] = {}
        told = []

        def finish(number):
            gone["worker:1"] = "gone"
            time.sleep(0.01)
            return number

        slots = {f"slot {n}": lambda number: partial(finish, number) for n in range(3)}
        names = ["worker:0", "worker:1"]
        loop = CoordinatedLoop(slots, names, lambda name, _: told.append(name), lambda: gone)
        done = []
        assert loop.run(150, lambda step, seconds, number: done.append(number)) == 150
        assert sorted(done) == list(range(1, 151))
        assert told == ["worker:1"]

    def test_the_loss_of_all_ends_it(self):
        block = threading.Event()
        loop = CoordinatedLoop(
            {"slot": lambda number: partial(block.wait, SECONDS)},
            ["worker:0"],
            lambda name, error: None,
            lambda: {"worker:0": "nobody listens there"},
        )
        with pytest.raises(BenchmarkError, match="all workers are lost: worker:0: nobody"):
            loop.run(1, lambda *_: None)
        block.set()

    @pytest.mark.parametrize("fails_late", [False, True])
    def test_an_error_of_an_update_ends_it(self, fails_late):
        def fail():
            raise RuntimeError("ps:0")

        slots = {"slot": lambda number: fail if fails_late else fail()}
        loop = CoordinatedLoop(slots, ["worker:0"], lambda *_: None)
        with pytest.raises(RuntimeError, match="ps:0"):
            loop.run(1, lambda *_: None)

    def test_updates_of_one_worker_are_in_their_order_although_results_arrive_in_another(self):
        scheduled = []

        def schedule(number):
            scheduled.append(number)

            def finish():
                time.sleep(0.05 * (number % 2))
                return number

            return finish

        slots = {f"slot {n}": schedule for n in range(2)}
        loop = CoordinatedLoop(slots, ["worker:0"], lambda *_: None)
        done, times = [], []

        def note(step, spent, number):
            done.append(number)
            times.append(spent.seconds)

        loop.run(10, note, lambda step: step == 6, lambda step: False)
        assert scheduled == done == list(range(1, 11))
        assert min(times) > 0
        begin = time.perf_counter()
        loop.run(10, note)
        assert sum(times[10:]) <= time.perf_counter() - begin


CIFAR = {
    "device": "cpu",
    "model": "trivial",
    "data_name": "cifar10",
    "batch_size": 4,
    "optimizer": "momentum",
    "num_batches": 6,
    "num_warmup_batches": 1,
    "eval_during_training_every_n_steps": 6,
    "num_eval_epochs": 1,
    "init_learning_rate": 0.01,
    "num_epochs_per_decay": 0.5,
    "learning_rate_decay_factor": 0.5,
    "quiet_conditions": "all",
}


def test_one_worker_trains_as_one_process_does(tmp_path):
    write_random_cifar10(tmp_path / "data", train=24, validation=26)
    flags = {**CIFAR, "data_dir": str(tmp_path / "data"), "optimizer": "lamb"}
    alone = BenchmarkCNN(Params(**flags, train_dir=str(tmp_path / "alone"))).run()
    given = {**flags, "variable_update": "parameter_server_strategy"}
    made = record_of(
        tmp_path,
        {**given, "train_dir": str(tmp_path / "made")},
        ("worker:0", "controller:0", "ps:0", "ps:1"),
        controller=True,
    )
    assert made["losses"] == pytest.approx(alone.losses, rel=1e-6)
    assert made["cluster"]["staleness"] == [0] * 6
    evaluations = [one["loss"] for one in made["evaluations"]]
    assert evaluations == pytest.approx([one.loss for one in alone.evaluations], rel=1e-6)
    found, expected = (saved_values(tmp_path / name) for name in ("made", "alone"))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-7, err_msg=key)
    resuming = {**flags, "num_batches": 9, "train_dir": str(tmp_path / "made")}
    assert len(BenchmarkCNN(Params(**resuming)).run().losses) == 2


def test_updates_of_two_workers_add_up_over_a_resumption(tmp_path):
    flags = {
        "device": "cpu",
        "model": "linear",
        "plugin": NETWORKS,
        "weight_decay": 0,
        "init_learning_rate": 0.25,
        "num_warmup_batches": 0,
        "quiet_conditions": "all",
    }
    train_dir = str(tmp_path / "train")
    before = Params(**flags, num_batches=2, train_dir=train_dir)
    BenchmarkCNN(before).run()  # which has rows 0 and 1, as worker 0
    given = {**flags, "variable_update": "parameter_server_strategy", "num_batches": 42}
    order = ("ps:0", "worker:1", "worker:0", "controller:0")
    record = record_of(tmp_path, {**given, "train_dir": train_dir}, order, controller=True)
    steps = [one["steps"] for one in record["cluster"]["workers"]]
    assert sum(steps) == len(record["losses"]) == len(record["cluster"]["staleness"]) == 40
    plan = make_plan(before)
    rows = draw_synthetic_rows(tf.range(4), before.tf_random_seed, plan.network.examples)
    image = rows["image"].numpy()
    slopes = image.reshape(2, -1).mean(axis=1)
    (weight,) = (value for key, value in saved_values(train_dir).items() if "W" in key)
    expected = 1.0 - 0.25 * (slopes[0] * (steps[0] + 2) + slopes[1] * steps[1])
    assert weight == pytest.approx(expected, rel=1e-4)
    assert "Sync:        False" in (tmp_path / "controller:0.out").read_text()


def test_a_killed_worker_is_left_behind_and_a_killed_ps_ends_the_run(tmp_path):
    flags = ["--device=cpu", "--model=lenet", "--batch_size=4", "--num_warmup_batches=4", MODE]
    flags += ["--num_batches=1000000", "--display_every=20", "--quiet_conditions=all"]
    order = ("worker:1", "ps:0", "worker:0", "controller:0")
    path = tmp_path / "record.json"
    how = {"controller": True, "chief_flags": [f"--result_json={path}"], "program": unhurried}
    with started(tmp_path, flags, order, **how) as tasks:
        tasks.wait_for("controller:0", "\n40\t")
        tasks.processes["worker:1"].send_signal(signal.SIGKILL)
        tasks.wait_for("controller:0", "worker:1 is lost; the other workers continue", "err")
        tasks.wait_for("controller:0", "images/sec", seen=len(tasks.printed("controller:0")))
        tasks.processes["ps:0"].send_signal(signal.SIGKILL)
        codes = tasks.wait()
        assert (codes["controller:0"], codes["worker:0"]) == (4, 4), tasks.errors()
        for name in ("controller:0", "worker:0"):
            assert "lost ps:0 (localhost:" in tasks.printed(name, "err")
    record = json.loads(path.read_text())
    assert record["status"] == "failed"
    assert [one["lost"] for one in record["cluster"]["workers"]] == [False, True]
    assert np.mean(record["losses"][-10:]) < 0.5 * np.mean(record["losses"][:10])


def test_a_worker_killed_while_it_evaluates_is_named(tmp_path):
    """test_asynchronous.py has one that is stopped before."""
    victim = "worker:0"  # that evaluates
    flags = ["--device=cpu", "--model=trivial", "--data_name=cifar10", "--batch_size=2", MODE]
    flags += ["--num_warmup_batches=2", "--num_batches=1000000", "--display_every=20"]
    flags += ["--quiet_conditions=all", "--num_eval_batches=1000000"]
    flags += ["--eval_during_training_every_n_steps=40"]
    order = ("worker:1", "ps:0", victim, "controller:0")
    path = tmp_path / "record.json"
    chief_flags = [f"--result_json={path}"]
    with started(tmp_path, flags, order, controller=True, chief_flags=chief_flags) as tasks:
        tasks.wait_for("controller:0", "Running evaluation")
        tasks.processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        codes = tasks.wait()
        assert time.monotonic() - killed < 30
        assert {name: code for name, code in codes.items() if name != victim} == dict.fromkeys(
            (name for name in order if name != victim), 4
        ), tasks.errors()
        assert f"{victim} (localhost:" in tasks.printed("controller:0", "err")
    record = json.loads(path.read_text())
    assert record["status"] == "failed"
    assert victim in record["error"]["message"]
    assert len(record["losses"]) >= 38  # at global step 40, after the warm-up
