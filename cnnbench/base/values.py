"""Parses the values of flags: numbers, sizes, durations, and the labels of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FLAG = "result_label"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def parse_labels(text: str) -> dict[str, str]:
    """Parses the value of --result_label, ``key=value,key=value``. ValueError names the invalid
    part.

    Keys consist of letters, digits, ``_``, ``.`` and ``-`` and begin with a letter; values may
    contain anything except commas. Undecodable bytes in earlier records become escape sequences.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    values: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or not _KEY.fullmatch(key):
            raise ValueError(f"{part.strip()!r} is not a label; write key=value,key=value")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = value
    return values


def result_label_fault(text: str) -> str:
    """Returns why a text is not a valid value of --result_label for a new run, or "" if it is
    valid.
    """
    try:
        text.encode()
        parse_labels(text)
    except UnicodeEncodeError:
        return "must be text in UTF-8"
    except ValueError as error:
        return str(error)
    return ""


def labels_from_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Reads the labels (--result_label) from the configuration in a record. Empty if the labels are
    missing or invalid.
    """
    text = config.get(FLAG)
    try:
        return parse_labels(text) if isinstance(text, str) else {}
    except ValueError:
        return {}


def parse_integer(text: str) -> int:
    """Parses decimal ASCII digits, or hexadecimal digits after 0x. ValueError for other text."""
    # The pattern is checked first, because int() also accepts underscores and digits that are not
    # ASCII.
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return int(text, 16) if text[:2].lower() == "0x" else int(text)


def parse_number(text: str) -> float:
    """Parses a finite number that is written in ASCII characters. ValueError for other text."""
    value = float(text)
    if "_" in text or not text.isascii() or not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_bytes(text: str) -> int | None:
    """Parses a size such as "4096" or "64K" (units are powers of 1024) to bytes; None if it is
    malformed.
    """
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.upper())
    if match is None:
        return None
    size: int = int(match.group(1)) * 1024 ** " KMGT".index(match.group(2) or " ")
    return size


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Duration:
    """A positive duration in seconds. `source` is the text from which it was parsed, such as
    "500ms", "10s", "2m" or "1.5h".
    """

    seconds: float
    source: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parses a duration with a unit, such as "500ms". ValueError if the text is malformed."""
        match = re.fullmatch("([0-9.]{1,12})(ms|s|m|h)", text.strip())
        seconds = parse_number(match[1]) * _SECONDS[match[2]] if match else 0.0
        if not seconds:
            raise ValueError(text)
        return cls(seconds, text)


class StopAt(NamedTuple):
    """The metric value at which a run ends. `source` is the text from which it was parsed, such as
    "top_1:0.759".
    """

    metric: str
    value: float
    source: str
