"""What must be known of tensors when the step is traced, and must be the same in all towers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.stage import TowerTensors


def static_shapes(tensors: TowerTensors) -> list[tf.TensorShape]:
    """The shape of each tensor, the same in all towers.

    Raises:
      ValueError: a shape is not known before the step runs, or towers differ; names the
        tower and the gradient.
    """
    for tower, own in enumerate(tensors):
        for i, tensor in enumerate(own):
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"gradient {i} of tower {tower} has the shape {tensor.shape}, which is not "
                    "known yet"
                )
    return _of_all(tensors, "shape", lambda tensor: tensor.shape)


def static_dtypes(tensors: TowerTensors) -> list[tf.DType]:
    """The dtype of each tensor, the same in all towers.

    Raises:
      ValueError: towers differ; names the tower and the gradient.
    """
    return _of_all(tensors, "dtype", lambda tensor: tensor.dtype)


def common_dtype(tensors: TowerTensors) -> tf.DType:
    """The one dtype of all tensors.

    Raises:
      ValueError: there are two; names both and where they are.
    """
    first, *others = static_dtypes(tensors)
    for i, dtype in enumerate(others, start=1):
        if dtype != first:
            raise ValueError(
                f"gradients of different dtypes cannot share a pack: gradient 0 is {first.name}, "
                f"gradient {i} is {dtype.name}"
            )
    return first


def _of_all(tensors: TowerTensors, name: str, value: Callable[[tf.Tensor], Any]) -> list[Any]:
    """What tower 0 has, after a look at the others."""
    first = [value(tensor) for tensor in tensors[0]]
    for tower, own in enumerate(tensors):
        if len(own) != len(first):
            raise ValueError(f"tower {tower} has {len(own)} gradients, and tower 0 {len(first)}")
        for i, (tensor, wanted) in enumerate(zip(own, first, strict=True)):
            if value(tensor) != wanted:
                raise ValueError(
                    f"gradient {i} of tower {tower} has the {name} {_text(value(tensor))}, and "
                    f"that of tower 0 {_text(wanted)}"
                )
    return first


def _text(value: tf.TensorShape | tf.DType) -> str:
    return str(value.name if isinstance(value, tf.DType) else value)
