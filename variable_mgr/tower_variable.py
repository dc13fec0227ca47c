"""Logical variables with a copy per tower."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import tensorflow as tf

from cnnbench.base.jobs.devices import cpu_of


class TowerVariable:
    """One logical variable: a copy shared by all towers, or one for each tower in order.

    Attributes:
      name: the same for every mode and number of towers.
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
        """Copy 0, which checkpoints hold and broadcasts start from."""
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
        """The variable that `tower` uses."""
        if len(self.copies) == 1:
            return self.primary
        if not 0 <= tower < len(self.copies):
            raise IndexError(f"{self.name} has {len(self.copies)} copies, no copy {tower}")
        return self.copies[tower]

    def assign(self, value: tf.types.experimental.TensorLike) -> None:
        """Gives every copy a value."""
        for copy in self.copies:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def broadcast(self) -> None:
        """Gives every copy the value of copy 0; nothing for a shared variable."""
        if len(self.copies) == 1:
            return
        value = read(self.primary)
        for copy in self.copies[1:]:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def __repr__(self) -> str:
        return f"<TowerVariable {self.name} {self.shape} copies={len(self.copies)}>"


def read(variable: tf.Variable) -> tf.Tensor:
    """The variable's value, by an operation on the variable's own device.

    `Variable.value` leaves the device open, and `Variable.read_value` adds an identity, which is a
    copy between devices if the reader is on another one.
    """
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    if tf.is_symbolic_tensor(value):
        _handles.setdefault(value.graph, {})[value.op.inputs[0].name] = id(variable.handle)
    return value


# By graph, the handle of each variable by the name of its input in the graph: TensorFlow has it
# in an internal attribute of the graph only.
_handles: WeakKeyDictionary[tf.Graph, dict[str, int]] = WeakKeyDictionary()


def handles_read(graph: tf.Graph) -> Mapping[str, int]:
    """The `id` of each handle that `read` has read in a graph, by the name of its tensor there."""
    return _handles.get(graph, {})


def settle(devices: Iterable[str]) -> None:
    """Waits for pending assignments to variables (eagerly).

    An operation on another process returns when it has been sent. Later operations follow it in
    order, but the parts of a traced function are sent another way and may overtake it. A value that
    comes back shows that everything sent before it has run.
    """
    answers = []
    for device in dict.fromkeys(map(cpu_of, devices)):
        # A coordinator forgets the devices of a lost worker; the function that needs one names it.
        with contextlib.suppress(tf.errors.InvalidArgumentError), tf.device(device):
            answers.append(tf.timestamp())
    for answer in answers:
        answer.numpy()
