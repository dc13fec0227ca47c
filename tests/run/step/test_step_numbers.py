"""The number of the step, which an update function gets if its optimizer declares `takes_step`.

Tests cnnbench/run/step/update.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import EVERYDAY_MODES, MODES, RATE, build

from cnnbench.optimizers import OPTIMIZERS, OptimizerSpec
from cnnbench.optimizers.builtin.adam import OPTIMIZER as ADAM

pytestmark = pytest.mark.usefixtures("quick_start")


def by_number(weight, gradient, rate, step):
    assert step.dtype == tf.int64
    return (tf.zeros_like(weight) + tf.cast(step, tf.float32),)


def adam_by_number(weight, gradient, rate, m, v, beta1, beta2, epsilon, step):
    number = tf.cast(step, tf.float32)
    m = beta1 * m + (1.0 - beta1) * gradient
    v = beta2 * v + (1.0 - beta2) * gradient**2
    scale = tf.sqrt(1.0 - beta2**number) / (1.0 - beta1**number)
    return rate * scale * m / (tf.sqrt(v) + epsilon), m, v


OWN = (
    OptimizerSpec(name="number", formula="w -= t", update=by_number, takes_step=True),
    OptimizerSpec(
        name="adam_by_number",
        formula=ADAM.formula,
        update=adam_by_number,
        slots=ADAM.slots,
        constants=ADAM.constants,
        takes_step=True,
    ),
)


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    for optimizer in OWN:
        monkeypatch.setitem(OPTIMIZERS, optimizer.name, optimizer)


def weights(built):
    """All copies of the two weights of the network."""
    facades = built.manager.savable_variables().values()
    return np.array([[copy.numpy() for copy in facade.copies] for facade in facades])


def change_of_weights(*executions, resumed=0, **flags):
    """What is subtracted from each copy of each weight; `executions` are rates of steps."""
    built = build("oracle", optimizer="number", **flags)
    if resumed:
        built.step.resume(resumed)
    before = weights(built)
    for rates in executions:
        built.step(*rates).loss.numpy()
    return before - weights(built)


ONE, THREE = (RATE,), (RATE, RATE, RATE)


def is_slow(mode):
    return mode.values[0]["variable_update"] not in EVERYDAY_MODES


@pytest.mark.parametrize("mode", slow_if(is_slow, MODES))
def test_steps_are_numbered_from_one(mode):
    change = change_of_weights(ONE, ONE, ONE, num_gpus=2, **mode)
    np.testing.assert_array_equal(change, np.full_like(change, 1 + 2 + 3))


def test_numbers_continue_after_a_checkpoint():
    change = change_of_weights(ONE, ONE, resumed=7)
    np.testing.assert_array_equal(change, np.full_like(change, 8 + 9))


def test_each_step_of_an_execution_has_a_number():
    change = change_of_weights(THREE, THREE, steps_per_execution=3)
    np.testing.assert_array_equal(change, np.full_like(change, sum(range(1, 7))))


def test_passes_of_a_step_share_its_number():
    change = change_of_weights(ONE, ONE, gradient_accumulation_steps=3)
    np.testing.assert_array_equal(change, np.full_like(change, 1 + 2))


def test_a_skipped_update_counts():
    skipping = {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
    built = build("oracle", optimizer="number", num_gpus=2, **skipping)
    built.step.loss_scale.variables()["scale"].assign(float("inf"))
    before = weights(built)
    assert built.step(RATE).skipped.numpy()
    np.testing.assert_array_equal(weights(built), before)
    built.step.loss_scale.variables()["scale"].assign(1.0)
    assert not built.step(RATE).skipped.numpy()
    np.testing.assert_array_equal(before - weights(built), np.full_like(before, 2))


def test_the_number_replaces_the_powers_of_adam():
    trained = {}
    for name in ("adam", "adam_by_number"):
        built = build("oracle", optimizer=name, num_gpus=2)
        for _ in range(5):
            built.step(RATE).loss.numpy()
        trained[name] = weights(built), {*built.slots}
    (expected, slots), (found, own_slots) = trained.values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert own_slots < slots
    assert all("power" in slot for slot in slots - own_slots)
