"""What in a step reads a variable, so that the variable's update can wait for it.

A read hands out the variable's own buffer. An update that runs while an operation still holds
that buffer copies the whole variable first; one that waits works in place. TensorFlow orders
updates behind reads only, not behind the readers. Readers in another task hold a copy, and to
wait for them would take a message.
"""

from __future__ import annotations

import functools
from collections import defaultdict

import tensorflow as tf

_SHARING = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Operations whose result is the buffer of their first input."""


class Readers:
    """The operations of a traced function, so far, that take the value of a variable.

    Args:
      graph: of the function.
    """

    def __init__(self, graph: tf.Graph) -> None:
        handles = {inside.name: id(handle) for handle, inside in graph.captures}
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
        """The gradient, once all readers in the variable's task have run.

        Args:
          variable: what the gradient updates.
          gradient: a tensor on the current device.
        """
        home = _task(variable.device)
        # What is on no task runs in that of the caller, which has no variables of a ps.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _task(reader.device) in near]
        if not readers:
            return gradient
        if any(reader.device != variable.device for reader in readers):
            readers = [tf.group(*readers)]  # one signal from each device, however many it has
        with tf.control_dependencies(readers):
            return tf.identity(gradient, name="waiting")


@functools.cache
def _task(device: str) -> str:
    """The task of a device string, such as ps:0; "" if it names none, or no job of several."""
    spec = tf.DeviceSpec.from_string(device)
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"
