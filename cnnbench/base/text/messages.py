"""Format of cnnbench's lines on standard error.

    cnnbench: TEXT              a notice, the progress of a command included
    cnnbench: warning: TEXT     what may distort results, or is skipped or left out as defective
    cnnbench: error: TEXT       why the command fails

docs/migrating.md lists what else is on standard error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cnnbench.base.text.escape import one_line

_PREFIX = "cnnbench: "


def notice_line(text: str) -> str:
    """A notice."""
    return _PREFIX + one_line(text)


def warning_line(text: str) -> str:
    """A condition that may distort results, or something defective that is left out."""
    return notice_line(f"warning: {text}")


def error_line(text: str) -> str:
    """The reason why a command fails."""
    return notice_line(f"error: {text}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that a misspelled one probably stands for; "" if none is near.

    It begins with the word, or three quarters of both agree (two thirds of three characters).
    """
    names = sorted(known)
    longer = [name for name in names if len(word) > 2 and name.startswith(word)]
    cutoff = 0.75 if len(word) > 3 else 0.6
    return next(iter(difflib.get_close_matches(word, names, 1, cutoff) or longer), "")
