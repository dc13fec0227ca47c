"""Promises of tf.distribute that managers rely on.

D: of Strategy; M: of MirroredStrategy; R: of variables with a copy per replica. docs/strategies.md
lists those that are not used.
"""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import tensorflow as tf
from bowls import optimizer_of

from cnnbench.models.batch_norm import Moments
from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.run.step.batch_norm_stats import share_moving_averages, update_moving_averages
from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.gradients import Column

STRATEGIES = ("mirrored_strategy", "central_storage_strategy")
ONE_DEVICE = ("one_device_strategy", "multi_worker_mirrored_strategy")


def traced(function):
    return tf.function(function, autograph=False)


@pytest.mark.parametrize("mode", STRATEGIES)
def test_d1_towers_are_built_in_replica_context_and_the_rest_outside(mode, make_manager):
    manager = make_manager(mode, 2)
    seen = []

    def build(tower):
        seen.append(tf.distribute.in_cross_replica_context())
        context = tf.distribute.get_replica_context()
        assert context.strategy is manager.strategy
        return context.num_replicas_in_sync

    assert traced(lambda: manager.run_towers(build))() == [2, 2]
    assert seen == [False, False]
    assert not tf.distribute.has_strategy()
    with pytest.raises(RuntimeError):
        traced(
            lambda: manager.run_towers(
                lambda tower: manager.strategy.reduce("SUM", tf.constant(1.0), axis=None)
            )
        )()
    other = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(RuntimeError), other.scope():
        with manager.strategy.scope():
            pass
    with pytest.raises((RuntimeError, NotImplementedError)):
        copy.copy(manager.strategy)


@pytest.mark.parametrize("mode", [*STRATEGIES, *ONE_DEVICE])
def test_d2_m4_towers_are_built_once_per_trace_off_the_main_thread(mode, make_manager):
    count = 1 if mode in ONE_DEVICE else 3
    manager = make_manager(mode, count)
    built = []

    def build(tower):
        built.append((tower, threading.current_thread() is threading.main_thread()))
        return tf.constant(float(tower))

    step = traced(lambda: manager.run_towers(build))
    for _ in range(3):
        assert [float(value) for value in step()] == [float(t) for t in range(count)]
    assert [tower for tower, _ in built] == list(range(count))
    assert mode == "one_device_strategy" or not any(main for _, main in built)


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
            yield Column(made, [manager.variable(t, spec.name) for t in range(3)])

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


def test_d4_the_gradient_of_a_sum_over_replicas_is_the_sum_of_gradients(make_manager):
    manager = make_manager("mirrored_strategy", 2)

    def build(tower):
        x = tf.constant(float(tower + 1))
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.distribute.get_replica_context().all_reduce("SUM", x)
            loss = total * (10.0**tower)
        return total, tape.gradient(loss, x)

    found = traced(lambda: manager.run_towers(build))()
    assert [(float(total), float(gradient)) for total, gradient in found] == [(3.0, 11.0)] * 2


AVERAGES = (
    VariableSpec("mean", (4,), Initializer.constant(0.0), trainable=False, statistic=True),
    VariableSpec("variance", (4,), Initializer.constant(1.0), trainable=False, statistic=True),
)
AGGREGATIONS = {
    "first": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    "mean": tf.VariableAggregation.MEAN,
}


class Always:
    """No step is skipped."""

    def run(self, update):
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
            return [Moments(*AVERAGES, means[tower], means[tower], decay)]

        moments = manager.run_towers(build)
        update_moving_averages(manager, moments, policy, [Always()] * 2)

    expected = np.zeros(4)
    for means in batches:
        step(tf.constant(means))
        batch = means[0] if policy == "first" else means.mean(axis=0)
        expected = decay * expected + (1.0 - decay) * batch
    share_moving_averages(manager)
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


@pytest.mark.parametrize("mode", STRATEGIES)
def test_d7_slots_are_where_their_variables_are(mode, make_manager, trainable):
    manager = make_manager(mode, 2)
    optimizer = optimizer_of("momentum")
    for group in manager.updated_groups():
        optimizer.create_slots(group)
    for spec in trainable:
        slots = manager.savable_slots(optimizer)[f"{spec.name}/momentum"].copies
        variables = manager.savable_variables()[spec.name].copies
        assert [slot.device for slot in slots] == [v.device for v in variables]


