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

    Gradients are dense tensors of the variable's shape and of one dtype, or, if `sparse`,
    all tf.IndexedSlices with values in the dtype of the tower's computation.
    """

    gradients: list[Any]
    variables: list[tf.Variable]

    @property
    def sparse(self) -> bool:
        """Whether the gradients are tf.IndexedSlices."""
        return isinstance(self.gradients[0], tf.IndexedSlices)


def dense(gradient: Gradient, variable: tf.Variable, dtype: tf.DType | None = None) -> tf.Tensor:
    """The gradient as a dense tensor with the variable's shape.

    Call it under the tower's device. Slices of IndexedSlices with the same index
    add up.

    Args:
      gradient: not None.
      variable: what it is for.
      dtype: of the result; None for the variable's.
    """
    dtype = variable.dtype if dtype is None else dtype
    if isinstance(gradient, tf.IndexedSlices):
        # The declared shape, because the slices need not know theirs.
        return tf.math.unsorted_segment_sum(
            cast(gradient.values, dtype), gradient.indices, variable.shape[0]
        )
    return cast(gradient, dtype)


def columns(
    device_grads: DeviceGrads,
    devices: Sequence[str],
    *,
    keep_sparse: bool = False,
    keep_dtype: bool = False,
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
      keep_dtype: whether dense gradients keep the dtype in which the towers computed
        them, if they agree on one. Otherwise they get the variable's.

    Raises:
      ValueError: if towers differ in number from devices, or in their gradients.
    """
    result = []
    for pairs in zip(*_checked(device_grads, devices), strict=True):
        present = [gradient for gradient, _ in pairs if gradient is not None]
        if not present:
            continue
        sparse = keep_sparse and all(isinstance(g, tf.IndexedSlices) for g in present)
        dtypes = {gradient.dtype for gradient in present}
        dtype = dtypes.pop() if keep_dtype and len(dtypes) == 1 else pairs[0][1].dtype
        gradients = []
        for (gradient, variable), device in zip(pairs, devices, strict=True):
            with tf.device(device):
                if sparse:
                    gradients.append(_no_slices(present[0]) if gradient is None else gradient)
                elif gradient is None:
                    gradients.append(tf.zeros(variable.shape, dtype))
                else:
                    gradients.append(dense(gradient, variable, dtype))
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


def _no_slices(like: tf.IndexedSlices) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.zeros([0, *like.values.shape[1:]], like.values.dtype), tf.zeros([0], like.indices.dtype)
    )


def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The tensor as `dtype`; no op if it is that already."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
