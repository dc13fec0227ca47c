"""All modes against an oracle in NumPy, for every tower count, reduction and placement.

helpers/towers.py has the losses.

Tests variable_mgr/modes.py, variable_mgr/base.py and variable_mgr/strategies.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs, everyday_values, slow_if
from forked import optimized_graphs
from oracle import LOCAL_SGD, LOCAL_SGD_EVERY
from towers import centre, columns_of, create_slots, curvature, one_step, optimizer_of, trained

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr import names
from cnnbench.variable_mgr.gradients import VariableGradients

TOWERS = (1, 2, 3, 4, 8)
ONE_COPY = ("parameter_server", "central_storage_strategy")
UPDATED_ONCE = (*ONE_COPY, "distributed_replicated")
# Their towers train apart, those of a plug-in but for an exchange after some steps.
APART = ("independent", LOCAL_SGD)
MODES = (
    *UPDATED_ONCE,
    *("replicated", "distributed_all_reduce", "mirrored_strategy", "collective_all_reduce"),
    *APART,
)
RATE = 0.1
STEPS = 3


def oracle(weights, mode, reduction, steps, momentum, skip=()):
    """weights[t][i] after some steps of Nesterov momentum, in float64; see towers.py for `skip`."""
    towers = len(weights)
    weights = [[w.astype(np.float64) for w in tower] for tower in weights]
    velocity = [[np.zeros_like(w) for w in tower] for tower in weights]
    for step in range(1, steps + 1):
        gradients = [
            [((t, i) not in skip) * curvature(t) * (w - centre(t, i)) for i, w in enumerate(tower)]
            for t, tower in enumerate(weights)
        ]
        if mode not in APART:
            total = [
                sum(g) / (towers if reduction == "mean" else 1)
                for g in zip(*gradients, strict=True)
            ]
            gradients = [total] * towers
        for tower, (w, v, g) in enumerate(zip(weights, velocity, gradients, strict=True)):
            velocity[tower] = [momentum * a + b for a, b in zip(v, g, strict=True)]
            weights[tower] = [
                a - RATE * (c + momentum * b) for a, b, c in zip(w, velocity[tower], g, strict=True)
            ]
        if mode == LOCAL_SGD and step % LOCAL_SGD_EVERY == 0:
            weights = [[sum(w) / towers for w in zip(*weights, strict=True)]] * towers
    return weights


def is_slow(case):
    """Whether the everyday suite, which has a mode of each kind, leaves a case out."""
    return case[0] not in ("parameter_server", "replicated", "mirrored_strategy", "independent")


def weights_of(manager, variables):
    return [
        [manager.variable(tower, v.name).numpy() for v in variables]
        for tower in range(len(manager.get_devices()))
    ]


def assert_weights(manager, variables, expected):
    """Those of every tower are float32 and as the oracle says."""
    for own, wanted in zip(weights_of(manager, variables), expected, strict=True):
        for value, exact in zip(own, wanted, strict=True):
            assert value.dtype == np.float32
            np.testing.assert_allclose(value, exact, rtol=2e-5, atol=1e-5)


def updated(manager, variables):
    """Every variable that an update changes or that towers read."""
    found = [c for v in variables for c in manager.savable_variables()[v.name].copies]
    found += [c for v in variables for c in manager.updated(v.name).copies]
    return list({variable.ref(): variable for variable in found}.values())


def train(manager, optimizer, variables):
    create_slots(manager, optimizer)
    step = tf.function(lambda rate: one_step(manager, optimizer, variables, rate), autograph=False)
    for _ in range(STEPS):
        step(tf.constant(RATE))


# Number of ps tasks, distribution of variables over them, and caching; no ps tasks first.
PS_TASKS = (
    (0, "greedy_bytes", "none"),
    (1, "greedy_bytes", "consumer"),
    (2, "round_robin", "none"),
    (3, "round_robin", "cpu"),
    (3, "greedy_bytes", "consumer"),
)


@pytest.mark.parametrize(
    ("mode", "towers", "reduction", "place", "ps_tasks", "momentum"),
    everyday_values(
        covering_pairs(
            *(MODES, TOWERS, ["mean", "sum"], ["cpu", "towers"], PS_TASKS, [0.75, 0.0]),
            allowed=lambda mode, towers, reduction, place, ps, momentum: (
                (ps is PS_TASKS[0] or mode == UPDATED_ONCE[PS_TASKS.index(ps) % 3])
                # Two numbers of towers each.
                and (TOWERS.index(towers) - MODES.index(mode)) % 5 in (0, 2)
            ),
        )
    ),
)
def test_weights_after_three_steps(
    mode, towers, reduction, place, ps_tasks, momentum, make_manager, trainable, cpu_devices
):
    ps, strategy, caching = ps_tasks
    manager = make_manager(
        mode,
        towers,
        reduction=reduction,
        parameter_device=place,
        ps_devices=cpu_devices[len(cpu_devices) - ps :],
        ps_strategy=strategy,
        variable_caching=caching,
        seed=5,
    )
    before = weights_of(manager, trainable)
    train(manager, optimizer_of("momentum", momentum=momentum), trainable)
    assert_weights(manager, trainable, oracle(before, mode, reduction, STEPS, momentum))


@pytest.mark.parametrize("mode", MODES)
def test_one_tower_adds_no_ops(mode, make_manager, trainable):
    manager = make_manager(mode, 1)
    grads = [tf.ones(v.shape) for v in trainable]
    owned = trained(manager, 0)
    devices, state = manager.preprocess_device_grads(
        columns_of([list(zip(grads, owned, strict=True))])
    )
    pairs = manager.get_gradients_to_apply(0, state)
    assert len(devices) == 1
    assert all(pair[0] is grad for pair, grad in zip(pairs, grads, strict=True))
    updated_group = manager.updated_groups()[0]
    assert all(pair[1] is variable for pair, variable in zip(pairs, updated_group, strict=True))


@pytest.mark.slow
def test_synchronous_modes_train_alike(make_manager, trainable):
    results = []
    places = [
        ("parameter_server", "cpu"),
        ("parameter_server", "towers"),
        ("replicated", "towers"),
        ("distributed_replicated", "cpu"),
        ("mirrored_strategy", "cpu"),
        ("central_storage_strategy", "cpu"),
    ]
    for mode, place in places:
        manager = make_manager(mode, 3, parameter_device=place, seed=2)
        with optimized_graphs():  # which rounds sums of all modes alike
            train(manager, optimizer_of("adam"), trainable)
        results += weights_of(manager, trainable)
    for result in results[1:]:
        for value, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(value, first)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        *("parameter_server", "distributed_replicated", "replicated", "mirrored_strategy"),
        LOCAL_SGD,
    ],
)
def test_two_steps_in_one_trace_are_two_steps(mode, make_manager, trainable):
    manager = make_manager(mode, 2, seed=1)
    before = weights_of(manager, trainable)
    optimizer = optimizer_of("momentum", momentum=0.75)
    create_slots(manager, optimizer)

    @tf.function(autograph=False)
    def twice(rate):
        one_step(manager, optimizer, trainable, rate)
        return one_step(manager, optimizer, trainable, rate)

    twice(tf.constant(RATE))
    assert_weights(manager, trainable, oracle(before, mode, "mean", 2, momentum=0.75))


@pytest.mark.parametrize(
    ("mode", "towers"), slow_if(is_slow, [(mode, 2 + n % 2) for n, mode in enumerate(MODES)])
)
def test_updates_run_where_the_variables_are_and_of_those_with_gradients(
    mode, towers, make_manager, trainable, cpu_devices
):
    """The second tower does not use variable 2, no tower uses 1; a NaN spoils 3 in the second."""
    manager = make_manager(mode, towers, parameter_device="towers", seed=1)
    optimizer = optimizer_of("momentum", momentum=0.75)
    create_slots(manager, optimizer)
    before = weights_of(manager, trainable)
    unused = {(1, 2), *((tower, 1) for tower in range(towers))}
    step = tf.function(
        lambda rate: one_step(manager, optimizer, trainable, rate, skip=unused, spoil={(1, 3)}),
        autograph=False,
    ).get_concrete_function(tf.TensorSpec([], tf.float32))

    operations = step.graph.get_operations()
    applied = [op for op in operations if op.type == "ResourceApplyMomentum"]
    copies = [
        copy
        for n in (0, 2, 3)
        for tower, copy in enumerate(manager.updated(trainable[n].name).copies)
        if mode not in APART or (tower, n) not in unused
    ]
    assert sorted(op.device for op in applied) == sorted(c.device for c in copies)
    if mode not in UPDATED_ONCE:
        # A counter of steps is none of the towers'.
        reads = [
            op.device
            for op in operations
            if op.type == "ReadVariableOp" and op.outputs[0].dtype == tf.float32
        ]
        assert reads == [d for d in cpu_devices[:towers] for _ in trainable]

    slot = manager.savable_slots(optimizer)[f"{trainable[1].name}/momentum"]
    for copy in slot.copies:
        copy.assign(tf.ones_like(copy))
    for _ in range(STEPS):
        step(tf.constant(RATE))
    expected = oracle(before, mode, "mean", STEPS, 0.75, skip=unused)
    for tower in range(towers):
        expected[tower][1] = before[tower][1]
        if tower == 1 or mode not in APART:
            expected[tower][3] = np.full_like(before[tower][3], np.nan)
    if mode == LOCAL_SGD:
        expected[0][3] = expected[1][3]
    assert_weights(manager, trainable, expected)
    for tower in range(towers):
        assert (slot.copy(tower).numpy() == 1.0).all(), "not even decay reaches the slots"


@pytest.mark.parametrize(
    ("mode", "dtype"),
    slow_if(is_slow, [(mode, ("float16", "bfloat16")[n % 2]) for n, mode in enumerate(MODES)]),
)
def test_embedding_gradients_become_dense_float32(mode, dtype, make_manager):
    """The mean over three towers is no number of 16 bits."""
    table = VariableSpec("embedding/table", (5, 2), Initializer.constant(0.0))
    manager = make_manager(mode, 3, variables=[table])
    rows = ([3, 0, 3], [1, 3], [4])

    @tf.function(autograph=False)
    def step():
        device_grads = []
        for tower, device in enumerate(manager.get_devices()):
            with tf.device(device), tf.GradientTape() as tape:
                value = manager.read(tower, table.name, tf.as_dtype(dtype))
                tape.watch(value)
                loss = tf.reduce_sum(tf.gather(value, rows[tower]))
            gradient = tape.gradient(loss, value)
            assert isinstance(gradient, tf.IndexedSlices)
            assert gradient.dtype == dtype
            device_grads.append([(gradient, manager.variable(tower, table.name))])
        devices, state = manager.preprocess_device_grads(columns_of(device_grads))
        return [manager.get_gradients_to_apply(i, state)[0][0] for i in range(len(devices))]

    counts = [np.bincount(r, minlength=5) for r in rows]
    wanted = counts if mode in APART else [sum(counts) / 3] * 3
    for gradient, count in zip(step(), wanted, strict=False):
        assert gradient.dtype == tf.float32
        np.testing.assert_allclose(gradient, np.stack([count, count], axis=1), rtol=1e-6)


def conditional(good):
    """A guard that updates only if told so, inside the graph."""

    def guard(update):
        def branch():
            with tf.control_dependencies(update()):
                return tf.constant(1)

        return [tf.cond(good, branch, lambda: tf.constant(0)).op]

    return guard


# Those that run/step/test_skipped_steps.py has not.
@pytest.mark.parametrize(
    "mode",
    slow_if(
        ["collective_all_reduce"],  # it updates as replicated does
        ["central_storage_strategy", "collective_all_reduce", LOCAL_SGD],
    ),
)
def test_a_loss_scale_can_hold_an_update_back(mode, make_manager, trainable):
    manager = make_manager(mode, 2, seed=1)
    optimizer = optimizer_of("adam")
    create_slots(manager, optimizer)
    state = [c for f in manager.savable_slots(optimizer).values() for c in f.copies]
    state += updated(manager, trainable)
    before = [v.numpy() for v in state]

    @tf.function(autograph=False)
    def step(rate, good):
        return one_step(manager, optimizer, trainable, rate, guard=conditional(good))

    step(tf.constant(RATE), tf.constant(False))
    assert all((v.numpy() == old).all() for v, old in zip(state, before, strict=True))
    # Two steps: after one, local_sgd has the mean of steps in opposite directions.
    for _ in range(2):
        step(tf.constant(RATE), tf.constant(True))
    assert not any((v.numpy() == old).all() for v, old in zip(state, before, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_too_few_towers_are_refused(mode, make_manager):
    with pytest.raises(ValueError, match="1 towers for 2 devices"):
        make_manager(mode, 2).preprocess_device_grads([VariableGradients([None], [None])])


def test_every_registered_mode_is_tested_here():
    of_one_tower = {"one_device_strategy", "multi_worker_mirrored_strategy"}  # on CPUs
    assert {*names(), LOCAL_SGD} == {*MODES, *of_one_tower, "parameter_server_strategy"}
