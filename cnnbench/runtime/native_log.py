"""Keeps TensorFlow's start-up chatter off standard error.

The native libraries write their first lines before any log level is in force.
Informational ones say nothing about the run; warnings and errors still come through.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# Error 303 of cuInit: no driver is installed; cnnbench says so in words of its own.
_CHATTER = re.compile(
    r"^(I\d{4} |WARNING: All log messages before absl::InitializeLog|E\d{4} .*cuInit.*\(303\)$)"
)


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Holds back what is written to file descriptor 2 and drops informational lines.

    What is left is written when the block ends, however it ends. Does nothing when
    TF_CPP_MIN_LOG_LEVEL=0 asks for everything, or where there is no descriptor 2.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    try:
        held = tempfile.TemporaryFile()  # noqa: SIM115 - entered below, once all is there
        original = os.dup(2)
    except OSError:
        yield
        return
    with held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            text = held.read().decode(errors="replace")
            kept = [line for line in text.splitlines(keepends=True) if not _CHATTER.match(line)]
            sys.stderr.write("".join(kept))
            sys.stderr.flush()
