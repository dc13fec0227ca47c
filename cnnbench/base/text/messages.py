"""Format of cnnbench's lines on standard error.

    cnnbench: TEXT              a notice, the progress of a command included
    cnnbench: warning: TEXT     what may distort results, or is skipped or left out as defective
    cnnbench: error: TEXT       why the command fails

docs/migrating.md lists what else is on standard error.
"""

from __future__ import annotations

from cnnbench.base.text.escape import one_line

_PREFIX = "cnnbench: "


def notice_line(text: str) -> str:
    """Information."""
    return _PREFIX + one_line(text)


def warning_line(text: str) -> str:
    """A condition that may distort results, or something defective that is left out."""
    return notice_line(f"warning: {text}")


def error_line(text: str) -> str:
    """Why a command fails."""
    return notice_line(f"error: {text}")
