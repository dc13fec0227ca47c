"""Counts asynchronous updates of shared variables, and how stale each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.run.step.readers import group_dependencies
from cnnbench.variable_mgr import towers

_NO_LIMIT = 2**63 - 1


class UpdateCounter:
    """Counts asynchronous updates of shared variables.

    A worker reads the count before it reads the variables, and increments it after it has updated
    them. The staleness of its update is the number of increments in between, as in Dai et al.,
    "Toward understanding the impact of staleness in distributed machine learning", ICLR 2019.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates_done")

    def resume(self, count: int) -> None:
        """Sets the number of updates so far."""
        self._count.assign(count)

    def read(self) -> tf.Tensor:
        """Reads the number of updates so far, an int64 scalar, before any variable is read."""
        return towers.read(self._count)

    def increment(self, count_before: tf.Tensor, updates: Sequence[Any] = ()) -> tf.Tensor:
        """Counts an update after all its assignments. Returns its staleness, an int64 scalar.

        `count_before` is the result of `read` in the same step.
        """
        home = self._count.device
        with tf.device(home), tf.control_dependencies(group_dependencies(updates, home)):
            # One operation both reads and increments, so that no two updates get the same number.
            before = tf.raw_ops.ResourceCountUpTo(
                resource=self._count.handle, limit=_NO_LIMIT, T=tf.int64
            )
            return before - count_before
