"""Columns of tensors: shapes and dtypes that are known at tracing time and equal in all towers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

# columns[i][t] is tensor i of tower t; tensor i has one dtype and static shape in all towers.
Columns: TypeAlias = "list[list[tf.Tensor]]"
# Takes what was reduced back to the form that the stage was given.
Inverse: TypeAlias = "Callable[[Columns], Columns]"


def static_shapes(columns: Columns) -> list[tf.TensorShape]:
    """The shape of each tensor, the same in all towers.

    Raises:
      ValueError: a shape is not known before the step runs, or towers differ; names the
        tower and the gradient.
    """
    for i, column in enumerate(columns):
        for tower, tensor in enumerate(column):
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"gradient {i} of tower {tower} has the unknown shape {tensor.shape}"
                )
    return _of_all(columns, "shape", lambda tensor: tensor.shape)


def static_dtypes(columns: Columns) -> list[tf.DType]:
    """The dtype of each tensor, the same in all towers.

    Raises:
      ValueError: towers differ; names the tower and the gradient.
    """
    return _of_all(columns, "dtype", lambda tensor: tensor.dtype)


def common_dtype(columns: Columns) -> tf.DType:
    """The one dtype of all tensors.

    Raises:
      ValueError: there are two; names both and where they are.
    """
    first, *others = static_dtypes(columns)
    for i, dtype in enumerate(others, start=1):
        if dtype != first:
            raise ValueError(
                f"gradients of different dtypes cannot share a pack: gradient 0 is {first.name}, "
                f"gradient {i} is {dtype.name}"
            )
    return first


def _of_all(columns: Columns, name: str, value: Callable[[tf.Tensor], Any]) -> list[Any]:
    """The value of tower 0, after a comparison with the others."""
    for i, column in enumerate(columns):
        wanted = value(column[0])
        for tower, tensor in enumerate(column):
            if value(tensor) != wanted:
                raise ValueError(
                    f"gradient {i} of tower {tower} has the {name} {_text(value(tensor))}, and "
                    f"that of tower 0 {_text(wanted)}"
                )
    return [value(column[0]) for column in columns]


def _text(value: tf.TensorShape | tf.DType) -> str:
    return str(value.name if isinstance(value, tf.DType) else value)
