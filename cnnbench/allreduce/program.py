"""Reductions as TensorFlow runs them: traced, chained, synchronised."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from cnnbench.allreduce.buffers import Buffers, DeviceTensors

# Takes the tensors of every device to as many sums for every device.
Reduction: TypeAlias = "Callable[[DeviceTensors], DeviceTensors]"


class Program:
    """A traced function that reduces the tensors of buffers, several times one after another.

    Args:
      buffers: hold the tensors, and the sums afterwards.
      make_reduction: called once for each reduction in the chain, so that none can share
        state or keys with another.
      chain: reductions in one call. Each begins when the one before has put its sums on
        every device.

    Attributes:
      trace_seconds: to trace the function.
      first_call_seconds: of the first call, in which TensorFlow optimises and places the
        graph; None before it.
      operations: in the traced graph.
    """

    def __init__(
        self, buffers: Buffers, make_reduction: Callable[[], Reduction], chain: int
    ) -> None:
        self.chain = chain
        self.first_call_seconds: float | None = None
        begin = time.perf_counter()
        function = tf.function(lambda: _chained(buffers, make_reduction, chain), autograph=False)
        self._call = function.get_concrete_function()
        self.trace_seconds = time.perf_counter() - begin
        self.operations = len(self._call.graph.get_operations())

    def run(self) -> float:
        """Calls the function, waits until every device has its sums.

        Returns:
          Seconds.
        """
        begin = time.perf_counter()
        self._call().numpy()
        seconds = time.perf_counter() - begin
        if self.first_call_seconds is None:
            self.first_call_seconds = seconds
        return seconds

    @property
    def build_seconds(self) -> float | None:
        """Tracing and first call together; None before the first call."""
        if self.first_call_seconds is None:
            return None
        return self.trace_seconds + self.first_call_seconds


def copy_all(tensors: DeviceTensors) -> DeviceTensors:
    """No reduction: every device copies its tensors, all devices at once."""
    copies = []
    for own in tensors:
        with tf.device(own[0].device):
            copies.append([tf.raw_ops.DeepCopy(x=tensor) for tensor in own])
    return copies


def _chained(buffers: Buffers, make_reduction: Callable[[], Reduction], chain: int) -> tf.Tensor:
    first = buffers.devices[0]
    finished: list[tf.Operation] = []
    for _ in range(chain):
        with tf.control_dependencies(finished):
            tensors = buffers.read()
        tokens = buffers.write(make_reduction()(tensors), tensors)
        with tf.device(first):
            done = tf.add_n(tokens)
        finished = [done.op]
    return done
