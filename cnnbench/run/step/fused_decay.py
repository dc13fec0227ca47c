"""Weight decay as a part of SGD's update on CPUs.

With decay d and learning rate r an update is w (1 - r d) - r g. A sum g + d w as its gradient
takes passes of its own over memory. The proximal step of Duchi and Singer, "Efficient online and
batch learning using forward backward splitting", JMLR 10, 2009, works in place: (w - a g) / (1 + x)
with a = r (1 + x) and x = 1 / (1 - r d) - 1 is the same update.

In float32, 1 + x is a multiple of 2^-23, and x is 4e-8 to 4e-6 for usual r and d. Rounded in the
same direction in every step, decay would be up to twice what is due, or none. A step therefore
uses a multiple of a quantum q, which is exact in float32:

    x_t = q floor(x / q + frac(t φ)),  φ = (sqrt(5) - 1) / 2

for the global step t. By Weyl's theorem its mean over steps is x for any irrational φ; sums of the
golden ratio stay the closest to it. There is no other state than t, so a resumed run continues bit
for bit. A weight is at most a few q times itself away from that of an exact decay.

q is 2^-23 where x is at least `PIECE`, and otherwise `PIECE` itself, so that no step divides by
less than 1 + `PIECE`: the difference to a weight is rounded to whole units in its last place, which
is too coarse for few of them (with pieces of 2^-20, decay of some mantissas is 3 % off). Of larger
pieces the mean would take more steps. Steps with x_t = 0 are updates of plain SGD, without the
division, which is a second pass over w.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr import tower_variable

PIECE = 2.0**-18
"""Smallest decay of a step that has any, as a share of the weight."""

_ULP = 2.0**-23  # distance of float32 numbers above 1
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class FusedDecay:
    """Updates variables by SGD with weight decay.

    Args:
      decay: d above.
      steps_done: t above, an int64 scalar.
    """

    def __init__(self, decay: float, steps_done: tf.Variable) -> None:
        self._decay = decay
        self._steps_done = steps_done

    def apply(self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor) -> list[Any]:
        """Updates each variable on its device; returns operations or tensors that end with them.

        Args:
          pairs: float32 gradients without decay, and float32 variables on CPUs.
          rate: learning rate, a float32 scalar.
        """
        by_device: dict[str, list[tuple[tf.Tensor, tf.Variable]]] = {}
        for gradient, variable in pairs:
            by_device.setdefault(variable.device, []).append((gradient, variable))
        ends = []
        for device, there in by_device.items():
            with tf.device(device):
                ends.append(_update(there, rate, self._piece(rate)))
        return ends

    def _piece(self, rate: tf.Tensor) -> tf.Tensor:
        """x_t, a float32 scalar."""
        product = tf.cast(rate, tf.float64) * self._decay
        left = 1.0 - product
        # Where nothing is left of a weight, a share of it that float32 cannot tell from nothing.
        due = product / tf.where(left == 0.0, tf.constant(2.0**-24, tf.float64), left)
        turns = tf.cast(tower_variable.read(self._steps_done), tf.float64) * _GOLDEN
        quantum = tf.where(due < PIECE, tf.constant(PIECE, tf.float64), _ULP)
        return tf.cast(quantum * tf.floor(due / quantum + (turns - tf.floor(turns))), tf.float32)


def _after(updates: Iterable[Any]) -> tf.Tensor:
    with tf.control_dependencies(list(updates)):
        return tf.constant(True)


def _update(
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor, piece: tf.Tensor
) -> tf.Tensor:
    def decayed() -> tf.Tensor:
        alpha = rate * (1.0 + piece)
        return _after(
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=variable.handle, alpha=alpha, l1=0.0, l2=piece / alpha, delta=gradient
            )
            for gradient, variable in pairs
        )

    def plain() -> tf.Tensor:
        return _after(
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            for gradient, variable in pairs
        )

    return tf.cond(tf.not_equal(piece, 0.0), decayed, plain)
