"""The L2 gradient: on every decayed weight, once, and in the step it belongs to."""

from __future__ import annotations

import itertools
from typing import Any

import built_runs
import numpy as np
import pytest
import tensorflow as tf
from built_runs import MODES, RATE

from cnnbench.run.driver.build import BuiltRun

pytestmark = pytest.mark.usefixtures("quick_start")

DECAY = 0.25


def build(model: str = "poison", **flags: Any) -> BuiltRun:
    return built_runs.build(model, **{"weight_decay": DECAY, **flags})


def detached(built: BuiltRun) -> list[np.ndarray]:
    """The weight of the poison model that nothing but its L2 loss depends on."""
    return [copy.numpy() for copy in built.manager.savable_variables()["detached"].copies]


POLICIES = [("mean", "fp32"), ("sum", "fp32"), ("mean", "fp16")]


@pytest.mark.parametrize(
    ("mode", "towers", "reduction", "precision"),
    [
        # test_saved_updates.py has pairs of all of these and more.
        *(
            pytest.param(*mode.values, 3, *policy, id=f"{mode.id}-{'-'.join(policy)}")
            for mode, policy in zip(MODES, itertools.cycle(POLICIES))
        ),
        pytest.param(*MODES[0].values, 1, *POLICIES[1], id="alone"),
    ],
)
def test_a_weight_without_any_other_gradient_decays(
    mode: dict[str, str], towers: int, reduction: str, precision: str
) -> None:
    built = build(
        **mode,
        num_gpus=towers,
        gradient_reduction=reduction,
        precision=precision,
        fp16_enable_auto_loss_scale=precision == "fp16",
    )
    summed = towers if reduction == "sum" and mode["variable_update"] != "independent" else 1
    expected = np.full(3, 2.0)
    for _ in range(3):
        built.step().loss.numpy()
        expected -= RATE * DECAY * summed * expected
    for copy in detached(built):
        np.testing.assert_allclose(copy, expected, rtol=1e-6)


def test_without_decay_it_stays() -> None:
    # test_saved_updates.py has every mode without decay.
    built = build(variable_update="replicated", num_gpus=2, weight_decay=0.0)
    built.step().loss.numpy()
    for copy in detached(built):
        np.testing.assert_array_equal(copy, np.full(3, 2.0, np.float32))


def test_its_decay_is_clipped_like_any_gradient() -> None:
    built = build(num_gpus=2, variable_update="replicated", gradient_clip=0.125)
    built.step().loss.numpy()
    for copy in detached(built):
        np.testing.assert_allclose(copy, np.full(3, 2.0 - RATE * 0.125), rtol=1e-6)


def test_update_n_uses_the_whole_gradient_of_step_n_less_one() -> None:
    towers = 2
    built = build(
        "oracle",
        num_gpus=towers,
        variable_update="replicated",
        variable_consistency="relaxed",
        gradient_reduction="sum",
    )
    slopes = [4.0 * float(tf.reduce_mean(images)) + 1.0 for images, _ in built.inputs._towers]
    weights, deferred = np.array([1.0, 2.0]), np.zeros(2)
    for number in range(5):
        loss = np.mean(slopes) * weights.prod() + DECAY * (weights @ weights) / 2
        np.testing.assert_allclose(built.step().loss.numpy(), loss, rtol=1e-5)
        gradient = towers * (np.mean(slopes) * weights[::-1] + DECAY * weights)
        if number == 0:
            assert not deferred.any()
        weights, deferred = weights - RATE * deferred, gradient
        for name, weight in zip("AB", weights, strict=True):
            for copy in built.manager.savable_variables()[name].copies:
                np.testing.assert_allclose(copy.numpy(), weight, rtol=1e-5)
