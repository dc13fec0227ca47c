"""Types of flags whose values Python code may also give in another form: as text of a command line,
or as a list.

Type checkers see a descriptor: the type with which a flag is read differs from the type with which
it is given to `Params`. At run time, each type is the type with which the flag is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Generic, TypeAlias, TypeVar

V = TypeVar("V")
G = TypeVar("G")

if TYPE_CHECKING:

    class _ReadAndGiven(Generic[V, G]):
        def __get__(self, instance: object, owner: type | None = None) -> V: ...

        def __set__(self, instance: object, value: G) -> None: ...

    OrText: TypeAlias = _ReadAndGiven[V, V | str]
    Items: TypeAlias = _ReadAndGiven[tuple[V, ...], tuple[V, ...] | list[V] | str]
else:
    OrText = Annotated[V, "or text that a parser reads"]
    Items = Annotated[tuple[V, ...], "or a list, or comma-separated text"]
