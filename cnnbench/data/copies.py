"""Copies of tensors between host and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def make_copy_to_device(device: str, nest: Any) -> Callable[[Any], Any]:
    """Returns a thread-safe function that copies all tensors of a nested structure to a device with
    one call of TensorFlow.

    The structures have the same nesting and dtypes as `nest`, may have any shapes, and may contain
    None. In TensorFlow 2.21, a copy between host and GPU, in either direction, first waits for
    everything that is already enqueued on the GPU. One call for all tensors waits only once; with
    eager copies, each copy would wait.
    """

    def copies(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.identity(tensor) for tensor in tensors]

    specs = [tf.TensorSpec(None, tensor.dtype) for tensor in _tensors_of(nest)]
    concrete = tf.function(copies, autograph=False).get_concrete_function(*specs)
    return lambda tensors: _replace(tensors, concrete(*_tensors_of(tensors)))


def _tensors_of(nest: Any) -> list[Any]:
    return [tensor for tensor in tf.nest.flatten(nest) if tensor is not None]


def _replace(nest: Any, values: Iterable[Any]) -> Any:
    """Replaces the values in a nested structure, in order. None remains None."""
    tensors = iter(values)
    return tf.nest.map_structure(lambda part: None if part is None else next(tensors), nest)


class ReadCallbacks(NamedTuple):
    """Callbacks of one read from a GPU by `ScalarReader`. Each is called once, in any thread.

    `issued` is called when steps that are launched later can no longer delay the read. `arrived` is
    called with the seconds since the values arrived on the host.
    """

    issued: Callable[[], None]
    arrived: Callable[[float], None]


class ScalarReader:
    """Reads scalars from a GPU to the host. Reports when steps that are launched from then on
    cannot delay the read.

    A copy to the host waits for everything that is enqueued on the GPU when the copy is issued.
    Python cannot observe this moment directly, so it is derived from the order of operations in
    TensorFlow.

    The scalars (float32 or bool; parts of the nest may be None) are packed into an int32 vector in
    GPU memory. An operation with int32 operands in host memory reads the vector, so TensorFlow
    inserts a copy before it (``EnsureMemoryTypes``), in the GPU's part of the function. A GPU's
    executor runs operations in one thread, in the order in which they become ready. A second branch
    depends on the vector, too, and is two operations long; its result is sent to the host. When it
    arrives, the copy must have been issued.

    The arrival of the scalars is timestamped inside the function, because the function returns
    later: several threads wait for each other first.
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
                    # tf.maximum reads int32 operands from host memory, so TensorFlow copies the
                    # bits to the host. The result is unchanged.
                    copied = tf.maximum(bits, tf.int32.min)
                    with tf.control_dependencies([bits]):
                        behind = tf.shape(packed) + 1
                with tf.device(host):
                    values = tf.bitcast(copied, tf.float32)
                    with tf.control_dependencies([values]):
                        stamp = tf.timestamp()
                    called = tf.numpy_function(issued, [behind], tf.int32, stateful=False)
                    return values, stamp, called

        # The shapes are unknown to the graph; otherwise TensorFlow would compute `behind` in
        # advance, without waiting for `bits`.
        specs = [tf.TensorSpec(None, tensor.dtype) for tensor in _tensors_of(nest)]
        self._read = tf.function(read, autograph=False).get_concrete_function(*specs)

    def __call__(self, nest: Any, events: ReadCallbacks) -> Any:
        """Waits for the scalars and returns them as NumPy values in a structure like `nest`.

        Do not start the next call before `events.issued` has been called.
        """
        self._issued = events.issued
        # TensorFlow places the results of the function on this device, the host.
        with tf.device(self._host):
            values, stamp, _ = self._read(*_tensors_of(nest))
        events.arrived(time.time() - float(stamp))
        return _replace(nest, values.numpy())
