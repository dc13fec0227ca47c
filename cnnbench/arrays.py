"""Types of tensors and arrays, for the signatures of networks, optimizers and other functions that
plug-ins define or call.

At run time, all types are `Any`, so that importing this module does not import TensorFlow.
TensorFlow has no type annotations: type checkers, too, treat its types as `Any`, unless the package
types-tensorflow is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    Tensor: TypeAlias = tf.Tensor
    """A tensor of a traced function, or an eager tensor."""

    Array: TypeAlias = np.ndarray[Any, Any]
    """A NumPy array."""
else:
    Tensor = Array = Any

Tensors: TypeAlias = Any
"""A tensor or, if a network has several features, outputs or labels, tensors by name."""

__all__ = ["Array", "Tensor", "Tensors"]
