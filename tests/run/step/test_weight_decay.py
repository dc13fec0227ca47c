"""The L2 gradient: on every decayed weight, once, and in the step it belongs to."""

from __future__ import annotations

import itertools
from typing import Any

import built_runs
import numpy as np
import pytest
import tensorflow as tf
from bowls import optimizer_of
from built_runs import MODES, RATE
from towers import columns_of

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.run.driver.build import BuiltRun
from cnnbench.run.step.loss_scale import StaticLossScale
from cnnbench.run.step.tower import StepConfig
from cnnbench.run.step.update import Updater
from cnnbench.run.step.update_plan import UpdatePlan
from cnnbench.variable_mgr import VariableMgrSpec, create
from cnnbench.variable_mgr.base import VariableMgr

pytestmark = pytest.mark.usefixtures("quick_start")

DECAY = 0.25
VARIABLES = (
    VariableSpec("kernel", (2, 3), Initializer.truncated_normal(0.5)),
    VariableSpec("gamma", (2,), Initializer.constant(1.0), weight_decay=False),
)


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


def manager(mode: str, devices: tuple[str, ...]) -> VariableMgr:
    made = create(
        VariableMgrSpec(variable_update=mode, devices=devices, cpu_device=devices[0]), VARIABLES
    )
    made.create_variables()
    return made


def before_reduction(
    made: VariableMgr, gradients: list[list[Any]], *, deferred: bool = False
) -> list[list[Any]]:
    """What is reduced of gradients[tower][variable]."""
    device_grads = [
        [(g, made.variable(t, v.name)) for g, v in zip(of_tower, VARIABLES, strict=True)]
        for t, of_tower in enumerate(gradients)
    ]
    columns = columns_of(device_grads)
    plan = UpdatePlan(weight_decay=DECAY, decay=DECAY, deferred=deferred)
    optimizer, config = optimizer_of("sgd"), StepConfig(update=plan)
    updater = Updater(made, VARIABLES, optimizer, StaticLossScale(), config)
    found = [updater.before_reduction(column) for column in columns]
    for before, after in zip(columns, found, strict=True):
        assert [v.ref() for v in after.variables] == [v.ref() for v in before.variables]
    return [[column.gradients[t] for column in found] for t in range(len(gradients))]


def test_a_gradient_missing_in_some_towers_is_left_to_the_reduction(
    cpu_devices: tuple[str, ...],
) -> None:
    given = tf.ones([2, 3])
    (first, second) = before_reduction(
        manager("replicated", cpu_devices[:2]), [[None, None], [given, None]]
    )
    assert first == [None, None]
    assert second[0] is given
    assert second[1] is None


def test_a_gradient_missing_in_all_towers_is_zero_for_decayed_weights_only(
    cpu_devices: tuple[str, ...],
) -> None:
    for tower, (kernel, gamma) in enumerate(
        before_reduction(manager("replicated", cpu_devices[:2]), [[None, None], [None, None]])
    ):
        np.testing.assert_array_equal(kernel.numpy(), np.zeros((2, 3)))
        assert kernel.device == cpu_devices[tower]
        assert gamma is None


def test_independent_towers_look_at_their_own_gradient_only(cpu_devices: tuple[str, ...]) -> None:
    (first, second) = before_reduction(
        manager("independent", cpu_devices[:2]), [[None, None], [tf.ones([2, 3]), None]]
    )
    np.testing.assert_array_equal(first[0].numpy(), np.zeros((2, 3)))
    np.testing.assert_array_equal(second[0].numpy(), np.ones((2, 3)))


def test_deferred_gradients_are_complete_before_the_reduction(
    cpu_devices: tuple[str, ...],
) -> None:
    made = manager("replicated", cpu_devices[:3])
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 1]), tf.constant([2, 3]))
    gamma = tf.ones([2])
    given = [[None, None], [tf.ones([2, 3]), gamma], [slices, None]]
    found = before_reduction(made, given, deferred=True)
    term = DECAY * made.variable(0, "kernel").numpy()
    for tower, data in enumerate(([[0.0], [0.0]], [[1.0], [1.0]], [[0.0], [2.0]])):
        np.testing.assert_allclose(found[tower][0].numpy(), term + data, rtol=1e-6)
        assert found[tower][0].device == cpu_devices[tower]
    assert [pairs[1] for pairs in found] == [None, gamma, None]


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
