"""Communication between workers with steps of their own, except for gradients.

Collectives find one another by counted keys: every worker must build the same functions and make
the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.variable_mgr.aggregation.flat_buffers import FlatLayout
from cnnbench.variable_mgr.all_reduce.algorithms.collective import (
    Collective,
    collectively,
    group_key,
)
from cnnbench.variable_mgr.all_reduce.context import ReduceContext


class WorkerGroup:
    """One CPU of every worker of a job; the first is that of worker 0, the chief."""

    def __init__(self, cpus: Sequence[str], own: str) -> None:
        self._cpus = tuple(cpus)
        self._own = own
        self._reduce = Collective(ReduceContext(devices=self._cpus, own=(own,)))
        # A function for each form of its argument, so that a call is traced once.
        self._traced: dict[tuple[Any, ...], Any] = {}

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self._own == self._cpus[0]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._cpus)

    def gather_rows(self, tensor: tf.Tensor) -> tf.Tensor:
        """Joins tensors of one static shape from all workers in one order, in the traced step."""
        with tf.device(self._own):
            return self._reduce.gather([tensor])[0]

    def add(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums float32 tensors of static shapes over the workers, in the traced step."""
        with tf.device(self._own):
            layout = FlatLayout([tensor.shape for tensor in tensors], tf.float32)
            return layout.split(self._reduce(layout.join(tensors), 0))

    def total(self, values: Any) -> Any:
        """The sum of an int64 (exact) or float64 array of one shape over the workers (eagerly)."""
        return self._call(self._sum, tf.constant(np.asarray(values))).numpy()

    def decided(self, value: bool) -> bool:
        """The chief's value, which other workers may have determined differently (eagerly)."""
        return bool(self.total(int(value and self.is_chief)))

    def of_chief(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The chief's values, bit by bit (eagerly); dtypes and shapes are equal in all workers."""
        results: list[Any] = [None] * len(values)
        for dtype in dict.fromkeys(value.dtype for value in values):
            group = [i for i, value in enumerate(values) if value.dtype == dtype]
            layout = FlatLayout([values[i].shape for i in group], dtype)
            with tf.device(self._own):
                (flat,) = layout.join([values[i] for i in group])
                received = layout.split([self._call(self._broadcast, flat)])
            for i, value in zip(group, received, strict=True):
                results[i] = value
        return results

    def gather(self, data: bytes) -> list[bytes]:
        """Bytes of every worker, in order (eagerly); lengths may differ."""
        row = self._cpus.index(self._own)
        sizes = np.zeros(len(self._cpus), np.int64)
        sizes[row] = len(data)
        sizes = self.total(sizes)
        table = np.zeros((len(self._cpus), -(-int(sizes.max()) // 8) * 8), np.uint8)
        table[row, : len(data)] = np.frombuffer(data, np.uint8)
        if table.size:
            # Where one has bytes, the others have zeros.
            table = self.total(table.view(np.int64)).view(np.uint8)
        return [table[i, :size].tobytes() for i, size in enumerate(sizes)]

    def _call(self, build: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
        key = (build.__name__, value.dtype, tuple(value.shape))

        def together(value: tf.Tensor) -> tf.Tensor:
            with tf.device(self._own):
                return build(value)

        if key not in self._traced:
            function = tf.function(together, autograph=False)
            form = tf.TensorSpec(value.shape, value.dtype)
            self._traced[key] = function.get_concrete_function(form)
        with tf.device(self._own):
            return self._traced[key](value)

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._reduce([value], 0)[0]

    def _broadcast(self, value: tf.Tensor) -> tf.Tensor:
        size, key = len(self._cpus), group_key(self._cpus)

        def op(tensor: tf.Tensor, instance_key: int) -> tf.Tensor:
            common = {
                "group_size": size,
                "group_key": key,
                "instance_key": instance_key,
                "shape": tensor.shape,
            }
            if self.is_chief:
                return tf.raw_ops.CollectiveBcastSend(input=tensor, **common)
            return tf.raw_ops.CollectiveBcastRecv(T=tensor.dtype, **common)

        return collectively(op, [self._own], [value], key)[0]
