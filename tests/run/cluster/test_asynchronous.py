"""Workers that do not wait for one another: exact sums in one process, and real jobs.

Tests cnnbench/run/step/train_step.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_random_cifar10
from forked import impatient, unhurried
from jobs import SECONDS, record_of, started
from short_runs import TINY, run
from towers import create_slots, optimizer_of

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.run.step.train_step import UpdateCounter
from cnnbench.variable_mgr import VariableMgrSpec, create
from cnnbench.variable_mgr.gradients import VariableGradients
from cnnbench.variable_mgr.registry import find_mode

pytestmark = pytest.mark.slow

FLAGS = {
    "device": "cpu",
    "model": "lenet",
    "batch_size": 4,
    "num_warmup_batches": 4,
    "cross_replica_sync": "false",
    "quiet_conditions": "all",
}
ORDER = ("worker:1", "ps:0", "worker:0")


def test_updates_of_threads_add_up_and_their_staleness_is_counted(cpu_devices):
    """Each update of worker i subtracts i + 1, so that the order does not matter."""
    variables = [VariableSpec("w", (64,), Initializer.constant(0.0))]
    spec = VariableMgrSpec(
        mode=find_mode("parameter_server"),
        devices=cpu_devices[:2],
        cpu_device=cpu_devices[0],
        ps_devices=cpu_devices[2:3],
    )
    manager = create(spec, variables)
    manager.create_variables()
    optimizer = optimizer_of("sgd")
    create_slots(manager, optimizer)
    counter = UpdateCounter(cpu_devices[2])
    steps = 100

    def make(worker):
        own = manager.make_worker_manager(cpu_devices[worker : worker + 1])

        @tf.function(autograph=False)
        def step():
            begun = counter.read()
            with tf.device(cpu_devices[worker]), tf.control_dependencies([begun]):
                read = own.read(0, "w", tf.float32)
                gradient = tf.zeros_like(read) + float(worker + 1)
            columns = [VariableGradients([gradient], [own.variable(0, "w")])]
            (device,), reduced = own.preprocess_device_grads(columns)
            pairs = own.get_gradients_to_apply(0, reduced)
            with tf.device(device):
                rate = tf.constant(1.0)
            ops = own.append_apply_gradients(optimizer, pairs, None, device, learning_rate=rate)
            with tf.control_dependencies(ops):
                return counter.increment(begun)

        return step.get_concrete_function()

    functions = [make(worker) for worker in range(2)]
    staleness: list[list[int]] = [[], []]

    def work(worker):
        for _ in range(steps):
            staleness[worker].append(int(functions[worker]().numpy()))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    np.testing.assert_array_equal(manager.variable(0, "w"), np.full(64, -3.0 * steps))
    assert counter.read() == 2 * steps
    assert [len(own) for own in staleness] == [steps, steps]
    assert all(0 <= number <= steps for own in staleness for number in own)


def test_an_update_of_one_worker_alone_is_never_stale(cpu_devices):
    counter = UpdateCounter(cpu_devices[1])

    @tf.function(autograph=False)
    def step(others):
        begun = counter.read()
        for _ in range(others):
            with tf.control_dependencies([begun]):
                counter.increment(begun)
        return counter.increment(begun)

    assert [int(step(others)) for others in (0, 0, 2, 0)] == [0, 0, 2, 0]
    assert counter.read() == 6


HARMONIC = """
from cnnbench.optimizers import OptimizerSpec, Slot, register_optimizer


def update(weight, gradient, rate, mean, step):
    import tensorflow as tf

    mean = 0.5 * mean + gradient
    return rate * mean / tf.cast(step, tf.float32), mean


