"""How much weight decay takes off in hundreds of steps, against updates in float64.

test_fused_decay.py has decay that is a part of the update.

A step takes off less than a float32 can hold: what is applied is right on average over steps, if
gradients vary, and over weights.

Tests cnnbench/run/step/update.py.
"""

from functools import partial

import numpy as np
import oracle
import pytest
import short_runs
from covering import slow_if
from short_runs import MODES

pytestmark = pytest.mark.usefixtures("quick_start")


STEPS = 160
# Defaults of most models.
RATE, DECAY = 0.005, 4e-5
# Applied over due; the float32 of a weight and its gradient, summed over all weights.
TOLERANCE = 0.01


def applied_over_due(rate, **flags):
    """What decay has taken off the weights of a tower, over what was due; sums over weights."""
    built = short_runs.build("drift", weight_decay=DECAY, **flags)
    (weights,) = built.manager.savable_variables().values()
    generator = np.random.default_rng(0)
    count = weights.shape.num_elements()
    first = np.float32(generator.choice([-1, 1], count) * generator.uniform(0.5, 1.5, count))
    for copy in (*weights.copies, *built.manager.updated("weights").copies):
        copy.assign(first)
    rule = oracle.RULES[flags.get("optimizer", "sgd")]
    with_decay, without = (partial(rule, rate=rate, slots={}) for _ in range(2))
    due = plain = first.astype(np.float64)
    slopes = np.sin(1.7 * np.arange(count, dtype=np.float32)).astype(np.float64)
    for scale in generator.uniform(-1.0, 1.0, STEPS).astype(np.float32):
        for images, _ in built.inputs._towers:
            images.assign(np.full(images.shape, scale))
        built.step(rate).loss.numpy()
        due = with_decay(due, scale * slopes + DECAY * due)
        plain = without(plain, scale * slopes)
    found = weights.copies[0].numpy()
    built.close()
    return float(np.sign(first) @ (plain - found) / (np.sign(first) @ (plain - due)))


SHARED, _, _, INDEPENDENT, _, MIRRORED = (mode.values[0] for mode in MODES)


@pytest.mark.parametrize(
    ("rate", "flags"),
    slow_if(
        lambda case: case[0] != RATE or case[1].get("optimizer") == "adam",
        [
            # Products of rate and decay far below and above what is usual.
            (1e-8 / DECAY, {"gradient_clip": 10.0}),
            (1e-2 / DECAY, {**INDEPENDENT, "num_gpus": 2}),
            (RATE, {**SHARED, "num_gpus": 2, "optimizer": "momentum"}),
            (RATE, {**MIRRORED, "num_gpus": 2, "optimizer": "adam"}),
            (RATE, {"staged_vars": True}),  # staged weights are those of the step before
        ],
    ),
    ids=lambda x: " ".join(map(str, x.values())) if isinstance(x, dict) else f"{x:g}",
)
def test_what_is_taken_off_is_what_is_due(rate, flags):
    assert applied_over_due(rate, **flags) == pytest.approx(1.0, abs=TOLERANCE)
