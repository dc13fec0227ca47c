"""Lines on standard error: cnnbench's own lines, and messages of native libraries.

    cnnbench: TEXT              a notice, the progress of a command included
    cnnbench: warning: TEXT     what may distort results, or is skipped or left out as defective
    cnnbench: error: TEXT       why the command fails

Lines of native libraries are printed as notices, too. docs/migrating.md lists the other output on
standard error.
"""

from __future__ import annotations

import re

from cnnbench.base.escapes import to_terminal_line

_PREFIX = "cnnbench: "

_OF_OPENBLAS = "OpenBLAS error: "

# TensorFlow writes fatal messages in one of these two formats:
# F0000 00:00:1795490572.139305    7847 device_event_mgr.cc:228] TEXT
# 2026-11-24 03:20:00.139305: F tensorflow/core/framework/tensor.cc:844] TEXT
_FATAL = re.compile(
    rf"^(?:{_PREFIX})?(?:(?:F\d{{4}} |\d{{4}}-\d\d-\d\d [\d:.]+: F )[^\]\n]*:\d+\] *|"
    rf"{_OF_OPENBLAS})(.*)",
    re.MULTILINE,
)

# What TensorFlow writes about each collective operation that a failed peer or operation aborts. The
# operation also raises an error, which cnnbench reports in one line.
_ABORTED = re.compile(
    r"(?:E\d{4} |\d{4}-\d\d-\d\d [\d:.]+: E )[^\]\n]*\b(?:ring_alg|ring_reducer|ring_gatherer|"
    r"hierarchical_tree_broadcaster|base_collective_executor)\.cc:\d+\] |"
    r"Additional GRPC error information from remote target |:UNKNOWN:Error received from peer |"
    r"The error could be from a previous operation\. Restart your program to reset\."
)

# What TensorFlow 2.20 writes about each option when it begins a trace.
_TRACE_OPTION = re.compile(
    r"W\d{4} [^\]\n]*\bsession_manager\.cc:\d+\] \w+ expects an? \w+ value\."
)

_FAULTY = "Unexpected Event status"
"""TensorFlow's message if a kernel or a copy fails on a GPU, for any reason."""


def notice_line(text: str) -> str:
    """Formats a notice as a line for standard error; the line begins with "cnnbench: "."""
    return _PREFIX + to_terminal_line(text)


def error_line(text: str) -> str:
    """Formats the reason why a command fails as a line that begins with "cnnbench: error: "."""
    return notice_line(f"error: {text}")


def library_output_notices(log: str, *, hides_openblas: bool = False) -> str:
    """Formats the output of native libraries as cnnbench's notices. Lines that are already notices
    are not changed; lines about aborted collective operations and about options of a trace are
    omitted.

    `hides_openblas` omits the message with which OpenBLAS ends the process; use it if
    `fatal_message` is reported anyway.
    """
    lines = [line.removeprefix(_PREFIX) for line in log.split("\n") if line.strip()]
    lines = [line for line in lines if not (_ABORTED.match(line) or _TRACE_OPTION.match(line))]
    lines = [line for line in lines if not (hides_openblas and line.startswith(_OF_OPENBLAS))]
    return "".join(f"{notice_line(line)}\n" for line in lines)


def fatal_message(log: str) -> str:
    """Finds the last fatal message of TensorFlow or OpenBLAS in a log, as one line; "" if there is
    none.
    """
    messages = _FATAL.findall(log)
    message = to_terminal_line(messages[-1]) if messages else ""
    return f"a GPU failed: {message}" if message.startswith(_FAULTY) else message
