"""Reading of files and JSON documents that users name, with limits of size and time."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from typing import Any, NoReturn

from cnnbench.errors import FlagError, PathError

_MIB = 1 << 20


def read_file(path: str | os.PathLike[str], most: int = 1024, flag: str = "") -> bytes:
    """The content of a file, of at most `most` MiB, or of a pipe with a writer, as ``<(command)``.

    Raises:
      PathError: it cannot be read, is a device, a pipe without a writer, or too large; FlagError if
        `flag` is given, whose value the path is.
    """
    try:
        # Opening a pipe would wait for a writer otherwise.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise ValueError("is a device, not a file")
            os.set_blocking(descriptor, True)
            parts, size = [], 0
            while part := file.read(_MIB):
                parts.append(part)
                size += len(part)
                if size > most * _MIB:
                    raise ValueError(f"has more than {most} MiB")
        if stat.S_ISFIFO(mode) and not parts:
            raise ValueError("is a pipe that nobody writes to")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _refuse(path, f"cannot be read: {reason}", flag)
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], flag: str = "") -> str:
    """The text of a file in UTF-8, with or without a byte order mark; see `read_file`."""
    try:
        return read_file(path, 16, flag).decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, "cannot be read: it is no text in UTF-8", flag)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in a file; PathError if there is none. See `parse_json`."""
    return json_of(path, read_file(path))


def json_of(path: str | os.PathLike[str], data: bytes) -> Any:
    """The JSON value in the content of a file; see `read_json`."""
    try:
        return parse_json(data)
    except ValueError as error:
        _refuse(path, str(error))


@contextlib.contextmanager
def document(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turns a ValueError, or too deep nesting, of a document read in the block into PathError.

    `kind` names the document, with its article.
    """
    try:
        yield
    except PathError:
        raise
    except RecursionError:
        _refuse(path, f"not {kind}: nested too deeply")
    except ValueError as error:
        _refuse(path, f"not {kind}: {error}")


def parse_json(text: str | bytes) -> Any:
    """The JSON value in a text.

    ValueError if it is not JSON, is nested too deeply or has what only Python accepts: repeated
    keys, NaN and Infinity, numbers beyond all doubles.
    """
    try:
        return json.loads(
            text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        found = error.doc.strip()
        if not found:
            raise ValueError("empty") from None
        if found.startswith("{") and not found.endswith("}"):
            raise ValueError(f"cut off after {len(error.doc)} characters") from None
        where = f"(line {error.lineno}, column {error.colno})"
        raise ValueError(f"not JSON: {error.msg} {where}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not text in UTF-8") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _refuse(path: str | os.PathLike[str], reason: str, flag: str = "") -> NoReturn:
    name = os.fspath(path)
    raise FlagError(flag, name, reason) if flag else PathError(name, reason)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"not JSON: {text[:20]} is beyond all doubles")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"not JSON: the key {twice[:40]!r} is there twice")
    return found
