"""Copies of tensors between the memories of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def copied_to(device: str, nest: Any) -> Callable[[Any], Any]:
    """Makes a function that copies tensors to a device, all of them in one call.

    It does nothing else. In TensorFlow 2.21 a copy between host and GPU waits for what was
    enqueued on the GPU when it is issued, in either direction, and the call for all copies. So a
    call waits once, whatever the number of tensors, and not for what is enqueued behind it; eager
    copies one after the other wait for more each time.

    Args:
      device: device string.
      nest: of tensors; parts may be None.

    Returns:
      Takes a nest with the structure and dtypes of `nest`, of any shapes, and returns one of
      tensors on the device. Safe to call in several threads.
    """

    def copies(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.identity(tensor) for tensor in tensors]

    specs = [tf.TensorSpec(None, one.dtype) for one in _present(nest)]
    concrete = tf.function(copies, autograph=False).get_concrete_function(*specs)

    def copied(tensors: Any) -> Any:
        found = iter(concrete(*_present(tensors)))
        return tf.nest.map_structure(lambda one: None if one is None else next(found), tensors)

    return copied


def _present(nest: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(nest) if one is not None]
