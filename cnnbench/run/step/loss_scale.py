"""Loss scaling: the loss is multiplied by a factor, so that fp16 gradients do not become zero.

The loss is multiplied by a factor, the loss scale, before gradients are computed. Gradients contain
the factor while they are sent between devices, because they may have 16 bits there, too. They are
divided by the factor before they are applied. Gradients that are applied in the next step are
divided in their own step, because the factor may change.

An automatic factor is computed as follows. If aggregated gradients contain NaN or infinity, the
step is skipped: weights, optimizer state and moving averages do not change, and the factor is
halved. After N consecutive steps that were not skipped, the factor is doubled. It is never halved
below `FLOOR` or doubled above `CAP`. If the initial factor is outside these bounds, it does not
move further away from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.base import Guard
from cnnbench.variable_mgr.gradients import Gradient
from cnnbench.variable_mgr.towers import read

FLOOR = 1.0
"""Minimum of an automatic factor: smaller factors move gradients out of the range of fp16."""
CAP = 2.0**24
"""Maximum of an automatic factor, which zero gradients would otherwise make infinite."""

# A loss scale: a float32 scalar on the current device, a constant, or None (no scaling).
Factor: TypeAlias = Any


class LossScale:
    """A constant loss scale. No update is skipped."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = None if factor == 1.0 else factor

    @property
    def value(self) -> float | None:
        """The current value of an automatic factor; None if the factor is constant."""
        return None

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of the loss scale that checkpoints contain, by canonical name."""
        return {}

    def factor(self) -> Factor:
        """Returns the loss scale of this step. Must be called in the traced step."""
        return self._factor

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """Returns a function that runs updates. Subclasses may require finite `tensors`."""
        del tensors
        return _run_update

    def find_skipped_updates(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """Determines which updates are skipped. It is called once in the traced step.

        `gradients` are the results of the reduction for each device that applies updates, before
        clipping, which would hide infinities. Equal replicas get equal gradients, so their updates
        are skipped together.

        Returns:
          A guard for each of these devices; a bool scalar, whether an update is skipped (None if
          updates are never skipped); operations that update the loss scale.
        """
        return [_run_update for _ in gradients], None, []


class AutoLossScale(LossScale):
    """An automatic loss scale, which is halved after infinite gradients and doubled after N steps.

    The docstring of the module describes the algorithm. The state of the loss scale is on the host,
    because the host decides. The factor is sent to the towers during their forward passes.

    Args:
      initial: initial factor.
      every_n: N, the number of consecutive finite steps after which the factor is doubled.
      device: the CPU of the host.
    """

    def __init__(self, initial: float, every_n: int, device: str) -> None:
        super().__init__()
        self._every_n = every_n
        self._device = device
        with tf.device(device):
            self._scale = tf.Variable(
                initial, dtype=tf.float32, trainable=False, name="loss_scale/scale"
            )
            self._good_steps = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="loss_scale/good_steps"
            )

    @property
    def value(self) -> float:
        """The current factor."""
        return float(self._scale.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        """The factor, and the number of finite steps since its last change, by canonical name."""
        return {"scale": self._scale, "good_steps": self._good_steps}

    def factor(self) -> Factor:
        """Reads the factor of this step, in the traced step."""
        return read(self._scale)

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """Returns a function that runs an update if `tensors` are finite."""
        return partial(_update_if_finite, all_finite(tensors, self._device))

    def find_skipped_updates(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """Skips updates by gradients that are not finite, see `LossScale.find_skipped_updates`."""
        flags = [all_finite(of_device, self._device) for of_device in gradients]
        with tf.device(self._device), tf.name_scope("loss_scale"):
            finite = tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)
            guards: list[Guard] = [partial(_update_if_finite, flag) for flag in flags]
            return guards, tf.logical_not(finite), self._update_scale(finite)

    def _update_scale(self, finite: tf.Tensor) -> list[Any]:
        scale = read(self._scale)
        counted = read(self._good_steps) + 1
        # A restored count may be larger than N, if the run that wrote the checkpoint had a larger
        # N.
        grows = counted >= self._every_n
        grown = tf.maximum(scale, tf.minimum(scale * 2.0, CAP))
        halved = tf.minimum(scale, tf.maximum(scale * 0.5, FLOOR))
        after_good = tf.where(grows, grown, scale)
        counts_on = tf.logical_and(finite, tf.logical_not(grows))
        return [
            self._scale.assign(tf.where(finite, after_good, halved), read_value=False),
            self._good_steps.assign(tf.where(counts_on, counted, 0), read_value=False),
        ]


def _run_update(update: Callable[[], list[Any]]) -> list[Any]:
    return update()


def _update_if_finite(finite: tf.Tensor, update: Callable[[], list[Any]]) -> list[Any]:
    """Builds an update in a conditional branch, so that a skipped step changes no variables."""

    def updated() -> tf.Tensor:
        with tf.control_dependencies(update()):
            return tf.constant(True)

    return [tf.cond(finite, updated, lambda: tf.constant(False))]


def inverse_scale(factor: Factor) -> Factor:
    """The reciprocal of a loss scale, on the current device; None if the loss scale is None."""
    return None if factor is None else 1.0 / factor


def divide_by_scale(gradient: Gradient, inverse: Factor) -> Gradient:
    """Divides a gradient by the loss scale, in float32 on the current device.

    `inverse` is the reciprocal of the loss scale. If it is None, the gradient is unchanged.
    """
    if gradient is None or inverse is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = divide_by_scale(gradient.values, inverse)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, tf.float32) * inverse


def all_finite(tensors: Sequence[tf.Tensor], device: str) -> tf.Tensor:
    """Checks that no element of any tensor is infinite or NaN. Returns a bool scalar on `device`.

    Every distinct tensor is checked once, on its own device. Each device sends one bool.
    """
    by_device: dict[str, dict[int, tf.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, {})[id(tensor)] = tensor
    flags = []
    for home, distinct in by_device.items():
        with tf.device(home):
            finite = [tf.reduce_all(tf.math.is_finite(t)) for t in distinct.values()]
            flags.append(tf.reduce_all(tf.stack(finite)))
    with tf.device(device):
        return tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)
