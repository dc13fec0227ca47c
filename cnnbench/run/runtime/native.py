"""Native libraries: a filter of their standard error.

TensorFlow, CUDA and libjpeg write to file descriptor 2, some of them before any log level is set.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from cnnbench.base.text.messages import library_lines
from cnnbench.base.text.terminal import StandardStream

# Error 303 of cuInit: no driver is installed; cnnbench reports that itself.
_INFORMATIONAL = re.compile(
    r"^(I\d{4} |WARNING: All log messages before absl::InitializeLog|E\d{4} .*cuInit.*\(303\)$"
    # The second line of a message on what a CPU can do.
    r"|To enable the following instructions: .* rebuild TensorFlow)"
)


# The file for the output that the next block holds back; empty while a block uses it.
_shared: list[IO[bytes]] = []


def share_held_back() -> Callable[[], str]:
    """Makes the next forked process hold back its standard error in a file of this process.

    Returns a function that returns the text, without informational lines, that a block of that
    process held back and could not write before it died.
    """
    try:
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as both
    except OSError:
        return lambda: ""
    _shared[:] = [file]

    def text() -> str:
        file.seek(0)
        return _without_informational(file.read().decode(errors="replace"), None)

    return text


@contextlib.contextmanager
def filtered_stderr(select: Callable[[str, BaseException | None], str]) -> Iterator[None]:
    """Holds back output to file descriptor 2; at the end writes what `select` returns, as notices.

    `select` gets the text and the exception that ended the block, if any. Does nothing when
    TF_CPP_MIN_LOG_LEVEL=0 asks for everything, or without a descriptor 2 or a temporary file.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    shared = _shared.pop() if _shared else None
    try:
        held = shared or tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        original = os.dup(2)
    except OSError:
        yield
        return
    with contextlib.ExitStack() as stack:
        if shared is None:
            stack.enter_context(held)
        else:
            stack.callback(_shared.append, shared)
            stack.callback(shared.seek, 0)
            stack.callback(os.ftruncate, shared.fileno(), 0)
        stderr = StandardStream(sys.stderr)
        stderr.flush()
        os.dup2(held.fileno(), 2)
        ended_by: BaseException | None = None
        try:
            yield
        except BaseException as error:
            ended_by = error
            raise
        finally:
            stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            stderr.write(library_lines(select(held.read().decode(errors="replace"), ended_by)))
            stderr.flush()


def without_info_lines() -> contextlib.AbstractContextManager[None]:
    """Drops informational lines; warnings and errors appear when the block ends."""
    return filtered_stderr(_without_informational)


def _without_informational(text: str, _: BaseException | None) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not _INFORMATIONAL.match(line))
