"""Exchanges values other than gradients between workers that each run their own step.

Collective operations in different workers are matched by a counter. Therefore every worker must
build the same functions and make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.algorithms.collective import (
    Collective,
    build_collective_ops,
    collective_group_key,
)
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.buffers import FlatBufferLayout


class WorkerGroup:
    """Exchanges values between the CPUs of a job's workers. Worker 0 is the chief."""

    def __init__(self, cpus: Sequence[str], own: str) -> None:
        self._cpus = tuple(cpus)
        self._own = own
        self._reduce = Collective(ReduceContext(devices=self._cpus, own=(own,)))
        # Traced functions by name, dtype and shape, so that each is traced only once.
        self._traced: dict[tuple[Any, ...], Any] = {}

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, worker 0."""
        return self._own == self._cpus[0]

    @property
    def size(self) -> int:
        """Number of workers in the job."""
        return len(self._cpus)

    def gather_in_step(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates a tensor of each worker, with one static shape, inside the traced step.

        The order of the tensors is the same in all workers.
        """
        with tf.device(self._own):
            return self._reduce.gather([tensor])[0]

    def sum_in_step(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums float32 tensors of static shapes over all workers, inside the traced step."""
        with tf.device(self._own):
            layout = FlatBufferLayout([tensor.shape for tensor in tensors], tf.float32)
            return layout.split(self._reduce(layout.join(tensors), 0))

    def sum_over_workers(self, values: Any) -> Any:
        """Sums an int64 or float64 array over all workers, outside the traced step.

        The arrays of all workers must have the same shape.
        """
        return self._call_traced(self._sum_traced, tf.constant(np.asarray(values))).numpy()

    def broadcast_chief_bool(self, value: bool) -> bool:
        """Returns the chief's `value` in every worker, outside the traced step."""
        return bool(self.sum_over_workers(int(value and self.is_chief)))

    def broadcast_chief_tensors(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns exact copies of the chief's tensors in every worker, outside the traced step.

        Dtypes and shapes must be equal in all workers.
        """
        results: list[Any] = [None] * len(values)
        for dtype in dict.fromkeys(value.dtype for value in values):
            group = [i for i, value in enumerate(values) if value.dtype == dtype]
            layout = FlatBufferLayout([values[i].shape for i in group], dtype)
            with tf.device(self._own):
                (flat,) = layout.join([values[i] for i in group])
                received = layout.split([self._call_traced(self._broadcast, flat)])
            for i, value in zip(group, received, strict=True):
                results[i] = value
        return results

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns the `data` of every worker, in the order of workers, outside the traced step."""
        row = self._cpus.index(self._own)
        sizes = np.zeros(len(self._cpus), np.int64)
        sizes[row] = len(data)
        sizes = self.sum_over_workers(sizes)
        table = np.zeros((len(self._cpus), -(-int(sizes.max()) // 8) * 8), np.uint8)
        table[row, : len(data)] = np.frombuffer(data, np.uint8)
        if table.size:
            # Each worker fills only its own row with data, so the sum over all workers contains
            # every row.
            table = self.sum_over_workers(table.view(np.int64)).view(np.uint8)
        return [table[i, :size].tobytes() for i, size in enumerate(sizes)]

    def _call_traced(self, build: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
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

    def _sum_traced(self, value: tf.Tensor) -> tf.Tensor:
        return self._reduce([value], 0)[0]

    def _broadcast(self, value: tf.Tensor) -> tf.Tensor:
        size, key = len(self._cpus), collective_group_key(self._cpus)

        def broadcast_op(tensor: tf.Tensor, instance_key: int) -> tf.Tensor:
            common = {"group_size": size, "group_key": key, "instance_key": instance_key}
            common["shape"] = tensor.shape
            if self.is_chief:
                return tf.raw_ops.CollectiveBcastSend(input=tensor, **common)
            return tf.raw_ops.CollectiveBcastRecv(T=tensor.dtype, **common)

        return build_collective_ops(broadcast_op, [self._own], [value], key)[0]
