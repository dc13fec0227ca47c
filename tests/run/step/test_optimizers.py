"""Every optimizer against formulas written down again in NumPy, in helpers/oracle.py.

Tests cnnbench/optimizers/builtin/*.py and cnnbench/run/step/optimizer.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from oracle import DECOUPLED, RULES
from towers import optimizer_of

from cnnbench.flags import Params
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import OPTIMIZERS, OptimizerSpec, Slot
from cnnbench.plan import check_flags
from cnnbench.plan.rules import unused_flag_notices
from cnnbench.run.step.optimizer import Optimizer

STEPS = 6
SHAPES = ((3, 4), (5,), ())


CONSTANTS = {
    **{"momentum": 0.8, "rmsprop_decay": 0.7, "rmsprop_momentum": 0.6, "rmsprop_epsilon": 0.05},
    **{"adam_beta1": 0.85, "adam_beta2": 0.95, "adam_epsilon": 1e-3, "lamb_epsilon": 2e-3},
    **{"lion_beta1": 0.8, "lion_beta2": 0.7, "lars_coefficient": 0.3},
}
DECAY = 0.125


def make_variables(devices):
    rng = np.random.default_rng(3)
    variables = []
    for index, shape in enumerate(SHAPES):
        with tf.device(devices[index % len(devices)]):
            value = rng.normal(size=shape).astype(np.float32)
            variables.append(tf.Variable(value, name=f"v0/layer{index}/kernel"))
    return variables


def run(optimizer, groups, gradients, rates):
    """Applies gradients[step][i] to variable i of every group, in one function for all.

    Returns:
      The operations of a step.
    """
    ops = []

    @tf.function(autograph=False)
    def step(grads, rate):
        for variables in groups:
            ops.extend(optimizer.apply_gradients(list(zip(grads, variables, strict=True)), rate))

    for grads, rate in zip(gradients, rates, strict=True):
        step([tf.constant(g) for g in grads], tf.constant(rate, tf.float32))
    return ops


def draw_gradients(steps=STEPS):
    rng = np.random.default_rng(5)
    return [[rng.normal(size=s).astype(np.float32) for s in SHAPES] for _ in range(steps)]


RATES = [0.1, 0.1, 0.05, 0.0, 0.2, 0.01]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_six_steps_of_several_groups_with_a_changing_rate(name, cpu_devices):
    """On one device, on three, and on one more."""
    optimizer = optimizer_of(name, **CONSTANTS)
    groups = [
        make_variables(devices) for devices in (cpu_devices[:1], cpu_devices[1:4], cpu_devices[7:])
    ]
    start = [v.numpy().astype(np.float64) for v in groups[0]]
    constants = {flag: CONSTANTS.get(flag, SPECS[flag].default) for flag in OPTIMIZERS[name].flags}
    decays = [DECAY if name in DECOUPLED and index != 1 else 0.0 for index in range(len(SHAPES))]
    for variables in groups:
        optimizer.create_slots(variables)
        optimizer.set_decoupled_decay(
            [v for v, decay in zip(variables, decays, strict=True) if decay], DECAY
        )
    gradients = draw_gradients()
    ops = run(optimizer, groups, gradients, RATES)
    slots = optimizer.slot_variables()
    for index, decay in enumerate(decays):
        weights, state = start[index], {}
        given = {**constants, "decay": decay} if decay else constants
        for step, rate in zip(gradients, RATES, strict=True):
            gradient = step[index].astype(np.float64)
            weights = RULES[name](weights, gradient, rate, state, **given)
        state.pop("step", None)
        for variables in groups:
            variable = variables[index]
            np.testing.assert_allclose(variable.numpy(), weights, rtol=2e-5, atol=1e-6)
            assert {slot for slot, ref in slots if ref == variable.ref()} == set(state)
            for slot, value in state.items():
                own = slots[slot, variable.ref()]
                np.testing.assert_allclose(own.numpy(), value, rtol=2e-5, atol=1e-6)
                assert own.device == variable.device
    applies = [op for op in ops if op.type.startswith(("ResourceApply", "AssignSub"))]
    assert [op.device for op in applies] == [v.device for group in groups for v in group]
    # Nothing but them, assignments of slots by functions, and powers of each group.
    spec = OPTIMIZERS[name]
    own = 0 if spec.operation else len(spec.slots) * len(applies)
    assert len(ops) == len(applies) + own + len(groups) * len(spec.powers)


def nesterov_of_keras(w, g, rate, slots, momentum):
    slots["a"] = momentum * slots.get("a", 0.0) - rate * g
    return w + momentum * slots["a"] - rate * g


def rmsprop_of_keras(w, g, rate, slots, **constants):
    slots.setdefault("mean_square", 0.0)
    return RULES["rmsprop"](w, g, rate, slots, **constants)


def adamw_of_keras(w, g, rate, slots, decay, **constants):
    """Without decay it is Adam: epsilon is added to the uncorrected root."""
    return RULES["adam"](w * (1 - rate * decay), g, rate, slots, **constants)


def lamb_of_keras(w, g, rate, slots, decay, **constants):
    return RULES["lamb"](w * (1 - rate * decay), g, rate, slots, **constants)


# By name: the class of Keras, its arguments by flags, and its formula if that is another one.
ADAM = {"beta_1": "adam_beta1", "beta_2": "adam_beta2", "epsilon": "adam_epsilon"}
OF_KERAS = {
    "sgd": ("SGD", {}, None),
    "momentum": ("SGD", {"momentum": "momentum"}, nesterov_of_keras),
    "rmsprop": (
        "RMSprop",
        {"rho": "rmsprop_decay", "momentum": "rmsprop_momentum", "epsilon": "rmsprop_epsilon"},
        rmsprop_of_keras,
    ),
    "adam": ("Adam", ADAM, None),
    "adamw": ("AdamW", ADAM, adamw_of_keras),
    "lamb": ("Lamb", {**ADAM, "epsilon": "lamb_epsilon"}, lamb_of_keras),
    "lion": ("Lion", {"beta_1": "lion_beta1", "beta_2": "lion_beta2"}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_KERAS)
def test_the_formulas_that_the_docs_say_keras_has(name):
    """Those of cnnbench, in helpers/oracle.py, are others where docs/models.md says so."""
    import keras

    kind, arguments, formula = OF_KERAS[name]
    constants = {flag: CONSTANTS[flag] for flag in arguments.values()}
    given = {argument: CONSTANTS[flag] for argument, flag in arguments.items()}
    if name == "momentum":
        given["nesterov"] = True
    if name in DECOUPLED:
        given, constants = {**given, "weight_decay": DECAY}, {**constants, "decay": DECAY}
    optimizer = getattr(keras.optimizers, kind)(learning_rate=RATES[0], **given)
    start = np.random.default_rng(3).normal(size=SHAPES[0])
    variable = keras.Variable(start.astype(np.float32))
    found = {"of Keras": start, "ours": start}
    rules = {"of Keras": formula or RULES[name], "ours": RULES[name]}
    slots = {which: {} for which in rules}
    for (gradient, *_), rate in zip(draw_gradients(), RATES, strict=True):
        optimizer.learning_rate.assign(rate)
        optimizer.apply([tf.constant(gradient)], [variable])
        for which, rule in rules.items():
            exact = gradient.astype(np.float64)
            found[which] = rule(found[which], exact, rate, slots[which], **constants)
    result = variable.value.numpy()
    np.testing.assert_allclose(result, found["of Keras"], rtol=2e-5, atol=1e-6)
    assert np.allclose(result, found["ours"], rtol=2e-5, atol=1e-6) == (formula is None)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_norm_of_zero_makes_a_trust_ratio_of_one(name, cpu_devices):
    optimizer = optimizer_of(name)
    variables = [tf.Variable(tf.zeros([2, 2])), tf.Variable(tf.ones([2, 2]))]
    optimizer.create_slots(variables)
    gradients = [np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)]
    run(optimizer, [variables], [gradients], [0.25])
    for variable, expected in zip(variables, (-0.25, 1.0), strict=True):
        np.testing.assert_allclose(variable.numpy(), np.full((2, 2), expected), rtol=1e-5)


def test_adam_counts_the_steps_of_each_group(cpu_devices):
    optimizer = optimizer_of("adam", adam_beta1=0.5, adam_beta2=0.25)
    first, second = make_variables(cpu_devices[:1]), make_variables(cpu_devices[1:2])
    optimizer.create_slots(first)
    optimizer.create_slots(second)
    run(optimizer, [first], draw_gradients(2), [0.1, 0.1])
    run(optimizer, [first, second], draw_gradients(1), [0.1])
    powers = {k: [p.numpy() for p in v] for k, v in optimizer.shared_variables().items()}
    assert powers == {"beta1_power": [0.5**4, 0.5**2], "beta2_power": [0.25**4, 0.25**2]}
    devices = [p.device for p in optimizer.shared_variables()["beta1_power"]]
    assert devices == list(cpu_devices[:2])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_constants_are_those_of_the_command_line(name):
    """A flag that is misspelt in a declaration, or read by no optimizer, shows here."""
    spec = OPTIMIZERS[name]
    flags = Params(optimizer=name, **dict.fromkeys(spec.flags, 0.375))
    own = {getattr(flags, flag) for flag in spec.flags}
    assert own == ({0.375} if spec.flags else set())
    assert unused_flag_notices(check_flags(flags), spec.flags) == ()
    others = [f for other in OPTIMIZERS.values() for f in other.flags if f not in spec.flags]
    told = " ".join(unused_flag_notices(check_flags(Params(optimizer=name)), others))
    assert all(f"--{flag}" in told for flag in others)


def test_a_declaration_is_all_that_an_optimizer_needs(cpu_devices):
    """Adagrad: s += g^2, w -= lr g / (sqrt(s) + eps), with a flag of another one for eps."""
    spec = OptimizerSpec(
        name="adagrad",
        formula="s += g^2, w -= lr g / (sqrt(s) + epsilon)",
        operation="ResourceApplyAdagradV2",
        slots=(Slot("squares", "accum", 0.1),),
        constants={"epsilon": OPTIMIZERS.constants["adam_epsilon"]},
        fixed={"update_slots": True},
    )
    variables = make_variables(cpu_devices[:1])
    weights = [v.numpy().astype(np.float64) for v in variables]
    optimizer = Optimizer(spec, spec.values(Params(**CONSTANTS)))
    optimizer.create_slots(variables)
    gradients = draw_gradients()
    run(optimizer, [variables], gradients, RATES)
    squares = [np.full(shape, 0.1) for shape in SHAPES]
    for step, rate in zip(gradients, RATES, strict=True):
        for i, gradient in enumerate(step):
            squares[i] += gradient.astype(np.float64) ** 2
            weights[i] = weights[i] - rate * gradient / (np.sqrt(squares[i]) + 1e-3)
    for variable, expected in zip(variables, weights, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-5, atol=1e-6)