def test_d13_m9_results_are_in_the_order_of_the_devices(cpu_devices, make_manager, declared):
    devices = tuple(reversed(cpu_devices[:3]))
    manager = make_manager("mirrored_strategy", devices)
    assert [c.device for c in manager.savable_variables()["conv0/bias"].copies] == list(devices)
    homes = []

    @traced
    def step():
        made = manager.run_towers(lambda tower: tf.identity(float(tower)))
        homes.extend(value.device for value in made)
        return made

    assert [float(value) for value in step()] == [0.0, 1.0, 2.0]
    assert homes == list(devices)


def test_d15_central_storage_keeps_one_copy_on_the_host(make_manager, cpu_devices):
    manager = make_manager("central_storage_strategy", 3)
    for variable in manager.savable_variables().values():
        assert [copy.device for copy in variable.copies] == [cpu_devices[0]]
        assert variable.copy(2) is variable.primary


def test_m2_replicas_are_equal_at_birth_on_their_devices_and_named(make_manager, cpu_devices):
    manager = make_manager("mirrored_strategy", 3, seed=7)
    for name, variable in manager.savable_variables().items():
        assert [c.device for c in variable.copies] == list(cpu_devices[:3])
        suffixes = ["", "/replica_1", "/replica_2"]
        assert [c.name for c in variable.copies] == [f"v/{name}{s}:0" for s in suffixes]
        for other in variable.copies[1:]:
            np.testing.assert_array_equal(other.numpy(), variable.primary.numpy())


def test_m4_a_variable_of_one_tower_alone_is_an_error(make_manager):
    manager = make_manager("mirrored_strategy", 2)

    def build(tower):
        if tower == 1:
            tf.Variable(1.0)

    with pytest.raises((ValueError, RuntimeError)):
        traced(lambda: manager.run_towers(build))()


@pytest.mark.parametrize("mode", STRATEGIES)
def test_m5_towers_meet_by_a_merge_that_runs_once(mode, make_manager):
    manager = make_manager(mode, 3)
    merges = []

    def merge(values):
        merges.append(threading.current_thread() is threading.main_thread())
        return [tf.add_n(values) + float(t) for t in range(3)]

    def build(tower):
        value = tf.constant(float(tower))
        for _ in range(2):
            value = towers.meet("here", value, merge)
        return value

    found = traced(lambda: manager.run_towers(build, meeting=True))()
    assert [float(value) for value in found] == [12.0, 13.0, 14.0]
    assert merges == [True, True]


@pytest.mark.parametrize("mode", STRATEGIES)
@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
def test_m5_unequal_numbers_of_meetings_are_an_error(mode, counts, make_manager):
    manager = make_manager(mode, 2)

    def build(tower):
        for _ in range(counts[tower]):
            towers.meet("here", 1, lambda values: values)

    with pytest.raises(RuntimeError):
        traced(lambda: manager.run_towers(build, meeting=True))()


@pytest.mark.parametrize("mode", STRATEGIES)
def test_m5_towers_at_different_points_are_named(mode, make_manager):
    manager = make_manager(mode, 2)

    def build(tower):
        towers.meet(f"point {tower}", 1, lambda values: values)

    with pytest.raises(RuntimeError, match="tower 0 has come to point 0, tower 1 to point 1"):
        traced(lambda: manager.run_towers(build, meeting=True))()


@pytest.mark.parametrize("mode", STRATEGIES)
@pytest.mark.parametrize("failing", [0, 1])
def test_m6_a_failing_tower_ends_the_others_with_its_error(mode, failing, make_manager):
    manager = make_manager(mode, 2)

    def build(tower):
        if tower == failing:
            raise LookupError("of one tower")
        towers.meet("here", 1, lambda values: values)

    before = threading.active_count()
    with pytest.raises(LookupError, match="of one tower"):
        traced(lambda: manager.run_towers(build, meeting=True))()
    assert threading.active_count() == before


def test_r1_r2_a_tower_sees_its_copy_and_a_broadcast_reaches_all(make_manager):
    manager = make_manager("mirrored_strategy", 2)
    bias = manager.savable_variables()["conv0/bias"]
    for tower in range(2):
        bias.copy(tower).assign([float(tower + 10)] * 4)
    for tower in range(2):
        seen = manager.read(tower, "conv0/bias", tf.float32)
        np.testing.assert_array_equal(seen, [float(tower + 10)] * 4)
    bias.broadcast()
    assert [copy.numpy()[0] for copy in bias.copies] == [10.0, 10.0]
