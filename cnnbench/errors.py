"""Errors that the command line turns into one line on stderr, and the exit codes."""

from __future__ import annotations

import enum
import errno
import re
import signal

# Additions of TensorFlow's runtime to the message of the operation that failed; for a function that
# ran in several parts, a list of these comes first.
_RUNTIME_NOISE = re.compile(
    r"\{\{[^}]*\}\}|<stack traces unavailable>"
    r"|\[Op:\w+\]( name: ?\w*)?|^Graph execution error:\s*"
    r"|^(?:\d+ root error\(s\) found\.\s*)?\s*\(0\)\s*[A-Z_]+:\s*",
    re.MULTILINE,
)


_PLACE = "Detected at node"


class ExitCode(enum.IntEnum):
    """Exit codes of every cnnbench command; never one code for two causes."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAILED = 4
    INTERRUPTED = 130


def first_line(error: Exception) -> str:
    """The first informative line of an error, without additions of the runtime."""
    text = getattr(error, "message", None)
    text = text if isinstance(text, str) else text_of(error)
    lines = _RUNTIME_NOISE.sub("", text).strip().splitlines()
    if lines and lines[0].startswith(_PLACE):
        # The place in our code where the node was made comes before the error.
        starts = [line for line in lines if line.strip() and not line[0].isspace()]
        lines = [line for line in starts if not line.startswith(_PLACE)] or lines
    return " ".join(lines[0].split()) if lines else type(error).__name__


def text_of(error: BaseException) -> str:
    """Text of an exception; its ``__str__`` may belong to a plug-in and raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its __str__ raises {type(failure).__name__})"


_LIMITS = frozenset(
    {
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
        *(errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    }
)
_UNMAPPED = re.compile("failed to map segment|annot allocate memory")


def exhausted(error: BaseException) -> str:
    """The resource that an error says is exhausted; "" for other errors."""
    cause: BaseException | None = error
    while cause is not None:
        text = text_of(cause)
        if isinstance(cause, MemoryError):
            return "out of memory"
        if isinstance(cause, OSError) and cause.errno in _LIMITS:
            return f"{cause.strerror}: {cause.filename}" if cause.filename else str(cause.strerror)
        if isinstance(cause, ImportError) and cause.__cause__ is None and _UNMAPPED.search(text):
            return f"out of memory: {' '.join(text.split())}"
        if isinstance(cause, RuntimeError) and text == "can't start new thread":
            return "out of memory or processes: a thread cannot be started"
        cause = cause.__cause__
    return ""


# Errors of libraries that count as out of memory: a smaller batch fixes no other error.
_MEMORY_TYPES = ("ResourceExhaustedError", "MemoryError", "OutOfMemoryError")
_MEMORY = re.compile(
    r"^out of memory: |\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCUDNN_STATUS_ALLOC_FAILED\b"
    r"|\bCUBLAS_STATUS_ALLOC_FAILED\b"
)
_BAD_ALLOC = "std::bad_alloc"


def is_out_of_memory(type: str, message: str) -> bool:
    """Whether an exception with this name of its type and this message is for lack of memory."""
    return type in _MEMORY_TYPES or _MEMORY.search(message) is not None


def memory_ran_out(number: int, oom_kills: int, log: str) -> str:
    """Why a process that signal `number` ended had no memory; "" if it ended for another reason.

    `oom_kills` are kills that the kernel's OOM killer counted meanwhile, `log` its last output.
    """
    if number == signal.SIGKILL and oom_kills > 0:
        return "out of memory: ended by the kernel's OOM killer (SIGKILL)"
    if number == signal.SIGABRT and _BAD_ALLOC in log:
        return f"out of memory: SIGABRT, {_BAD_ALLOC}"
    return ""


class UsageError(ValueError):
    """Wrong use: one line on stderr and exit code 2.

    For errors of plug-ins, `frames` are those of their files, a line each, the innermost last.
    """

    frames: tuple[str, ...] = ()


def _flag_value_text(value: object) -> str:
    """A value of a flag as on a command line; None stands for a flag that is not given."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_flag_value_text, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


class FlagError(UsageError):
    """A value that flag `flag`, without dashes, cannot have; `reason` completes the sentence."""

    def __init__(self, flag: str, value: object, reason: str) -> None:
        super().__init__(f"--{flag}={_flag_value_text(value)}: {reason}")
        self.flag = flag
        self.value = value
        self.reason = reason


class PathError(UsageError):
    """A file or folder that cannot be used; `reason` follows the path and a colon."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BenchmarkError(RuntimeError):
    """The benchmark itself failed: one line on stderr, exit code 4; `frames` as in `UsageError`."""

    frames: tuple[str, ...] = ()


class OutOfMemoryError(BenchmarkError):
    """A device or the host has no memory left for the run."""


class NonFiniteLossError(BenchmarkError):
    """The loss became infinite or NaN (exit code 4 unless --allow_nonfinite)."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(
            f"loss is {loss} at step {step}; lower --init_learning_rate, or pass "
            "--allow_nonfinite to go on measuring"
        )
        self.step = step
        self.loss = loss


class RetraceError(BenchmarkError):
    """A function called between timed steps got arguments of another signature."""


class ReplicaDivergenceError(BenchmarkError):
    """Copies of a variable that must be equal differ (--check_replica_consistency)."""


class DataError(BenchmarkError):
    """A record, image or file that cannot be used; names file and record number."""
