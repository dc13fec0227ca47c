"""The reason, in the log of native code, for the end of a process."""

from __future__ import annotations

import re

from cnnbench.base.text.escape import one_line

# Two formats: F0000 00:00:1795490572.139305    7847 device_event_mgr.cc:228] TEXT
# and 2026-11-24 03:20:00.139305: F tensorflow/core/framework/tensor.cc:844] TEXT
_FATAL = re.compile(r"^(?:F\d{4} |\d{4}-\d\d-\d\d [\d:.]+: F )[^\]\n]*:\d+\] *(.*)", re.MULTILINE)

_FAULTY = "Unexpected Event status"
"""TensorFlow's message when a kernel or a copy has failed on a GPU, for any reason."""


def fatal_message(log: str) -> str:
    """The last fatal message of TensorFlow, as one line; "" without one."""
    found = _FATAL.findall(log)
    message = one_line(found[-1]) if found else ""
    return f"a GPU failed: {message}" if message.startswith(_FAULTY) else message
