"""Loss scaling: the factor on the loss that keeps small fp16 gradients from vanishing.

The loss is multiplied before gradients are taken. The gradients keep the factor between devices,
where they may have 16 bits too, and are divided by it where they are applied. Gradients that wait
for the next step are divided before, because the factor may have changed by then.

An automatic factor follows one rule. A step whose aggregated gradients hold a NaN or an infinity is
skipped: weights, optimizer state and moving averages stay as they are, and the factor is halved.
After N steps in a row that were not skipped it is doubled. It is never halved below `FLOOR` nor
doubled above `CAP`; a factor that starts outside these bounds is not moved further away from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.base import Guard
from cnnbench.variable_mgr.gradients import Gradient

FLOOR = 1.0
"""A factor below 1 would push gradients out of fp16's range instead of into it."""
CAP = 2.0**24
"""Far above what gradients need; gradients of zero would otherwise make the factor infinite."""

# A float32 scalar on the current device, a constant, or None for 1.
Factor: TypeAlias = Any


class LossScale:
    """A constant loss scale, with which no update is skipped."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = None if factor == 1.0 else factor

    @property
    def value(self) -> float | None:
        """The current factor; None if it is constant."""
        return None

    def variables(self) -> dict[str, tf.Variable]:
        """State for checkpoints, by canonical name."""
        return {}

    def factor(self) -> Factor:
        """The factor of this step; to be called inside the traced step."""
        return self._factor

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """A guard of updates: all, or with an automatic factor those of finite tensors."""
        del tensors
        return _always

    def judge(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """Decides which updates happen; to be called once in the traced step.

        `gradients` are, per apply device, those that the reduction returns: clipping would hide an
        infinity. Replicas in sync get equal ones, so their updates are skipped together.

        Returns:
          A guard per apply device; a bool scalar, whether an update is skipped (None where none
          ever is); ops that update the loss scale.
        """
        return [_always for _ in gradients], None, []


class AutoLossScale(LossScale):
    """A factor that follows the rule of this module, from `initial` on, with `every_n` as N.

    Its state is on the host, `device`: the decision is needed there anyway, and the scalar travels
    to the towers during their forward passes.
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
        """See `LossScale.value`."""
        return float(self._scale.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        """See `LossScale.variables`."""
        return {"scale": self._scale, "good_steps": self._good_steps}

    def factor(self) -> Factor:
        """See `LossScale.factor`."""
        return tower_variable.read(self._scale)

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """See `LossScale.guard`."""
        return partial(_if_finite, all_finite(tensors, self._device))

    def judge(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """See `LossScale.judge`."""
        flags = [all_finite(of_device, self._device) for of_device in gradients]
        with tf.device(self._device), tf.name_scope("loss_scale"):
            finite = tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)
            guards: list[Guard] = [partial(_if_finite, flag) for flag in flags]
            return guards, tf.logical_not(finite), self._update(finite)

    def _update(self, finite: tf.Tensor) -> list[Any]:
        scale = tower_variable.read(self._scale)
        counted = tower_variable.read(self._good_steps) + 1
        # A checkpoint may have counted towards another N.
        grows = counted >= self._every_n
        grown = tf.maximum(scale, tf.minimum(scale * 2.0, CAP))
        halved = tf.minimum(scale, tf.maximum(scale * 0.5, FLOOR))
        after_good = tf.where(grows, grown, scale)
        kept = tf.logical_and(finite, tf.logical_not(grows))
        return [
            self._scale.assign(tf.where(finite, after_good, halved), read_value=False),
            self._good_steps.assign(tf.where(kept, counted, 0), read_value=False),
        ]


def _always(update: Callable[[], list[Any]]) -> list[Any]:
    return update()


def _if_finite(finite: tf.Tensor, update: Callable[[], list[Any]]) -> list[Any]:
    """Builds an update in a conditional branch, so that a skipped step changes nothing."""

    def updated() -> tf.Tensor:
        with tf.control_dependencies(update()):
            return tf.constant(True)

    return [tf.cond(finite, updated, lambda: tf.constant(False))]


def inverse_of(factor: Factor) -> Factor:
    """1 / factor, on the current device; None for None."""
    return None if factor is None else 1.0 / factor


def unscaled(gradient: Gradient, inverse: Factor) -> Gradient:
    """The gradient divided by the factor, in float32, on the current device; None: unchanged."""
    if gradient is None or inverse is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            unscaled(gradient.values, inverse), gradient.indices, gradient.dense_shape
        )
    return tf.cast(gradient, tf.float32) * inverse


def all_finite(tensors: Sequence[tf.Tensor], device: str) -> tf.Tensor:
    """Whether no element of any tensor is infinite or NaN: a bool scalar on `device`.

    Every distinct tensor is checked once, on its device; one flag per device is sent.
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
