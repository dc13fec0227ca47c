"""Logical variables with a copy per tower, selected by context."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import tensorflow as tf

from cnnbench.base.jobs.devices import cpu_of

_tower: ContextVar[int | None] = ContextVar("cnnbench_tower", default=None)


@contextlib.contextmanager
def tower_context(tower: int) -> Iterator[None]:
    """Selects the copy of `tower` of every TowerVariable in the block; contexts nest.

    Raises:
      ValueError: for a negative tower.
    """
    if tower < 0:
        raise ValueError(f"tower {tower}: towers are numbered from 0")
    token = _tower.set(tower)
    try:
        yield
    finally:
        _tower.reset(token)


class TowerVariable:
    """One logical variable: a shared copy, or one copy per tower.

    Within `tower_context(t)` reads and writes concern copy t only. Outside, reads
    give copy 0 and every write (assign, assign_add, assign_sub) goes to all
    copies, so that copies which were equal stay equal. TensorFlow functions accept
    a TowerVariable as a tensor.

    Args:
      name: canonical name, without tower prefix.
      copies: one variable shared by all towers, or one for each tower in order.

    Raises:
      ValueError: for no copies, the same variable twice, or copies that differ in
        shape or dtype.
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
        self._name = name
        self._copies = tuple(copies)

    @property
    def name(self) -> str:
        """Canonical name, the same for every mode and number of towers."""
        return self._name

    @property
    def copies(self) -> tuple[tf.Variable, ...]:
        """All copies in tower order; a single one when it is shared."""
        return self._copies

    @property
    def primary(self) -> tf.Variable:
        """Copy 0, which checkpoints hold and broadcasts start from."""
        return self._copies[0]

    @property
    def shape(self) -> tf.TensorShape:
        """Static shape of each copy."""
        return self.primary.shape

    @property
    def dtype(self) -> tf.DType:
        """Dtype of each copy."""
        return self.primary.dtype

    def copy(self, tower: int) -> tf.Variable:
        """The variable that `tower` uses.

        Raises:
          IndexError: if there is no such tower.
        """
        if len(self._copies) == 1:
            return self.primary
        if not 0 <= tower < len(self._copies):
            raise IndexError(f"{self._name} has {len(self._copies)} copies, no copy {tower}")
        return self._copies[tower]

    def read_value(self) -> tf.Tensor:
        """The local copy's value in a tower, else that of copy 0."""
        tower = _tower.get()
        return read(self.primary if tower is None else self.copy(tower))

    def assign(self, value: tf.types.experimental.TensorLike) -> None:
        """Writes the local copy in a tower, else all copies."""
        for copy in self._written():
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def assign_add(self, delta: tf.types.experimental.TensorLike) -> None:
        """Adds to the local copy in a tower, else to each copy."""
        for copy in self._written():
            with tf.device(copy.device):
                copy.assign_add(delta, read_value=False)

    def assign_sub(self, delta: tf.types.experimental.TensorLike) -> None:
        """Subtracts from the local copy in a tower, else from each copy."""
        for copy in self._written():
            with tf.device(copy.device):
                copy.assign_sub(delta, read_value=False)

    def broadcast(self) -> None:
        """Gives every copy the value of copy 0; no op for a shared variable."""
        if len(self._copies) == 1:
            return
        value = read(self.primary)
        for copy in self._copies[1:]:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def _written(self) -> tuple[tf.Variable, ...]:
        tower = _tower.get()
        return self._copies if tower is None else (self.copy(tower),)

    def __repr__(self) -> str:
        return f"<TowerVariable {self._name} {self.shape} copies={len(self._copies)}>"


def read(variable: tf.Variable) -> tf.Tensor:
    """The variable's value by an op on the variable's own device.

    `Variable.value` would leave the device open and `Variable.read_value` adds an
    identity, which is a copy between devices when the reader is elsewhere.
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
    """Variables that `read` has read while a function was traced.

    Returns:
      The `id` of the variable's handle, by the name of the tensor that is this handle in the graph.
    """
    return _handles.get(graph, {})


def settle(devices: Iterable[str]) -> None:
    """Waits for pending assignments to variables (eagerly).

    An operation on another process has only been sent when it returns. Operations that follow come
    behind it, but the parts of a traced function are sent another way and overtake it. A value that
    comes back shows that all sent before has run.

    Args:
      devices: full device string of each of the variables.
    """
    answers = []
    for device in dict.fromkeys(map(cpu_of, devices)):
        # A coordinator forgets the devices of a lost worker; the function that needs one names it.
        with contextlib.suppress(tf.errors.InvalidArgumentError), tf.device(device):
            answers.append(tf.timestamp())
    for answer in answers:
        answer.numpy()


def _to_tensor(
    variable: TowerVariable,
    dtype: tf.DType | None = None,
    name: str | None = None,
    as_ref: bool = False,
) -> tf.Tensor:
    del as_ref  # part of the signature that TensorFlow calls; without meaning since TF 1
    return tf.convert_to_tensor(variable.read_value(), dtype=dtype, name=name)


tf.register_tensor_conversion_function(TowerVariable, _to_tensor)
