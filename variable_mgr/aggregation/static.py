"""What must be known of tensors when the step is traced."""

from __future__ import annotations

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.stage import TowerTensors


def static_shapes(tensors: TowerTensors) -> list[tf.TensorShape]:
    """The shape of each tensor, the same in all towers.

    Raises:
      ValueError: a shape is not known before the step runs.
    """
    for i, tensor in enumerate(tensors[0]):
        if not tensor.shape.is_fully_defined():
            raise ValueError(f"gradient {i} has the shape {tensor.shape}, which is not known yet")
    return [tensor.shape for tensor in tensors[0]]


def common_dtype(tensors: TowerTensors) -> tf.DType:
    """The one dtype of all tensors.

    Raises:
      ValueError: there are two; names both and where they are.
    """
    first = tensors[0][0].dtype
    for i, tensor in enumerate(tensors[0]):
        if tensor.dtype != first:
            raise ValueError(
                f"gradients of different dtypes cannot share a pack: gradient 0 is {first.name}, "
                f"gradient {i} is {tensor.dtype.name}"
            )
    return first
