"""Reads pickled arrays from untrusted files; no code is called from them."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np


def loads(data: bytes) -> Any:
    """Unpickles dicts, lists, strings, bytes, numbers and numpy arrays of them, nothing else.

    Python 2 strings come back as bytes.

    Args:
      data: a pickle of any protocol, also of Python 2 and of old numpy.

    Raises:
      pickle.UnpicklingError: the pickle is damaged or names anything else, such as a function.
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

    Python makes room for as many as the largest number says: gigabytes, for minutes.
    """
    # Strings of Python 2, which are bytes, end the walk where they are written as text.
    with contextlib.suppress(UnicodeDecodeError):
        for opcode, argument, _ in pickletools.genops(data):
            puts = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
            if puts and isinstance(argument, int) and not 0 <= argument <= len(data):
                raise pickle.UnpicklingError(f"it has no place {argument} in its memo")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the pickle refers to {module}.{name}, which is not data"
            ) from None


class _Function:
    """A function that a pickle may call; unlike a plain function it has no settable state."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle sets the state of a function")


class _DType:
    """A type of numbers or of fixed-length text; stands in for numpy.dtype.

    NumPy's own takes a state that crashes the process.
    """

    def __init__(self, name: str | bytes, align: object = False, copy: object = False) -> None:
        del align, copy
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if not re.fullmatch(r"[biufcSU]\d{1,9}", text):
            raise pickle.UnpicklingError(f"an array of type {text[:20]!r}")
        self._type = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # Version, byte order, sub-array, names, fields, length, alignment, flags.
        given, *structure = state[1:5]
        order: Any = given.decode("ascii") if isinstance(given, bytes) else given
        if order not in ("<", ">", "|", "=") or structure != [None, None, None]:
            raise pickle.UnpicklingError("an array of structures")
        self._type = self._type.newbyteorder(order)

    def array(self, data: bytes | bytearray, shape: tuple[int, ...], order: str) -> Any:
        """A copy of the data as an array; UnpicklingError if it has another length."""
        count = math.prod(shape)  # of exact integers: as large as a pickle says
        if min(shape, default=0) < 0 or count * self._type.itemsize != len(data):
            raise pickle.UnpicklingError(f"{len(data)} bytes for an array of shape {shape}")
        flat = np.frombuffer(data, self._type) if count else np.empty(0, self._type)
        return flat.reshape(shape, order="F" if order == "F" else "C").copy()


class _Array(np.ndarray):
    """An array that gets its content when its state is set; stands in for numpy.ndarray.

    NumPy's own takes a state that crashes the process.
    """

    def __new__(cls, *arguments: object) -> _Array:
        raise pickle.UnpicklingError("an array that is made by a call")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, data = state[-4:]
        found = dtype.array(data, shape, "F" if fortran else "C")
        # In one place: what refers to the array already has to see it.
        content: Any = (1, found.shape, found.dtype, False, found.tobytes())
        super().__setstate__(content)


def _reconstruct(kind: object, shape: object, name: object) -> _Array:
    """Stands in for numpy's: an array whose state comes later."""
    del shape, name
    if kind is not _Array:
        raise pickle.UnpicklingError("a value that is no array")
    return np.empty(0, np.uint8).view(_Array)


def _frombuffer(data: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> Any:
    """Stands in for numpy's, of protocol 5."""
    return dtype.array(bytes(data), shape, order).view(_Array)


def _scalar(dtype: _DType, data: bytes) -> Any:
    """Stands in for numpy's."""
    return dtype.array(data, (1,), "C")[0]


def _encode(text: str, encoding: str | bytes) -> bytes:
    """Stands in for _codecs.encode: Python 3 writes bytes that way in protocol 2."""
    if encoding not in ("latin1", b"latin1", "latin-1"):
        raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands in for bytes(): protocol 2 writes b"" that way."""
    return b""


def _allowed() -> dict[tuple[str, str], Any]:
    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("_codecs", "encode"): _Function(_encode),
        ("builtins", "bytes"): _Function(_empty_bytes),
        ("__builtin__", "bytes"): _Function(_empty_bytes),
    }
    functions = (_reconstruct, _frombuffer, _scalar)
    # The module was renamed in numpy 2; old and new files name either.
    for package in ("numpy.core", "numpy._core"):
        for module in ("multiarray", "numeric"):
            for function in functions:
                name = "scalar" if function is _scalar else function.__name__
                allowed[f"{package}.{module}", name] = _Function(function)
    return allowed


_ALLOWED = _allowed()
