"""Makes updates of variables wait for operations that use the buffers of the variables.

A read of a variable returns the variable's own buffer. If an update runs while an operation uses
this buffer, the update first copies the whole variable; otherwise it works in place. TensorFlow
only orders updates after reads, not after operations that use the result of a read. So updates here
wait for these operations.

Only updates of variables on CPUs wait, and only for operations on CPUs of the same task. Operations
on a GPU or in another task have a copy, and waiting for each of these operations would need a
signal between devices. Copying a variable within a GPU takes less time than these signals.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr.towers import handles_read

_SHARING = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Types of operations whose result uses the buffer of their first input."""


class BufferReaderFinder:
    """Finds the operations of a traced function that use the buffers of variables.

    See `cnnbench.variable_mgr.towers.read`.
    """

    def __init__(self, graph: tf.Graph) -> None:
        handles = handles_read.get(graph, {})
        # Maps the name of a tensor to the handle of the variable whose buffer the tensor uses.
        values: dict[str, int] = {}
        self._readers: dict[int, list[tf.Operation]] = defaultdict(list)
        for operation in graph.get_operations():  # Operations are in topological order.
            names = [tensor.name for tensor in operation.inputs]
            if operation.type == "ReadVariableOp" and names[0] in handles:
                values[operation.outputs[0].name] = handles[names[0]]
                continue
            for handle in {values[name] for name in names if name in values}:
                self._readers[handle].append(operation)
            if operation.type in _SHARING and names[0] in values:
                values[operation.outputs[0].name] = values[names[0]]

    def wait_for_readers(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """Makes a gradient, and so an update, wait for operations that use a variable's buffer."""
        home = _cpu_task(variable.device)
        if home is None:
            return gradient
        # Operations without a task run in the calling process, which is not a ps task.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _cpu_task(reader.device) in near]
        if not readers:
            return gradient
        waiting = tf.control_dependencies(group_dependencies(readers, variable.device))
        with tf.device(variable.device), waiting:
            return tf.identity(gradient, name="waiting")


def group_dependencies(operations: Sequence[Any], device: str) -> list[Any]:
    """Joins control dependencies for `device`, so that each other device sends only one signal."""
    if all(operation.device == device for operation in operations):
        return list(operations)
    return [tf.group(*operations)]  # tf.group creates one operation per device.


@functools.cache
def _cpu_task(device: str) -> str | None:
    """Returns the task of a CPU device, such as "ps:0" ("" if unnamed); None for a GPU."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type not in (None, "CPU"):
        return None
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"
