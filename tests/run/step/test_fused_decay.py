"""Decay that is a part of SGD's update, against updates in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import short_runs
import tensorflow as tf

from cnnbench.run.step.fused_decay import PIECE, FusedSgdDecay

pytestmark = pytest.mark.usefixtures("quick_start")

DECAY = 4e-5
STEPS = 20_000
SCHEDULES = {
    **{f"{rate:g}": [rate, rate] for rate in (0.1, 0.005, 0.001)},
    "cosine": [0.05 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)],
}
BINS = 16


def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of every mantissa, sorted by it, and amplitudes of their gradients, 0 to 0.1."""
    generator = np.random.default_rng(0)
    mantissas = np.sort(generator.uniform(1.0, 2.0, count))
    weights = mantissas * generator.choice([-1.0, 1.0, 0.25], count)
    return np.float32(weights), np.float32(generator.choice([0.0, 1e-3, 0.1], count))


@pytest.mark.slow
def test_the_decay_of_twenty_thousand_steps_is_what_is_due() -> None:
    """All schedules in one loop; sums over the weights of each sixteenth of the mantissas."""
    first, amplitudes = draw(BINS * 64)
    names = list(SCHEDULES)
    rates = np.float32([np.resize(SCHEDULES[name], STEPS) for name in names])
    waves = np.sin(1.7 * np.arange(STEPS)).astype(np.float32)
    variables = [tf.Variable(first) for _ in names]
    steps_done = tf.Variable(0, dtype=tf.int64)
    decay = FusedSgdDecay(DECAY, steps_done)

    @tf.function(autograph=False)
    def train() -> None:
        def one(step: tf.Tensor) -> list[tf.Tensor]:
            gradient = amplitudes * tf.gather(waves, step)
            ends = []
            for variable, of_schedule in zip(variables, rates, strict=True):
                ends += decay.apply([(gradient, variable)], tf.gather(of_schedule, step))
            with tf.control_dependencies([*ends, steps_done.assign_add(1, read_value=False)]):
                return [step + 1]

        tf.while_loop(lambda step: step < STEPS, one, [tf.constant(0)], parallel_iterations=1)

    train()
    due = np.tile(first.astype(np.float64), (len(names), 1))
    plain = due.copy()
    for rate, wave in zip(rates.T[:, :, None].astype(np.float64), waves, strict=True):
        change = rate * (amplitudes.astype(np.float64) * wave)
        due = due - change - rate * DECAY * due
        plain -= change
    found = np.array([variable.numpy() for variable in variables])
    signs = np.sign(first)
    received = ((plain - found) * signs).reshape(len(names), BINS, -1).sum(axis=-1)
    owed = ((plain - due) * signs).reshape(len(names), BINS, -1).sum(axis=-1)
    for name, shares in zip(names, received / owed, strict=True):
        np.testing.assert_allclose(shares, 1.0, atol=0.01, err_msg=name)


def test_no_step_is_far_from_exact_decay() -> None:
    """By no more than docs/models.md says."""
    variable, steps_done = tf.Variable([1.2, -0.7]), tf.Variable(0, dtype=tf.int64)
    apply = tf.function(FusedSgdDecay(DECAY, steps_done).apply, autograph=False)
    for step in range(1, 100):
        apply([(tf.zeros([2]), variable)], tf.constant(0.005))
        steps_done.assign(step)
        exact = np.array([1.2, -0.7]) * (1 - 0.005 * DECAY) ** step
        np.testing.assert_allclose(variable.numpy(), exact, rtol=2 * PIECE)


@pytest.mark.parametrize("product", [0.0, 1e-3, 0.5, 1.0, 1.5])
def test_any_product_of_rate_and_decay(product: float) -> None:
    variable, steps_done = tf.Variable([1.5, -0.7]), tf.Variable(5, dtype=tf.int64)
    apply = tf.function(FusedSgdDecay(product / 0.5, steps_done).apply, autograph=False)
    apply([(tf.constant([0.3, 0.2]), variable)], tf.constant(0.5))
    expected = np.array([1.5, -0.7]) * (1 - product) - 0.5 * np.array([0.3, 0.2])
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6, atol=2e-7)


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    """Decay is due in some steps only, which those before the checkpoint do not tell."""

    def weights(folder: str, *batches: int) -> dict[str, bytes]:
        for count in batches:
            own = {"weight_decay": DECAY, "init_learning_rate": 0.02, "num_warmup_batches": 0}
            short_runs.run(**own, num_batches=count, train_dir=str(tmp_path / folder))
        reader = tf.train.load_checkpoint(str(tmp_path / folder))
        names = [name for name in reader.get_variable_to_shape_map() if "affine" in name]
        return {name: reader.get_tensor(name).tobytes() for name in names}

    whole = weights("whole", 12)
    assert whole
    assert weights("parts", 5, 12) == whole
