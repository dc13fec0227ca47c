"""``--result_label``: what a user says about a run, such as the commit that it measures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FLAG = "result_label"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def parse(text: str) -> dict[str, str]:
    """The labels in ``key=value,key=value``.

    Args:
      text: keys are letters, digits, ``_``, ``.`` and ``-``, beginning with a letter; values
        hold anything but commas.

    Raises:
      ValueError: says which part is no label.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or not _KEY.fullmatch(key):
            raise ValueError(f"{part.strip()!r} is no label; write key=value,key=value")
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a run from the flags in its record; none where they cannot be read."""
    text = config.get(FLAG)
    try:
        return parse(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
