"""Promises of tf.distribute that managers rely on.

D: of Strategy; M: of MirroredStrategy. docs/strategies.md lists those that are not used.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models.graph import StateUpdate
from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.run.step.batch_norm import broadcast_averages, update_moving_averages
from cnnbench.variable_mgr.gradients import VariableGradients

STRATEGIES = ("mirrored_strategy", "central_storage_strategy")
ONE_DEVICE = ("one_device_strategy", "multi_worker_mirrored_strategy")


def traced(function):
    return tf.function(function, autograph=False)


@pytest.mark.parametrize("mode", [*STRATEGIES, *ONE_DEVICE])
def test_d1_d2_m4_towers_are_built_once_per_trace_in_replica_context_off_the_main_thread(
    mode, make_manager
):
    count = 1 if mode in ONE_DEVICE else 3
    manager = make_manager(mode, count)
    built = []

    def build(tower):
        context = tf.distribute.get_replica_context()
        assert (context.strategy, context.num_replicas_in_sync) == (manager.strategy, count)
        built.append((tower, threading.current_thread() is threading.main_thread()))
        return tf.constant(float(tower))

    step = traced(lambda: manager.run_towers(build))
    for _ in range(3):
        assert [float(value) for value in step()] == [float(t) for t in range(count)]
    assert [tower for tower, _ in built] == list(range(count))
    assert mode == "one_device_strategy" or not any(main for _, main in built)
    assert not tf.distribute.has_strategy()


@pytest.mark.parametrize("mode", STRATEGIES)
def test_d4_gradients_end_on_the_variable_s_devices_and_a_batch_is_its_singles(
    mode, make_manager, trainable, cpu_devices
):
    manager = make_manager(mode, 3)
    rng = np.random.default_rng(1)
    values = [[rng.normal(size=v.shape).astype(np.float32) for v in trainable] for _ in range(3)]

    def columns():
        for index, spec in enumerate(trainable):
            made = []
            for tower in range(3):
                with tf.device(cpu_devices[tower]):
                    made.append(tf.identity(values[tower][index]))
            yield VariableGradients(made, [manager.variable(t, spec.name) for t in range(3)])

    homes = []

    @traced
    def together():
        reduced = [c.gradients for c in manager.preprocess_device_grads(list(columns()))[1]]
        homes.extend([g.device for g in gradients] for gradients in reduced)
        return reduced

    @traced
    def alone():
        return [manager.preprocess_device_grads([c])[1][0].gradients for c in columns()]

    made = together()
    copies = 3 if mode == "mirrored_strategy" else 1
    assert homes == [list(cpu_devices[:copies])] * len(trainable)
    for batch, single in zip(made, alone(), strict=True):
        for one, other in zip(batch, single, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


AVERAGES = (
    VariableSpec("mean", (4,), Initializer.constant(0.0), trainable=False, statistic=True),
    VariableSpec("variance", (4,), Initializer.constant(1.0), trainable=False, statistic=True),
)
AGGREGATIONS = {
    "first": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    "mean": tf.VariableAggregation.MEAN,
}


def always(update):
    """No step is skipped."""
    return update()


@pytest.mark.parametrize("policy", AGGREGATIONS)
def test_d5_d6_moving_averages_are_those_of_the_strategy_s_own_aggregation(
    policy, make_manager, tmp_path
):
    manager = make_manager("mirrored_strategy", 2, AVERAGES)
    decay, ways = 0.75, (tf.VariableSynchronization.ON_READ, tf.VariableSynchronization.ON_WRITE)

    def of_the_strategy(strategy):
        common = {"trainable": False, "aggregation": AGGREGATIONS[policy]}
        with strategy.scope():
            return [tf.Variable(tf.zeros(4), synchronization=way, **common) for way in ways]

    theirs = of_the_strategy(manager.strategy)
    batches = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)

    @traced
    def step(means):
        def build(tower):
            for variable in theirs:
                variable.assign_sub((variable - means[tower]) * (1.0 - decay))
            return [StateUpdate(one, means[tower], decay) for one in AVERAGES]

        moments = manager.run_towers(build)
        update_moving_averages(manager, moments, policy, [always] * 2)

    expected = np.zeros(4)
    for means in batches:
        step(tf.constant(means))
        batch = means[0] if policy == "first" else means.mean(axis=0)
        expected = decay * expected + (1.0 - decay) * batch
    broadcast_averages(manager)
    ours = manager.savable_variables()["mean"]

    def check(strategy, facade, variables):
        for one in facade.copies:
            np.testing.assert_allclose(one.numpy(), expected, rtol=1e-5, atol=1e-6)
        with strategy.scope():
            for variable in variables:
                found = variable.read_value()
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    check(manager.strategy, ours, theirs)
    # Each is read from the checkpoint of the other, by another number of replicas.
    with manager.strategy.scope():
        of_theirs = tf.train.Checkpoint(v=theirs[0]).write(str(tmp_path / "theirs"))
    of_ours = tf.train.Checkpoint(v=ours.primary).write(str(tmp_path / "ours"))
    other = make_manager("mirrored_strategy", 3, AVERAGES)
    restored = of_the_strategy(other.strategy)
    facade = other.savable_variables()["mean"]
    tf.train.Checkpoint(v=facade.primary).read(of_theirs).assert_consumed()
    with other.strategy.scope():
        for variable in restored:
            tf.train.Checkpoint(v=variable).read(of_ours).assert_consumed()
    other.after_restore()
    check(other.strategy, facade, restored)


def test_d13_m2_m9_replicas_and_results_are_in_the_order_of_the_devices(cpu_devices, make_manager):
    devices = tuple(reversed(cpu_devices[:3]))
    manager = make_manager("mirrored_strategy", devices, seed=7)
    for name, variable in manager.savable_variables().items():
        assert [c.device for c in variable.copies] == list(devices)
        suffixes = ["", "/replica_1", "/replica_2"]
        assert [c.name for c in variable.copies] == [f"v/{name}{s}:0" for s in suffixes]
        for other in variable.copies[1:]:
            np.testing.assert_array_equal(other.numpy(), variable.primary.numpy())
    homes = []

    @traced
    def step():
        made = manager.run_towers(lambda tower: tf.identity(float(tower)))
        homes.extend(value.device for value in made)
        return made

    assert [float(value) for value in step()] == [0.0, 1.0, 2.0]
    assert homes == list(devices)
