"""Filters what native libraries write to standard error.

TensorFlow, CUDA and libjpeg write to file descriptor 2, in part before a log level can be set.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from cnnbench.base.log_lines import library_output_notices
from cnnbench.base.terminal import ErrorStoringStream

# Absl writes "I1129 17:33:25.5 1234 file.cc:1] TEXT", or "I0000 00:00:1795162120.9 1234 file.cc:1]"
# before its initialization. TensorFlow before 2.21 writes "2026-11-29 17:33:25.5: I file.cc:1]".
_DATE = r"\d{4}-\d\d-\d\d [\d:.]+: "
_INFORMATIONAL = re.compile(
    rf"^(I\d{{4}} |{_DATE}I |WARNING: All log messages before absl::InitializeLog"
    # Two errors of cuInit are dropped, because cnnbench reports both situations itself: 303 (no GPU
    # driver is installed) and CUDA_ERROR_NO_DEVICE (there is no GPU).
    rf"|(E\d{{4}} |{_DATE}E ).*cuInit.*(\(303\)|CUDA_ERROR_NO_DEVICE\b.*)$"
    # TensorFlow 2.23 writes where each of these errors was made, in two lines without a prefix.
    r"|=== Source Location Trace: ===|\S*/cuda_status\.cc:\d+$"
    # TensorFlow 2.18 writes these about the second copy of its libraries, also without a GPU.
    rf"|(E\d{{4}} |{_DATE}E ).*Unable to register cu(FFT|DNN|BLAS) factory: Attempting to register"
    # This is the second line of the message about the CPU's instruction sets, and has no prefix of
    # its own.
    r"|To enable the following instructions: .* rebuild TensorFlow)"
)

# The file in which the next `filtered_stderr` stores what it holds back; empty if there is none or
# if it is in use.
_shared: list[IO[bytes]] = []


def share_held_back_output() -> Callable[[], str]:
    """Creates a file for the output that `filtered_stderr` holds back in the next child process.

    Returns a function that returns the stored output without informational lines. The output is
    not empty if the child process has ended within `filtered_stderr`.
    """
    try:
        with tempfile.TemporaryFile() as made:
            # The descriptor stays open until both parent and child exit.
            file: IO[bytes] = os.fdopen(os.dup(made.fileno()), "w+b", closefd=False)
    except OSError:
        return lambda: ""
    _shared[:] = [file]

    def text() -> str:
        file.seek(0)
        return _drop_info(file.read().decode(errors="replace"), None)

    return text


@contextlib.contextmanager
def filtered_stderr(select: Callable[[str, BaseException | None], str]) -> Iterator[None]:
    """A context that holds back standard error, and writes what `select` returns at its end.

    `select` gets the stored text and the exception that ended the block, if any. It returns the
    text that is written, as notices. Nothing is stored if TF_CPP_MIN_LOG_LEVEL is 0, or if file
    descriptor 2 or a temporary file is not available.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    shared = _shared.pop() if _shared else None
    try:
        held = shared or tempfile.TemporaryFile()  # noqa: SIM115 - the ExitStack closes it
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
        stderr = ErrorStoringStream(sys.stderr)
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
            text = held.read().decode(errors="replace")
            stderr.write(library_output_notices(select(text, ended_by)))
            stderr.flush()


def without_info_lines() -> contextlib.AbstractContextManager[None]:
    """A context that drops informational lines of native code from standard error.

    Warnings and errors are written at the end of the block.
    """
    return filtered_stderr(_drop_info)


def _drop_info(text: str, _: BaseException | None) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not _INFORMATIONAL.match(line))
