"""``--result_label``: labels of a run, such as the commit that it measures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FLAG = "result_label"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def parse(text: str) -> dict[str, str]:
    """The labels in ``key=value,key=value``; ValueError names the part that is not a label.

    Keys consist of letters, digits, ``_``, ``.`` and ``-`` and begin with a letter; values contain
    anything but commas. Undecodable bytes of earlier records become escapes.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    found: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or not _KEY.fullmatch(key):
            raise ValueError(f"{part.strip()!r} is not a label; write key=value,key=value")
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def fault(text: str) -> str:
    """The reason why a text for new records is refused, or ""."""
    try:
        text.encode()
        parse(text)
    except UnicodeEncodeError:
        return "must be text in UTF-8"
    except ValueError as error:
        return str(error)
    return ""


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The labels in the configuration of a record; empty if absent or invalid."""
    text = config.get(FLAG)
    try:
        return parse(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
