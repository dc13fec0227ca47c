"""Layers for sequences of tokens, and the names of variables: the base class of `Network`."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

from cnnbench.errors import UsageError
from cnnbench.models.spec import Initializer, VariableSpec

T = TypeVar("T")

Cell = Literal["gru", "lstm", "rnn"]

GATES: dict[Cell, int] = {"gru": 3, "lstm": 4, "rnn": 1}
"""Number of matrices that are concatenated in the kernels of a cell."""


class SequenceLayers(abc.ABC, Generic[T]):
    """Base class of `Network`: creates layers for sequences of tokens, and names variables.

    `variables` contains the variables in creation order.
    """

    def __init__(self) -> None:
        self._scopes: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._names: set[str] = set()
        self.variables: list[VariableSpec] = []

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Adds the prefix ``name/`` to the names of variables within a ``with`` statement."""
        self._scopes.append(name)
        try:
            with self._name_scope(name):
                yield
        finally:
            self._scopes.pop()

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        *,
        trainable: bool = True,
        weight_decay: bool = True,
    ) -> T:
        """Creates a variable that no layer uses, and returns its value in the compute dtype.

        The name must be new in the current scope. The shape must be static and has no batch
        dimension; ``()`` is a scalar. Weight decay is ignored if the variable is not trainable.
        """
        spec = self._declare(
            name,
            tuple(shape),
            initializer,
            trainable=trainable,
            weight_decay=weight_decay and trainable,
        )
        return self._read(spec)

    def declared(self, spec: VariableSpec) -> T:
        """Creates the variable that `spec` declares, and returns its value in the compute dtype."""
        name = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        return self._read(self._declare(**name))

    @abc.abstractmethod
    def shape(self, x: T) -> tuple[int, ...]:
        """Returns the shape of one example, such as ``(h, w, c)`` or ``(units,)``."""

    # Helpers for creating layers -----------------------------------------------------------

    @contextlib.contextmanager
    def _layer(self, kind: str) -> Iterator[None]:
        key = "/".join([*self._scopes, kind])
        number = self._counts[key]
        self._counts[key] += 1
        with self.scope(f"{kind}{number}"):
            yield

    def _declare(
        self, name: str, shape: tuple[int, ...], initializer: Initializer, **options: Any
    ) -> VariableSpec:
        full = "/".join([*self._scopes, name])
        if full in self._names:
            raise UsageError(f"variable {full} is declared twice; names must differ")
        self._names.add(full)
        spec = VariableSpec(full, shape, initializer, **options)
        self.variables.append(spec)
        return spec

    # Layers ----------------------------------------------------------------------------------

    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """Reshapes each example, with channels as the fastest-changing dimension.

        The order of the elements is the same in every memory layout.
        """
        old, new = self.shape(x), tuple(shape)
        if math.prod(old) != math.prod(new):
            raise UsageError(f"reshape keeps the number of elements; {old} cannot become {new}")
        return x if old == new else self._reshape(x, new)

    def transpose(self, x: T, order: Sequence[int]) -> T:
        """Permutes the dimensions of each example, as `numpy.transpose` does.

        The batch dimension is not included in the order. It remains first.
        """
        shape = self.shape(x)
        if sorted(order) != list(range(len(shape))):
            raise UsageError(f"transpose of {shape} needs a permutation of dimensions, not {order}")
        return self._transpose(x, tuple(order))

    def split(self, x: T, parts: int) -> list[T]:
        """Splits the channels (the last dimension) into ``parts`` values of equal size."""
        shape = self.shape(x)
        if parts < 1 or shape[-1] % parts:
            raise UsageError(
                f"split needs a number of channels that is divisible by {parts}, but the shape is "
                f"{shape}"
            )
        return self._split(x, parts)

    def layer_norm(self, x: T, *, epsilon: float = 1e-6) -> T:
        """Normalises each position over the channels, in float32 (Ba et al., arXiv:1607.06450)."""
        channels = (self.shape(x)[-1],)
        with self._layer("layernorm"):
            one, zero = Initializer.constant(1.0), Initializer.constant(0.0)
            gamma = self._declare("gamma", channels, one, weight_decay=False)
            beta = self._declare("beta", channels, zero, weight_decay=False)
            return self._layer_norm(x, gamma, beta, epsilon)

    def attention(self, query: T, key: T, value: T, heads: int, *, bias: T | None = None) -> T:
        """Scaled dot-product attention. Each head uses an equal share of the channels.

        Use `affine` layers for the learned projections before and after attention. Source: Vaswani
        et al., arXiv:1706.03762.

        Args:
          query: ``(..., n, c)``, which is also the shape of the result.
          key: ``(..., m, c)``, with the same shape as ``value`` and the same leading dimensions as
            the query.
          bias: value that is added before the softmax. It must be a variable, or be computed only
            from variables, with a shape that broadcasts to ``(..., heads, n, m)``.
        """
        shape, keys, values = self.shape(query), self.shape(key), self.shape(value)
        fit = keys == values and len(shape) == len(keys)
        if not fit or (*shape[:-2], shape[-1]) != (*keys[:-2], keys[-1]) or len(shape) in (1, 3):
            raise UsageError(
                "attention takes a query (n, c), and a key and a value of the same shape (m, "
                f"c), not shapes {shape}, {keys} and {values}"
            )
        if heads < 1 or shape[-1] % heads:
            raise UsageError(f"attention cannot divide {shape[-1]} channels among {heads} heads")
        if bias is not None:
            whole = (*shape[:-2], heads, shape[-2], keys[-2])
            if broadcast_shape(self.shape(bias), whole) != whole:
                raise UsageError(
                    f"attention bias of shape {self.shape(bias)} does not broadcast to {whole}"
                )
        return self._attention(query, key, value, heads, bias)

    def embedding(self, ids: T, vocabulary: int, units: int, *, stddev: float = 0.05) -> T:
        """Looks up a row of a learned table for each integer; returns ``(*shape of ids, units)``.

        The gradient is sparse (``tf.IndexedSlices``). There is no weight decay, because it would
        also change rows that do not occur in a batch.

        Args:
          ids: integers in [0, vocabulary), of any shape.
          stddev: standard deviation of the truncated normal that initialises the table.
        """
        with self._layer("embedding"):
            normal = Initializer.truncated_normal(stddev)
            table = self._declare("table", (vocabulary, units), normal, weight_decay=False)
            return self._embedding(ids, self._read(table))

    def recurrent(self, x: T, units: int, cell: Cell = "gru", *, bidirectional: bool = False) -> T:
        """Recurrent layer on tokens ``(n, c)``. Returns the state after each token, ``(n, units)``.

        Args:
          cell: ``gru`` (the reset gate is applied after the product, as in cuDNN and Keras),
            ``lstm`` (with 1 added to the bias of the forget gate) or ``rnn`` (tanh).
          bidirectional: whether a second cell runs from the last token to the first. Its states are
            concatenated in the channels: ``(n, 2 * units)``.
        """
        if cell not in get_args(Cell):
            raise UsageError(f"cell must be one of {', '.join(get_args(Cell))}, not {cell!r}")
        shape = self.shape(x)
        if len(shape) != 2:
            raise UsageError(f"recurrent takes a sequence (n, c), not shape {shape}")
        directions = ("forward", "backward") if bidirectional else ("forward",)
        width, zero = GATES[cell] * units, Initializer.constant(0.0)
        scaled = Initializer.variance_scaling()
        outputs = []
        with self._layer(cell):
            for direction in directions:
                with self.scope(direction):
                    weights = [
                        self._declare("kernel", (shape[1], width), scaled),
                        self._declare("recurrent", (units, width), scaled),
                        self._declare("bias", (width,), zero),
                    ]
                    if cell == "gru":  # The reset gate multiplies the recurrent bias, too.
                        weights.append(self._declare("recurrent_bias", (width,), zero))
                    read = [self._read(spec) for spec in weights]
                    outputs.append(self._recurrent(x, cell, read, direction == "backward"))
            return self._concat(outputs) if bidirectional else outputs[0]

    # Abstract methods, which `ShapeNetwork` and `GraphNetwork` define ---------------------------
    @abc.abstractmethod
    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Groups the operations that are created within a ``with`` statement under a name."""

    @abc.abstractmethod
    def _read(self, spec: VariableSpec) -> T: ...

    @abc.abstractmethod
    def _reshape(self, x: T, shape: tuple[int, ...]) -> T: ...

    @abc.abstractmethod
    def _transpose(self, x: T, order: tuple[int, ...]) -> T: ...

    @abc.abstractmethod
    def _split(self, x: T, parts: int) -> list[T]: ...

    @abc.abstractmethod
    def _concat(self, xs: Sequence[T]) -> T: ...

    @abc.abstractmethod
    def _layer_norm(self, x: T, gamma: VariableSpec, beta: VariableSpec, epsilon: float) -> T: ...

    @abc.abstractmethod
    def _attention(self, query: T, key: T, value: T, heads: int, bias: T | None) -> T: ...

    @abc.abstractmethod
    def _embedding(self, ids: T, table: T) -> T: ...

    @abc.abstractmethod
    def _recurrent(self, x: T, cell: Cell, weights: Sequence[T], reverse: bool) -> T: ...


def broadcast_shape(first: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape to which NumPy broadcasts two shapes, or None if they are incompatible."""
    rank = max(len(first), len(other))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(other)) + other, strict=True)
    sizes = [(min(pair), max(pair)) for pair in pairs]
    if any(small != large and small != 1 for small, large in sizes):
        return None
    return tuple(large for _, large in sizes)
