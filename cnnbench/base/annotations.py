"""Checks of values against the type annotations of the interfaces that plug-ins implement."""

from __future__ import annotations

import numbers
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}


def misfit(value: Any, hint: Any, given: Sequence[Any] = ()) -> str:
    """Describes what a value should be if it does not fit its annotation; "" if it fits.

    A list is accepted for any sequence, and a value with shape and dtype for a tensor.

    Args:
      hint: as `typing.get_type_hints` returns it with extras. In `Annotated` a function of the
        value and of `given` returns what the value must be; "" if it is.
      given: arguments of the call that returned the value.
    """
    kind: Any = get_origin(hint) or hint
    args = get_args(hint)
    if kind is Annotated:
        return misfit(value, args[0], given) or str(args[1](value, given))
    if kind in (Union, types.UnionType):
        found = [misfit(value, one, given) for one in args]
        return "" if "" in found else found[0]
    if not isinstance(kind, type) or kind is Any:  # or a type variable
        return ""
    parts: Iterable[tuple[str, Any, Any]] = ()  # name of a part, its value, its annotation
    if kind.__name__ == "Callable":
        fits = callable(value)
    elif issubclass(kind, Mapping):
        fits = isinstance(value, Mapping)
        if fits and args:
            parts = [(f"for {shown(name)} ", one, args[1]) for name, one in value.items()]
            parts += [("as a key ", name, args[0]) for name in value]
    elif issubclass(kind, Sequence) and kind is not str:
        fits = isinstance(value, (list, tuple))
        if fits and args:
            hints = args if kind is tuple and ... not in args else args[:1] * len(value)
            fits = len(value) == len(hints)
            parts = [("", *one) for one in zip(value, hints, strict=False)]
    else:
        fits = isinstance(value, _NUMBERS.get(kind, kind)) or (
            is_tensor(value)
            and (
                kind.__module__.startswith("tensorflow")
                or (kind is float and len(value.shape) == 0)
            )
        )
    if not fits:
        shape = f" of {len(args)}" if kind is tuple and ... not in args else ""
        article = "an" if kind.__name__[0] in "aeiouAEIO" else "a"
        return f"{article} {kind.__name__}{shape}, not {shown(value)}"
    for where, one, of in parts:
        wrong = misfit(one, of, given)
        if wrong:
            return where + wrong
    return ""


def is_tensor(value: Any) -> bool:
    """Whether a value has shape and dtype."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def sizes(value: Any) -> Sequence[int | None] | None:
    """Sizes of a tensor, None for unknown ones; None if their number is unknown."""
    shape = value.shape
    if getattr(shape, "rank", 0) is None:
        return None
    return [None if size is None else int(size) for size in shape]


def shown(value: Any) -> str:
    """A value in a message: tensors as dtype and shape, others as text."""
    if is_tensor(value):
        known = sizes(value)
        shape = "of any rank" if known is None else known
        return f"a {getattr(value.dtype, 'name', value.dtype)} tensor {shape}"
    text = repr(value) if value is None or isinstance(value, (str, int, float)) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"
