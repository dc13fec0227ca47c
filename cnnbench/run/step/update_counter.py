"""Staleness of asynchronous updates: updates between a worker's read and its write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.run.step.readers import signals
from cnnbench.variable_mgr import tower_variable

_NO_LIMIT = 2**63 - 1


class UpdateCounter:
    """Counts asynchronous updates of shared variables.

    A worker reads the count before it reads the variables and increments it after it has updated
    them. The staleness of its update is the number of increments in between, as in Dai et al.,
    "Toward understanding the impact of staleness in distributed machine learning", ICLR 2019.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates_done")

    @property
    def count(self) -> int:
        """Updates so far."""
        return int(self._count.numpy())

    def resume(self, count: int) -> None:
        """Sets the number of updates so far."""
        self._count.assign(count)

    def begin(self) -> tf.Tensor:
        """The count so far, an int64 scalar, read before any variable."""
        return tower_variable.read(self._count)

    def end(self, begun: tf.Tensor, updates: Sequence[Any] = ()) -> tf.Tensor:
        """Counts an update after all its assignments; returns its staleness, an int64 scalar.

        `begun` is what `begin` returned in the same step.
        """
        home = self._count.device
        with tf.device(home), tf.control_dependencies(signals(updates, home)):
            # In one operation, so that no two updates get the same number.
            before = tf.raw_ops.ResourceCountUpTo(
                resource=self._count.handle, limit=_NO_LIMIT, T=tf.int64
            )
            return before - begun