register_optimizer(
    OptimizerSpec(
        name="harmonic",
        formula="m = m / 2 + g, w -= lr m / t",
        update=update,
        slots=(Slot("mean", "mean"),),
        takes_step=True,
    )
)
"""


@pytest.mark.usefixtures("quick_start")
def test_staged_variables_and_numbers_of_steps_are_those_of_one_process(tmp_path):
    """Also after a checkpoint, whose values replace those read before it."""
    plugin = tmp_path / "harmonic.py"
    plugin.write_text(HARMONIC)
    flags = {**TINY, "plugin": str(plugin), "optimizer": "harmonic", "init_learning_rate": 0.1}
    flags |= {"weight_decay": 0.0625, "staged_vars": True}
    run(**flags, train_dir=str(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "job")
    resumed = {**flags, "num_batches": 9, "num_warmup_batches": 0}
    alone = run(**resumed, train_dir=str(tmp_path / "one")).record.losses
    given = {**resumed, "train_dir": tmp_path / "job", "cross_replica_sync": "false"}
    made = record_of(tmp_path, given, ("ps:0", "worker:0"))["losses"]
    assert made == pytest.approx(alone, rel=1e-5)
    assert made[0] == made[1] != made[2]


def test_a_killed_worker_is_left_behind_and_an_interrupt_ends_the_others(tmp_path):
    flags = {**FLAGS, "num_batches": 1000000, "display_every": 20, "train_dir": tmp_path / "train"}
    texts = [f"--{name}={value}" for name, value in {**flags, "save_model_steps": 50}.items()]
    path = tmp_path / "record.json"
    chief_flags = [f"--result_json={path}"]
    with started(tmp_path, texts, ORDER, chief_flags=chief_flags, program=unhurried) as tasks:
        chief, victim = tasks.processes["worker:0"], tasks.processes["worker:1"]
        tasks.wait_for("worker:0", "\n40\t")
        victim.kill()
        tasks.wait_for("worker:0", "worker:1 is lost; the other workers continue", "err")
        tasks.wait_for("worker:0", "\n100\t")
        chief.send_signal(signal.SIGINT)
        assert chief.wait(SECONDS) == tasks.processes["ps:0"].wait(SECONDS) == 130
    record = json.loads(path.read_text())
    assert record["status"] == "interrupted"
    assert np.mean(record["losses"][-10:]) < 0.5 * np.mean(record["losses"][:10])
    shares = record["cluster"]["workers"]
    assert [one["lost"] for one in shares] == [False, True]
    assert all(one["images"] == 4 * one["steps"] for one in shares)
    assert sum(one["steps"] for one in shares) == len(record["losses"]) >= 100
    assert max(record["cluster"]["staleness"]) > 0
    assert record["batch"] == {"per_device": 4, "global": 4}
    assert "Sync:        False" in (tmp_path / "worker:0.out").read_text()
    saved = {one.name for one in (tmp_path / "train").glob("*.index")}
    assert "model.ckpt-50.index" in saved


EVALUATING = {"num_warmup_batches": 0, "eval_during_training_every_n_steps": 1000}


def test_a_worker_stopped_before_it_has_to_evaluate_is_named(tmp_path):
    """TensorFlow would wait for it without end; test_coordinated.py has one killed meanwhile."""
    flags = {**FLAGS, **EVALUATING, "model": "trivial", "data_name": "cifar10", "num_batches": 300}
    texts = [f"--{name}={value}" for name, value in flags.items()]
    order = ("ps:0", "worker:0", "worker:1", "controller:0")
    with started(tmp_path, texts, order, controller=True, program=impatient) as tasks:
        tasks.wait_for("controller:0", "\n1\t")
        tasks.processes["worker:0"].send_signal(signal.SIGSTOP)
        ended = [tasks.processes[name].wait(60) for name in ("controller:0", "ps:0", "worker:1")]
        assert ended == [4, 4, 4]
        last = tasks.printed("controller:0", "err").splitlines()[-1]
    assert f"error: lost worker:0 ({tasks.job.worker_addresses[0]})" in last
    assert "which runs the evaluations" in last


def test_a_controller_warms_up_until_steady_and_evaluates(tmp_path):
    write_random_cifar10(tmp_path / "data", train=40, validation=26)
    flags = {
        **{**FLAGS, "model": "trivial", "data_name": "cifar10", "data_dir": tmp_path / "data"},
        **{"warmup": "auto", "num_warmup_batches": 4, "max_warmup_batches": 40},
        **{"num_batches": 20, "eval_during_training_every_n_steps": 10, "num_eval_epochs": 1},
    }
    order = ("ps:0", "worker:1", "controller:0", "worker:0")
    record = record_of(tmp_path, flags, order, controller=True)
    assert record["warmup_status"] in ("steady", "limit")
    warmed_up = len(record["warmup_step_seconds"])
    assert 4 <= warmed_up <= 40
    assert len(record["step_seconds"]) == len(record["cluster"]["staleness"]) == 20
    # Each on all examples, in a pause: after exactly as many updates.
    found = [(one["global_step"], one["examples"]) for one in record["evaluations"]]
    assert found == [(10, 26), (warmed_up + 20, 26)]
    assert sum(one["steps"] for one in record["cluster"]["workers"]) == 20
