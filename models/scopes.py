"""Names of layers and variables of a network."""

from __future__ import annotations

import abc
import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from cnnbench.errors import UsageError
from cnnbench.models.spec import Initializer, VariableSpec

T = TypeVar("T")


class Scopes(abc.ABC, Generic[T]):
    """Names variables and reports them to the interpreter in order of creation."""

    def __init__(self) -> None:
        self._scopes: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._names: set[str] = set()

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
        self._declare(spec)
        return spec

    def _bias_spec(self, size: int, value: float) -> VariableSpec:
        return self._spec("bias", (size,), Initializer.constant(value))

    # What an interpreter provides ---------------------------------------------------------

    def _declare(self, spec: VariableSpec) -> None:
        """Called for each variable, in creation order."""

    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Groups the operations made inside under a name."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def _read(self, spec: VariableSpec) -> T: ...
