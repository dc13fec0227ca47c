"""Copies of tensors between the memories of devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def copied_to(device: str, nest: Any) -> Callable[[Any], Any]:
    """Makes a thread-safe function that copies nests like `nest` to a device in one call.

    The nests have equal structure and dtypes, any shapes, and may contain None. In TensorFlow 2.21
    a copy between host and GPU waits, in either direction, for everything that was enqueued on the
    GPU when it is issued. One call for all waits once; eager copies wait one after the other.
    """

    def copies(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.identity(tensor) for tensor in tensors]

    specs = [tf.TensorSpec(None, one.dtype) for one in _present(nest)]
    concrete = tf.function(copies, autograph=False).get_concrete_function(*specs)
    return lambda tensors: _packed(tensors, concrete(*_present(tensors)))


def _present(nest: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(nest) if one is not None]


def _packed(nest: Any, values: Iterable[Any]) -> Any:
    """The nest with these values in place of its own, in order; None stays None."""
    found = iter(values)
    return tf.nest.map_structure(lambda one: None if one is None else next(found), nest)


class ReadEvents(NamedTuple):
    """Functions that a read calls, each once and in any thread.

    `issued`: from now on launches do not delay the read. `arrived` takes the seconds since the
    values arrived on the host.
    """

    issued: Callable[[], None]
    arrived: Callable[[float], None]


class ScalarReader:
    """Reads scalars from a GPU, and reports when later launches can no longer delay them.

    A copy to the host waits for everything that is enqueued on the GPU when the copy is issued.
    Python cannot observe that moment, but the order of operations within TensorFlow shows it. The
    scalars (float32 or bool; parts of the nest may be None) become one int32 vector in GPU memory,
    read by an operation with int32 operands in host memory, before which TensorFlow inserts a copy
    (``EnsureMemoryTypes``) that belongs to the GPU's part of the function. The executor of a GPU
    runs operations in one thread, in the order in which they become ready: the copy is issued
    before an operation two further ones behind the vector, which is sent to the host. The function
    stamps the arrival, because it returns only after several threads have waited for each other.
    """

    def __init__(self, device: str, host: str, nest: Any) -> None:
        self._host = host
        self._issued: Callable[[], None] = lambda: None

        def issued(behind: np.ndarray) -> np.ndarray:
            self._issued()
            return behind

        def read(*scalars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.xla.experimental.jit_scope(compile_ops=False):
                with tf.device(device):
                    packed = tf.stack([tf.cast(scalar, tf.float32) for scalar in scalars])
                    bits = tf.bitcast(packed, tf.int32)
                    copied = tf.maximum(bits, tf.int32.min)  # the same, in host memory
                    with tf.control_dependencies([bits]):
                        behind = tf.shape(packed) + 1
                with tf.device(host):
                    values = tf.bitcast(copied, tf.float32)
                    with tf.control_dependencies([values]):
                        stamp = tf.timestamp()
                    called = tf.numpy_function(issued, [behind], tf.int32, stateful=False)
                    return values, stamp, called

        # Of unknown shape: otherwise `behind` would be a constant.
        specs = [tf.TensorSpec(None, one.dtype) for one in _present(nest)]
        self._read = tf.function(read, autograph=False).get_concrete_function(*specs)

    def __call__(self, nest: Any, events: ReadEvents) -> Any:
        """The scalars as NumPy values, once everything that they depend on is done.

        The next call must not begin before `events.issued` was called.
        """
        self._issued = events.issued
        with tf.device(self._host):  # where the results of the function are put
            values, stamp, _ = self._read(*_present(nest))
        events.arrived(time.time() - float(stamp))
        return _packed(nest, values.numpy())
