"""Compares values with the annotations of the interfaces that plug-ins implement.

Also describes values in messages.
"""

from __future__ import annotations

import numbers
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}


def describe_mismatch(value: Any, hint: Any, arguments: Sequence[Any] = ()) -> str:
    """Returns what a value should be if it does not match its annotation, or "" if it matches.

    A list is accepted for any sequence, and a value with shape and dtype for a tensor.

    Args:
      hint: annotation as returned by `typing.get_type_hints` with `include_extras`. `Annotated` may
        contain a function of the value and `arguments` that returns what the value should be; ""
        if it fits.
      arguments: arguments of the call that returned the value.
    """
    kind: Any = get_origin(hint) or hint
    args = get_args(hint)
    if kind is Annotated:
        return describe_mismatch(value, args[0], arguments) or str(args[1](value, arguments))
    if kind in (Union, types.UnionType):
        misfits = [describe_mismatch(value, hint_choice, arguments) for hint_choice in args]
        return "" if "" in misfits else misfits[0]
    # Values are not checked against `Any` or a type variable.
    if not isinstance(kind, type) or kind is Any:
        return ""
    # The items of a collection are also checked: (text for messages, item, annotation of the item).
    parts: Iterable[tuple[str, Any, Any]] = ()
    if kind.__name__ == "Callable":
        fits = callable(value)
    elif issubclass(kind, Mapping):
        fits = isinstance(value, Mapping)
        if fits and args:
            parts = [(f"for {value_text(name)} ", item, args[1]) for name, item in value.items()]
            parts += [("as a key ", name, args[0]) for name in value]
    elif issubclass(kind, Sequence) and kind is not str:
        fits = isinstance(value, range if kind is range else (list, tuple))
        if fits and args:
            hints = args if kind is tuple and ... not in args else args[:1] * len(value)
            fits = len(value) == len(hints)
            parts = [("", *pair) for pair in zip(value, hints, strict=False)]
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
        # TensorFlow's class `tf.data.Dataset` has the __name__ DatasetV2.
        name = kind.__name__.removesuffix("V2")
        article = "an" if name[0] in "aeiouAEIO" else "a"
        other = f" of {len(value)}" if shape and isinstance(value, list | tuple) else ""
        return f"{article} {name}{shape}, not {value_text(value)}{other}"
    for where, part, of in parts:
        wrong = describe_mismatch(part, of, arguments)
        if wrong:
            return where + wrong
    return ""


def is_tensor(value: Any) -> bool:
    """Whether a value has the attributes `shape` and `dtype`, as tensors and arrays have."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def tensor_sizes(value: Any) -> Sequence[int | None] | None:
    """Returns the size of each dimension of a tensor, with None for each unknown size. Returns None
    if even the rank of the tensor is unknown.
    """
    shape = value.shape
    if getattr(shape, "rank", 0) is None:
        return None
    return [None if size is None else int(size) for size in shape]


def sizes_agree(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """Whether two shapes from `tensor_sizes` can be equal: unknown sizes match every size."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def value_text(value: Any) -> str:
    """Describes a value in a message. A tensor is described by its dtype and shape."""
    if is_tensor(value):
        known = tensor_sizes(value)
        shape = "of any rank" if known is None else known
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"{'an' if str(dtype)[0] == 'i' else 'a'} {dtype} tensor {shape}"
    text = repr(value) if value is None or isinstance(value, (str, int, float)) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"
