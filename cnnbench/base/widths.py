"""The width of texts in terminals and charts."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import Any


def text_width(text: str) -> int:
    """Number of columns that a text takes in a terminal. Wide characters, such as those of East
    Asian scripts, take two columns (Unicode Standard Annex 11), and combining characters none.
    """
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut_to_width(text: str, width: int) -> str:
    """Returns the beginning of a text that takes at most `width` columns."""
    if text.isascii():
        return text[: max(0, width)]
    for place in range(len(text)):
        width -= _character_width(text[place])
        if width < 0:
            return text[:place]
    return text


_SECOND_COLUMN = "\0"
"""Stands for the second column of a wide character while a text is broken into lines."""


def wrap_words(text: str, width: int, **options: Any) -> list[str]:
    """Breaks a text into lines of at most `width` columns as `textwrap.wrap` does, which counts
    characters instead of columns. `options` are those of `textwrap.wrap`.
    """
    if text.isascii():
        return textwrap.wrap(text, width, **options)
    doubled = (c + _SECOND_COLUMN * (_character_width(c) - 1) for c in text)
    lines = textwrap.wrap("".join(doubled), width, **options)
    return [line.replace(_SECOND_COLUMN, "") for line in lines]
