"""Reads files and JSON documents whose paths users give."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from cnnbench.errors import FlagError, PathError

_MIB = 1 << 20
# Integers with up to this many digits can be converted to doubles without overflow.
_MOST_DIGITS = 300


def read_file(path: str | os.PathLike[str], max_mib: int = 1024, flag: str = "") -> bytes:
    """Reads a file, or a pipe such as ``<(command)``, of at most `max_mib` MiB.

    Raises:
      PathError: the file cannot be read, is a device or a pipe without a writer, or is too large.
        If `flag` is given, a FlagError for this flag is raised instead.
    """
    try:
        # O_NONBLOCK, because opening a pipe that has no writer would wait forever.
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
                if size > max_mib * _MIB:
                    raise ValueError(f"has more than {max_mib} MiB")
        if stat.S_ISFIFO(mode) and not parts:
            raise ValueError("is a pipe without a writer")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _raise_path_error(path, f"cannot be read: {reason}", flag)
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], flag: str = "") -> str:
    """Reads a UTF-8 text file of at most 16 MiB, and removes a byte order mark; see `read_file`."""
    try:
        return read_file(path, 16, flag).decode("utf-8-sig")
    except UnicodeDecodeError:
        _raise_path_error(path, "cannot be read: it is not UTF-8 text", flag)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file; PathError if the file cannot be read or is not valid JSON. See
    `parse_json`.
    """
    return json_from_content(path, read_file(path))


def json_from_content(path: str | os.PathLike[str], data: bytes) -> Any:
    """Parses `data`, the content of the file `path`, as JSON; PathError if `data` is not valid
    JSON.
    """
    try:
        return parse_json(data)
    except ValueError as error:
        _raise_path_error(path, str(error))


@contextlib.contextmanager
def converting_parse_errors(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Context manager that converts a ValueError or RecursionError from the parsing of a file to a
    PathError.

    `kind` names the document in the message, with an article.
    """
    try:
        yield
    except PathError:
        raise
    except RecursionError:
        _raise_path_error(path, f"not {kind}: nested too deeply")
    except ValueError as error:
        _raise_path_error(path, f"not {kind}: {error}")


def parse_json(text: str | bytes, *, any_number: bool = False) -> Any:
    """Parses a JSON document more strictly than `json.loads`.

    ValueError if the text is not JSON, is nested too deeply, or contains what only Python accepts:
    duplicate keys, NaN, Infinity, or numbers outside the range of doubles. With `any_number`, such
    numbers are accepted. Integers of more than 300 digits are then infinite floats.
    """
    try:
        return json.loads(
            text,
            parse_int=_int_or_float if any_number else None,
            parse_float=None if any_number else _finite_float,
            parse_constant=None if any_number else _refuse_constant,
            object_pairs_hook=_unique_dict,
        )
    except json.JSONDecodeError as error:
        stripped = error.doc.strip()
        if not stripped:
            raise ValueError("empty") from None
        if stripped.startswith("{") and not stripped.endswith("}"):
            raise ValueError(f"cut off after {len(error.doc)} characters") from None
        where = f"(line {error.lineno}, column {error.colno})"
        raise ValueError(f"not JSON: {error.msg} {where}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not text in UTF-8") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _raise_path_error(path: str | os.PathLike[str], reason: str, flag: str = "") -> NoReturn:
    name = os.fspath(path)
    raise FlagError(flag, name, reason) if flag else PathError(name, reason)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"not JSON: {text[:20]} is too large for a double")
    return number


def _int_or_float(text: str) -> float:
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        numbers = Counter(name for name, _ in pairs)
        twice = next(name for name, number in numbers.items() if number > 1)
        raise ValueError(f"not JSON: duplicate key {twice[:40]!r}")
    return by_key
