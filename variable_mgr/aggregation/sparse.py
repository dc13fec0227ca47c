"""Gradients of which only some rows are there: gathered instead of added."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.gradients import Column


def reduce_sparse(column: Column, devices: Sequence[str], scale: float | None) -> list[tf.Tensor]:
    """Sums the slices of all towers; each device makes its own dense sum.

    What travels is values and indices, in the dtype in which towers computed them. The
    sum is the one of dense gradients, up to the order of additions: rows that occur
    more than once, in one tower or several, add up.

    Args:
      column: its gradients are tf.IndexedSlices (`column.sparse`).
      devices: of the towers.
      scale: factor of the sum, None for 1.

    Returns:
      The dense sum for each tower, with the variable's shape and dtype, on its device.
    """
    values = [slices.values for slices in column.gradients]
    indices = [slices.indices for slices in column.gradients]
    sums = []
    for device, variable in zip(devices, column.variables, strict=True):
        with tf.device(device):
            joined = tf.IndexedSlices(_joined(values), _joined(indices))
            total = gradients.dense(joined, variable)
            sums.append(total if scale is None else total * scale)
    return sums


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)
