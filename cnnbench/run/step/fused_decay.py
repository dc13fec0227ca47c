"""Computes weight decay as a part of SGD's update on CPUs, instead of adding it to the gradients.

With weight w, gradient g, decay d and learning rate r, an update is w (1 - r d) - r g. Computing
g + d w would need additional passes over memory. The proximal step of Duchi and Singer, "Efficient
online and batch learning using forward backward splitting", JMLR 10, 2009, works in place: it is
(w - a g) / (1 + x), which is the same update for a = r (1 + x) and x = 1 / (1 - r d) - 1.

In float32, 1 + x is a multiple of 2^-23, and x is 4e-8 to 4e-6 for usual r and d. If x was rounded
in the same direction in every step, the decay would be up to twice as large, or zero. Each step
therefore uses a multiple of a quantum q, which is exact in float32:

    x_t = q floor(x / q + frac(t φ)),  φ = (sqrt(5) - 1) / 2

for the global step t. By Weyl's theorem, the mean of x_t over steps is x for any irrational φ. With
the golden ratio, sums of x_t remain closest to the exact decay. There is no state except t, so a
resumed run continues bit for bit. The relative difference between a weight and its value with exact
decay is at most a few q.

If x is at least `PIECE`, q is 2^-23, otherwise q is `PIECE`. So no step divides by less than
1 + `PIECE`: a change of a weight is rounded to units in the weight's last place, which is too
coarse for a change of few units (with pieces of 2^-20, the decay of some mantissas is 3 % off).
With larger pieces, the mean would be exact only over more steps. Steps with x_t = 0 are updates of
plain SGD, without the division, which is a second pass over w.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr.gradients import map_on_devices
from cnnbench.variable_mgr.towers import read

PIECE = 2.0**-18
"""Smallest decay in a step with decay, as a share of the weight."""

_ULP = 2.0**-23
"""Distance between neighbouring float32 numbers above 1."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class FusedSgdDecay:
    """Updates variables by SGD with weight decay, in place (see the docstring of the module).

    Args:
      decay: d in the module's description.
      steps_done: t in the module's description, an int64 scalar.
    """

    def __init__(self, decay: float, steps_done: tf.Variable) -> None:
        self._decay = decay
        self._steps_done = steps_done

    def apply(self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor) -> list[Any]:
        """Updates each variable on its device. Returns tensors that depend on the updates.

        Args:
          pairs: float32 gradients without decay, and float32 variables on CPUs.
          rate: learning rate, a float32 scalar.
        """
        by_device: dict[str, list[tuple[tf.Tensor, tf.Variable]]] = {}
        for gradient, variable in pairs:
            by_device.setdefault(variable.device, []).append((gradient, variable))
        return map_on_devices(
            list(by_device),
            lambda there: _apply_sgd(there, rate, self._decay_of_step(rate)),
            list(by_device.values()),
        )

    def _decay_of_step(self, rate: tf.Tensor) -> tf.Tensor:
        """The decay x_t of the current step, a float32 scalar (see the docstring of the module)."""
        product = tf.cast(rate, tf.float64) * self._decay
        kept_share = 1.0 - product
        # If the divisor is 0, 2^-24 is used instead, a value below the precision of float32.
        exact = product / tf.where(kept_share == 0.0, tf.constant(2.0**-24, tf.float64), kept_share)
        phase = tf.cast(read(self._steps_done), tf.float64) * _GOLDEN
        quantum = tf.where(exact < PIECE, tf.constant(PIECE, tf.float64), _ULP)
        return tf.cast(quantum * tf.floor(exact / quantum + (phase - tf.floor(phase))), tf.float32)


def _signal_completion(updates: Iterable[Any]) -> tf.Tensor:
    with tf.control_dependencies(list(updates)):
        return tf.constant(True)


def _apply_sgd(
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor, piece: tf.Tensor
) -> tf.Tensor:
    """Updates variables by SGD with the decay x_t (`piece`), or by plain SGD if it is 0."""

    def decayed() -> tf.Tensor:
        alpha = rate * (1.0 + piece)
        return _signal_completion(
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=variable.handle, alpha=alpha, l1=0.0, l2=piece / alpha, delta=gradient
            )
            for gradient, variable in pairs
        )

    def plain() -> tf.Tensor:
        return _signal_completion(
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            for gradient, variable in pairs
        )

    return tf.cond(tf.not_equal(piece, 0.0), decayed, plain)
