"""Reading pickles of arrays from strangers: data only, nothing is ever called from them."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np


def loads(data: bytes) -> Any:
    """Unpickles dicts, lists, strings, bytes, numbers and numpy arrays, and nothing else.

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
    """Refuses places in the memo that no pickle of this length needs.

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


def _encode(text: str, encoding: str | bytes) -> bytes:
    """Stands in for _codecs.encode: Python 3 writes bytes that way in protocol 2."""
    if encoding not in ("latin1", b"latin1", "latin-1"):
        raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands in for bytes(): protocol 2 writes b"" that way."""
    return b""


def _numpy_functions() -> dict[str, Callable[..., Any]]:
    """numpy's own unpickling functions, by name, from what numpy itself would pickle."""
    array = np.zeros(2, np.uint8)
    functions = (
        array.__reduce__()[0],
        array.__reduce_ex__(5)[0],
        np.uint8(0).__reduce__()[0],
    )
    return {f.__name__: f for f in functions if callable(f)}


def _allowed() -> dict[tuple[str, str], Any]:
    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
        ("builtins", "bytes"): _empty_bytes,
        ("__builtin__", "bytes"): _empty_bytes,
    }
    # The module was renamed in numpy 2; old and new files name either.
    for package in ("numpy.core", "numpy._core"):
        for module in ("multiarray", "numeric"):
            for name, function in _numpy_functions().items():
                allowed[f"{package}.{module}", name] = function
    return allowed


_ALLOWED = _allowed()
