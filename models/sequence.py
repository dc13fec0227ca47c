"""Names of variables, and layers of tokens, of sequences and of attention; part of `Network`.

A value with two dimensions, ``(n, c)``, is a sequence of n tokens. One with four and more,
``(..., n, c)``, is a group of sequences. Three dimensions are those of an image, the only
values whose memory layout follows ``--data_format``.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

from cnnbench.errors import UsageError
from cnnbench.models.spec import Initializer, VariableSpec

T = TypeVar("T")


Cell = Literal["gru", "lstm", "rnn"]

GATES: dict[Cell, int] = {"gru": 3, "lstm": 4, "rnn": 1}
"""Matrices side by side in the kernels of a cell."""


class SequenceLayers(abc.ABC, Generic[T]):
    """Names variables, and makes layers for values that are no images.

    `variables` has the variables in order of creation.
    """

    def __init__(self) -> None:
        self._scopes: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._names: set[str] = set()
        self.variables: list[VariableSpec] = []

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of the variables made inside with ``name/``."""
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
        """A variable of the model's own, read in the compute precision.

        The name is new in the current scope, the shape static and without batch, ``()`` for a
        scalar. Weight decay is ignored when not trainable.
        """
        spec = self._spec(
            name,
            tuple(shape),
            initializer,
            trainable=trainable,
            weight_decay=weight_decay and trainable,
        )
        return self._read(spec)

    @abc.abstractmethod
    def shape(self, x: T) -> tuple[int, ...]:
        """Shape without batch: ``(h, w, c)`` or ``(units,)``."""

    # For the layers ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _layer(self, kind: str) -> Iterator[None]:
        key = "/".join([*self._scopes, kind])
        number = self._counts[key]
        self._counts[key] += 1
        with self.scope(f"{kind}{number}"):
            yield

    def _spec(
        self, name: str, shape: tuple[int, ...], initializer: Initializer, **flags: bool
    ) -> VariableSpec:
        full = "/".join([*self._scopes, name])
        if full in self._names:
            raise UsageError(f"variable {full} is declared twice; names must differ")
        self._names.add(full)
        spec = VariableSpec(full, shape, initializer, **flags)
        self.variables.append(spec)
        return spec

    def _bias_spec(self, size: int, value: float) -> VariableSpec:
        return self._spec("bias", (size,), Initializer.constant(value))

    # Layers ----------------------------------------------------------------------------------

    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """The same values in another shape, channels fastest in every memory layout."""
        old, new = self.shape(x), tuple(shape)
        if math.prod(old) != math.prod(new):
            raise UsageError(f"reshape keeps the number of elements; {old} does not fit {new}")
        return x if old == new else self._reshape(x, new)

    def transpose(self, x: T, order: Sequence[int]) -> T:
        """Puts the dimensions of an example into another order, as `numpy.transpose` does.

        The batch, which stays in front, is not counted.
        """
        shape = self.shape(x)
        if sorted(order) != list(range(len(shape))):
            raise UsageError(f"transpose of {shape} needs an order of its dimensions, not {order}")
        return self._transpose(x, tuple(order))

    def split(self, x: T, parts: int) -> list[T]:
        """Cuts the channels (the last dimension) into equal parts."""
        shape = self.shape(x)
        if parts < 1 or shape[-1] % parts:
            raise UsageError(f"split cuts channels into equal parts; {shape} has no {parts}")
        return self._split(x, parts)

    def layer_norm(self, x: T, *, epsilon: float = 1e-6) -> T:
        """Normalises each position over its channels, in float32 (Ba et al., arXiv:1607.06450)."""
        channels = (self.shape(x)[-1],)
        with self._layer("layernorm"):
            gamma = self._spec("gamma", channels, Initializer.constant(1.0), weight_decay=False)
            beta = self._spec("beta", channels, Initializer.constant(0.0), weight_decay=False)
            return self._layer_norm(x, gamma, beta, epsilon)

    def attention(self, query: T, key: T, value: T, heads: int, *, bias: T | None = None) -> T:
        """Scaled dot-product attention of several heads, each on its part of the channels.

        The products with learned matrices before and after it are `affine` layers. Source: Vaswani
        et al., arXiv:1706.03762.

        Args:
          query: ``(..., n, c)``, the shape of the result.
          key: ``(..., m, c)``, like ``value``; leading dimensions as those of the query.
          bias: added before the softmax: a variable, or made of variables alone, whose
            shape broadcasts to ``(..., heads, n, m)``.
        """
        shape, keys, values = self.shape(query), self.shape(key), self.shape(value)
        fit = keys == values and len(shape) == len(keys)
        if not fit or (*shape[:-2], shape[-1]) != (*keys[:-2], keys[-1]) or len(shape) in (1, 3):
            raise UsageError(
                "attention takes sequences (n, c) and (m, c), as key and value the same, "
                f"not shapes {shape}, {keys} and {values}"
            )
        if heads < 1 or shape[-1] % heads:
            raise UsageError(f"attention of {heads} heads cannot share {shape[-1]} channels")
        if bias is not None:
            whole = (*shape[:-2], heads, shape[-2], keys[-2])
            if broadcast(self.shape(bias), whole) != whole:
                raise UsageError(f"attention bias {self.shape(bias)} does not fit {whole}")
        return self._attention(query, key, value, heads, bias)

    def embedding(self, ids: T, vocabulary: int, units: int, *, stddev: float = 0.05) -> T:
        """A row of a learned table for each integer, ``(*shape of ids, units)`` per example.

        Its gradient is sparse (``tf.IndexedSlices``) and there is no weight decay, since that would
        also change rows that do not occur in a batch.

        Args:
          ids: integers in [0, vocabulary), of any shape.
          stddev: standard deviation of the truncated normal that initialises the table.
        """
        with self._layer("embedding"):
            table = self._spec(
                "table",
                (vocabulary, units),
                Initializer.truncated_normal(stddev),
                weight_decay=False,
            )
            return self._embedding(ids, self._read(table))

    def recurrent(self, x: T, units: int, cell: Cell = "gru", *, bidirectional: bool = False) -> T:
        """A recurrent layer over ``(n, c)``; returns the state after each token, ``(n, units)``.

        Args:
          cell: ``gru`` (the reset gate after the product, as in cuDNN and Keras), ``lstm``
            (1 added to the forget gate's bias) or ``rnn`` (tanh).
          bidirectional: whether a second cell runs from the last token to the first, whose states
            follow in the channels: ``(n, 2 * units)``.
        """
        if cell not in get_args(Cell):
            raise UsageError(f"cell is one of {', '.join(get_args(Cell))}, not {cell!r}")
        shape = self.shape(x)
        if len(shape) != 2:
            raise UsageError(f"recurrent takes a sequence (n, c), not shape {shape}")
        directions = ("forward", "backward") if bidirectional else ("forward",)
        width = GATES[cell] * units
        outputs = []
        with self._layer(cell):
            for direction in directions:
                with self.scope(direction):
                    weights = [
                        self._spec("kernel", (shape[1], width), Initializer.variance_scaling()),
                        self._spec("recurrent", (units, width), Initializer.variance_scaling()),
                        self._bias_spec(width, 0.0),
                    ]
                    if cell == "gru":  # inside the product with the reset gate
                        zero = Initializer.constant(0.0)
                        weights.append(self._spec("recurrent_bias", (width,), zero))
                    read = [self._read(spec) for spec in weights]
                    outputs.append(self._recurrent(x, cell, read, direction == "backward"))
            return self._concat(outputs) if bidirectional else outputs[0]

    # What an interpreter provides --------------------------------------------------------

    @abc.abstractmethod
    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Groups the operations made inside under a name."""

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


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an elementwise operation by NumPy's rules; None if the shapes do not fit."""
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    sizes = [(min(pair), max(pair)) for pair in pairs]
    if any(small != large and small != 1 for small, large in sizes):
        return None
    return tuple(large for _, large in sizes)
