"""Lines on standard error: the format of cnnbench's, and the last words of TensorFlow's.

    cnnbench: TEXT              a notice, the progress of a command included
    cnnbench: warning: TEXT     what may distort results, or is skipped or left out as defective
    cnnbench: error: TEXT       why the command fails

Lines of native libraries are notices, too. docs/migrating.md lists what else is there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from cnnbench.base.text.escape import one_line

_PREFIX = "cnnbench: "

_OF_OPENBLAS = "OpenBLAS error: "

# Two formats of TensorFlow: F0000 00:00:1795490572.139305    7847 device_event_mgr.cc:228] TEXT
# and 2026-11-24 03:20:00.139305: F tensorflow/core/framework/tensor.cc:844] TEXT
_FATAL = re.compile(
    rf"^(?:{_PREFIX})?(?:(?:F\d{{4}} |\d{{4}}-\d\d-\d\d [\d:.]+: F )[^\]\n]*:\d+\] *|"
    rf"{_OF_OPENBLAS})(.*)",
    re.MULTILINE,
)

_FAULTY = "Unexpected Event status"
"""TensorFlow's message when a kernel or a copy has failed on a GPU, for any reason."""


def notice_line(text: str) -> str:
    """A notice."""
    return _PREFIX + one_line(text)


def warning_line(text: str) -> str:
    """A condition that may distort results, or something defective that is left out."""
    return notice_line(f"warning: {text}")


def error_line(text: str) -> str:
    """The reason why a command fails."""
    return notice_line(f"error: {text}")


def library_lines(log: str, *, hides_openblas: bool = False) -> str:
    """What native libraries wrote, as notices; lines of a nested cnnbench stay as they are.

    Without the error of OpenBLAS, by which it ends the process, if `fatal_message` reports it.
    """
    lines = [line.removeprefix(_PREFIX) for line in log.split("\n") if line.strip()]
    lines = [line for line in lines if not (hides_openblas and line.startswith(_OF_OPENBLAS))]
    return "".join(f"{notice_line(line)}\n" for line in lines)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that a misspelled one probably stands for; "" if none is near.

    It begins with the word, or three quarters of both agree (two thirds of three characters).
    """
    names = sorted(known)
    longer = [name for name in names if len(word) > 2 and name.startswith(word)]
    cutoff = 0.75 if len(word) > 3 else 0.6
    return next(iter(difflib.get_close_matches(word, names, 1, cutoff) or longer), "")


def fatal_message(log: str) -> str:
    """The last fatal message of TensorFlow or OpenBLAS, as one line; "" without one."""
    found = _FATAL.findall(log)
    message = one_line(found[-1]) if found else ""
    return f"a GPU failed: {message}" if message.startswith(_FAULTY) else message
