"""Reads pickled arrays of integers from untrusted files; looks up none of their names."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np


class _Named:
    """A name in a pickle, the arguments it was called with, and the state it was given.

    It replaces every class and function, so that a pickle can call nothing, and NumPy, which some
    states crash, receives none.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __call__(self, *arguments: Any) -> _Named | bytes:
        # How Python 3 writes bytes in protocols 0 to 2, and those of length 0.
        if self.name == "_codecs.encode" and isinstance(arguments[0], str):
            return arguments[0].encode("latin1")
        if self.name in ("__builtin__.bytes", "builtins.bytes"):
            return b""
        return _Named(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Named:
        return _Named(f"{module}.{name}")


def loads(data: bytes) -> Any:
    """Unpickles dicts, lists, strings, bytes and numbers; arrays are for `integers`.

    Reads any protocol, also of Python 2 (whose strings become bytes) and of old NumPy.
    UnpicklingError for any damage.
    """
    try:
        _check_memo(data)
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        # A damaged pickle fails in many ways (EOFError, IndexError, MemoryError, ...).
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error


def _check_memo(data: bytes) -> None:
    """Refuses memo indices that no pickle of this length needs.

    Python allocates memory up to the largest index: gigabytes, for minutes.
    """
    # Strings of Python 2, which are bytes, end the walk where they are written as text.
    with contextlib.suppress(UnicodeDecodeError):
        for opcode, argument, _ in pickletools.genops(data):
            puts = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
            if puts and isinstance(argument, int) and not 0 <= argument <= len(data):
                raise pickle.UnpicklingError(f"it has no place {argument} in its memo")


def integers(value: object) -> Any:
    """Copies a pickled array or scalar of integers; returns other values unchanged.

    UnpicklingError for other names, such as functions.
    """
    if not isinstance(value, _Named):
        return value
    # The modules are called numpy.core in old files and numpy._core since NumPy 2.
    match value.name.removeprefix("numpy.").lstrip("_"), value.arguments, value.state:
        case "core.multiarray._reconstruct", _, (_, tuple(shape), dtype, fortran, bytes(content)):
            order = "F" if fortran else "C"
        case "core.numeric._frombuffer", (content, dtype, tuple(shape), order), None:
            content = bytes(content)
        case "core.multiarray.scalar", (dtype, bytes(content)), None:
            shape, order = (), "C"
        case _:
            raise pickle.UnpicklingError(f"{value.name[:60]!r} is not an array of integers")
    kind = _dtype(dtype)
    # A product of exact integers, which is as large as a pickle says.
    natural = all(isinstance(side, int) and side >= 0 for side in shape)
    if not natural or math.prod(shape) * kind.itemsize != len(content):
        raise pickle.UnpicklingError(f"{len(content)} bytes for an array of shape {shape}")
    return np.frombuffer(content, kind).reshape(shape, order="F" if order == "F" else "C").copy()


def _dtype(value: object) -> np.dtype[Any]:
    match value:
        case _Named(name="numpy.dtype", arguments=(name, *_), state=(_, order, *_)):
            name, order = (_text(one) for one in (name, order))
            if re.fullmatch(r"[iu][1248]", name) and order in ("<", ">", "|", "="):
                return np.dtype(order + name)
            raise pickle.UnpicklingError(f"an array of type {name[:20]!r}")
    raise pickle.UnpicklingError("an array without a type")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
