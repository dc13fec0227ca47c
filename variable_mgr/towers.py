"""Logical variables that can have a copy per tower, and how they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import tensorflow as tf

from cnnbench.base.job import cpu_of_device


class TowerVariable:
    """One logical variable: a copy that all towers share, or one copy per tower, in order.

    Attributes:
      name: canonical name, which does not depend on the mode and the number of towers.
    """

    def __init__(self, name: str, copies: Sequence[tf.Variable]) -> None:
        if not copies:
            raise ValueError(f"{name}: a tower variable needs at least one copy")
        first = copies[0]
        if len({copy.ref() for copy in copies}) != len(copies):
            raise ValueError(f"{name}: the same variable is given for two towers")
        for copy in copies[1:]:
            if copy.shape != first.shape or copy.dtype != first.dtype:
                raise ValueError(
                    f"{name}: copies differ: {first.shape} {first.dtype.name} and "
                    f"{copy.shape} {copy.dtype.name}"
                )
        self.name = name
        self.copies = tuple(copies)

    @property
    def primary(self) -> tf.Variable:
        """The first copy, which checkpoints contain and broadcasts send."""
        return self.copies[0]

    @property
    def shape(self) -> tf.TensorShape:
        """Static shape of each copy."""
        return self.primary.shape

    @property
    def dtype(self) -> tf.DType:
        """Dtype of each copy."""
        return self.primary.dtype

    def copy(self, tower: int) -> tf.Variable:
        """Returns the copy of the variable that `tower` uses."""
        if len(self.copies) == 1:
            return self.primary
        if not 0 <= tower < len(self.copies):
            raise IndexError(f"{self.name} has {len(self.copies)} copies, no copy {tower}")
        return self.copies[tower]

    def assign(self, value: tf.types.experimental.TensorLike) -> None:
        """Assigns a value to every copy."""
        for copy in self.copies:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def broadcast(self) -> None:
        """Copies the value of the first copy to all other copies, if there are any."""
        if len(self.copies) == 1:
            return
        value = read(self.primary)
        for copy in self.copies[1:]:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def __repr__(self) -> str:
        return f"<TowerVariable {self.name} {self.shape} copies={len(self.copies)}>"


def read(variable: tf.Variable) -> tf.Tensor:
    """Reads a variable by an operation on the variable's own device.

    `Variable.value` does not fix the device. `Variable.read_value` adds an identity operation,
    which copies between devices if the reader is on another device.
    """
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    if tf.is_symbolic_tensor(value):
        handles_read.setdefault(value.graph, {})[value.op.inputs[0].name] = id(variable.handle)
    return value


handles_read: WeakKeyDictionary[tf.Graph, dict[str, int]] = WeakKeyDictionary()
"""For each graph, the `id` of every variable handle that `read` has used. The keys are the names of
the tensors that represent handles in the graph. TensorFlow stores this mapping only in an internal
attribute.
"""


def wait_for_assignments(devices: Iterable[str]) -> None:
    """Waits until assignments to variables on `devices` are complete, outside a traced step.

    An operation on another process returns as soon as it has been sent. Later operations run after
    it, but parts of a traced function are sent on another path and may run first. Therefore this
    function reads a value back: when it arrives, everything that was sent before has run.
    """
    answers = []
    for device in dict.fromkeys(map(cpu_of_device, devices)):
        # If a worker is lost, its devices do not exist; the error of the next step explains that
        # better.
        with contextlib.suppress(tf.errors.InvalidArgumentError), tf.device(device):
            answers.append(tf.timestamp())
    for answer in answers:
        answer.numpy()
