"""Operations that read a variable, for which its update waits.

A read returns the variable's own buffer. An update that runs while an operation holds that buffer
copies the whole variable first; one that waits works in place. TensorFlow orders updates behind
reads only, not behind the readers.

Only variables on CPUs wait, and only for readers on CPUs of their task. Readers on a GPU or in
another task hold a copy; waiting for each of them would take a signal between devices. Copying a
variable within a GPU costs less than these signals.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr import tower_variable

_SHARING = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Operations whose result is the buffer of their first input."""


class Readers:
    """Readers of variables in the function being traced, whose graph has `tower_variable.read`s."""

    def __init__(self, graph: tf.Graph) -> None:
        handles = tower_variable.handles_read(graph)
        # By name of a tensor the handle whose variable's buffer it is.
        values: dict[str, int] = {}
        self._readers: dict[int, list[tf.Operation]] = defaultdict(list)
        for operation in graph.get_operations():  # what makes a tensor comes before what takes it
            names = [tensor.name for tensor in operation.inputs]
            if operation.type == "ReadVariableOp" and names[0] in handles:
                values[operation.outputs[0].name] = handles[names[0]]
                continue
            for handle in {values[name] for name in names if name in values}:
                self._readers[handle].append(operation)
            if operation.type in _SHARING and names[0] in values:
                values[operation.outputs[0].name] = values[names[0]]

    def before_update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient, with dependencies on all readers that share the variable's buffer."""
        home = _host(variable.device)
        if home is None:
            return gradient
        # Operations without a task run in the caller, which has no variables of a ps.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _host(reader.device) in near]
        if not readers:
            return gradient
        with tf.control_dependencies(signals(readers, variable.device)):
            return tf.identity(gradient, name="waiting")


def signals(operations: Sequence[Any], device: str) -> list[Any]:
    """Dependencies for a device, so that each other device sends it one signal."""
    if all(operation.device == device for operation in operations):
        return list(operations)
    return [tf.group(*operations)]  # which has one operation on each device


@functools.cache
def _host(device: str) -> str | None:
    """The task in whose memory a device computes, such as ps:0; None for a GPU, "" if unnamed."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type not in (None, "CPU"):
        return None
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"
