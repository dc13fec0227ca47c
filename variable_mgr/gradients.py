"""Gradients of towers, brought into the one form that reductions accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

# A tensor, tf.IndexedSlices, or None where the loss does not depend on the variable.
Gradient: TypeAlias = Any
DeviceGrads: TypeAlias = "Sequence[Sequence[tuple[Gradient, tf.Variable]]]"


class Column(NamedTuple):
    """One logical variable: the gradient of each tower and the variable it is for.

    Gradients are dense tensors of the variable's shape and dtype, or, if `sparse`, all
    tf.IndexedSlices with values in the dtype of the tower's computation.
    """

    gradients: list[Any]
    variables: list[tf.Variable]

    @property
    def sparse(self) -> bool:
        """Whether the gradients are tf.IndexedSlices."""
        return isinstance(self.gradients[0], tf.IndexedSlices)


def dense(gradient: Gradient, variable: tf.Variable) -> tf.Tensor:
    """The gradient as a dense tensor with the variable's shape and dtype.

    Call it under the tower's device. Slices of IndexedSlices with the same index
    add up.
    """
    if isinstance(gradient, tf.IndexedSlices):
        # The declared shape, because the slices need not know theirs.
        return tf.math.unsorted_segment_sum(
            _cast(gradient.values, variable.dtype), gradient.indices, variable.shape[0]
        )
    return _cast(gradient, variable.dtype)


def columns(
    device_grads: DeviceGrads, devices: Sequence[str], keep_sparse: bool = False
) -> list[Column]:
    """Turns gradients by tower into gradients by variable.

    The gradient of a tower whose loss does not use the variable is zero, so a mean
    still divides by the number of towers. A variable that no tower uses is left
    out and gets no update.

    Args:
      device_grads: device_grads[t][g] is the pair (gradient, variable) of tower t.
      devices: the towers' devices, in the same order.
      keep_sparse: whether a variable for which every tower has tf.IndexedSlices or
        None keeps them, with no slices for None. Otherwise all is made dense.

    Raises:
      ValueError: if towers differ in number from devices, or in their gradients.
    """
    result = []
    for pairs in zip(*_checked(device_grads, devices), strict=True):
        present = [gradient for gradient, _ in pairs if gradient is not None]
        if not present:
            continue
        sparse = keep_sparse and all(isinstance(g, tf.IndexedSlices) for g in present)
        gradients = []
        for (gradient, variable), device in zip(pairs, devices, strict=True):
            with tf.device(device):
                if gradient is None:
                    gradients.append(_nothing(variable, present[0] if sparse else None))
                else:
                    gradients.append(gradient if sparse else dense(gradient, variable))
        result.append(Column(gradients, [variable for _, variable in pairs]))
    return result


def add_up(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of tensors by one op on the current device; no op for a single tensor."""
    return tensors[0] if len(tensors) == 1 else tf.add_n(list(tensors))


def _checked(device_grads: DeviceGrads, devices: Sequence[str]) -> DeviceGrads:
    if len(device_grads) != len(devices):
        raise ValueError(f"gradients of {len(device_grads)} towers for {len(devices)} devices")
    counts = sorted({len(pairs) for pairs in device_grads})
    if len(counts) > 1:
        raise ValueError(f"towers have different numbers of gradients: {counts}")
    return device_grads


def _nothing(variable: tf.Variable, like: tf.IndexedSlices | None) -> Gradient:
    """A gradient that adds nothing: zeros, or no slices if others have slices."""
    if like is None:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.IndexedSlices(
        tf.zeros([0, *variable.shape[1:]], like.values.dtype), tf.zeros([0], like.indices.dtype)
    )


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
