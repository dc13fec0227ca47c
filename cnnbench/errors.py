"""Exceptions that commands report as one line on standard error, and the exit codes of commands."""

from __future__ import annotations

import enum
import errno
import re
import signal

# Matches text that TensorFlow's runtime adds to the message of a failed operation.
_RUNTIME_NOISE = re.compile(
    r"\{\{[^}]*\}\}|<stack traces unavailable>"
    r"|\[Op:\w+\]( name: ?\w*)?|^Graph execution error:\s*"
    r"|^(?:\d+ root error\(s\) found\.\s*)?\s*\(0\)\s*[A-Z_]+:\s*"
    # Keras prints the layer, and then the reason in bold.
    r"|^Exception encountered when calling .*\.call\(\)\.\s*(?=\S)|\x1b\[[01]m",
    re.MULTILINE,
)


_PLACE = "Detected at node"


class ExitCode(enum.IntEnum):
    """Exit codes of all cnnbench commands. Each code has one meaning."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAILED = 4
    INTERRUPTED = 130


def informative_line(error: Exception) -> str:
    """The first informative line of an error message, without the text that TensorFlow's runtime
    adds.
    """
    text = getattr(error, "message", None)
    text = text if isinstance(text, str) else text_of(error)
    lines = _RUNTIME_NOISE.sub("", text).strip().splitlines()
    if lines and lines[0].startswith(_PLACE):
        # TensorFlow may print, before the error, the location at which the failed node was created.
        starts = [line for line in lines if line.strip() and not line[0].isspace()]
        lines = [line for line in starts if not line.startswith(_PLACE)] or lines
    return " ".join(lines[0].split()) if lines else type(error).__name__


def text_of(error: BaseException) -> str:
    """The text of an exception. Its ``__str__`` may belong to a plug-in and raise an exception."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its __str__ raises {type(failure).__name__})"


_LIMITS = frozenset(
    {
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.EFBIG,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
    }
)
_UNMAPPED = re.compile("failed to map segment|annot allocate memory")


def exhausted(error: BaseException) -> str:
    """Returns which resource of the machine an error reports as exhausted, such as "out of memory";
    "" for other errors.
    """
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


# Errors of libraries that mean that memory ran out, so that a smaller batch may help.
_MEMORY_TYPES = ("ResourceExhaustedError", "MemoryError", "OutOfMemoryError")
_MEMORY = re.compile(
    r"^out of memory: |\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCUDNN_STATUS_ALLOC_FAILED\b"
    r"|\bCUBLAS_STATUS_ALLOC_FAILED\b"
)
_BAD_ALLOC = "std::bad_alloc"


def is_out_of_memory(type: str, message: str) -> bool:
    """Whether the type name and the message of an exception show that memory ran out."""
    return type in _MEMORY_TYPES or _MEMORY.search(message) is not None


def out_of_memory_reason(number: int, oom_kills: int, log: str) -> str:
    """Returns a message if signal `number` ended a process because memory ran out; otherwise "".

    `oom_kills` are kills that the kernel's OOM killer counted meanwhile, `log` its last output.
    """
    if number == signal.SIGKILL and oom_kills > 0:
        return "out of memory: ended by the kernel's OOM killer (SIGKILL)"
    if number == signal.SIGABRT and _BAD_ALLOC in log:
        return f"out of memory: SIGABRT, {_BAD_ALLOC}"
    return ""


class UsageError(ValueError):
    """Wrong use of cnnbench. Commands report it as one line on standard error and end with exit
    code 2.

    For an error in a plug-in, `frames` describes the stack frames in files of the plug-in, one line
    for each frame, the innermost frame last.
    """

    frames: tuple[str, ...] = ()


def _value_text(value: object) -> str:
    """Formats the value of a flag as on the command line. None, the value of a flag that is not
    given, becomes "".
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_value_text, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


class FlagError(UsageError):
    """The value of a flag is invalid. The message is "--FLAG=VALUE: REASON"."""

    def __init__(self, flag: str, value: object, reason: str) -> None:
        super().__init__(f"--{flag}={_value_text(value)}: {reason}")
        self.flag = flag
        self.value = value
        self.reason = reason


class PathError(UsageError):
    """A file or folder cannot be used. The message is "PATH: REASON"."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BenchmarkError(RuntimeError):
    """The benchmark itself failed. Commands report it as one line on standard error and end with
    exit code 4. `frames` has the same meaning as in `UsageError`.
    """

    frames: tuple[str, ...] = ()


class OutOfMemoryError(BenchmarkError):
    """A device, or the host, has too little memory for the run."""


class NonFiniteLossError(BenchmarkError):
    """The loss became infinite or NaN (exit code 4 unless --allow_nonfinite).

    Timed steps have the numbers 1, 2 and so on. The last of `warm_up` steps has the number -1.
    `advice` names what may prevent the error.
    """

    def __init__(self, step: int, loss: float, warm_up: int = 0, advice: str = "") -> None:
        place = f"warm-up step {warm_up + 1 + step}" if step < 0 else f"step {step}"
        advice = f"{advice}, or " if advice else ""
        super().__init__(
            f"loss is {loss} at {place}; {advice}pass --allow_nonfinite to go on measuring"
        )
        self.step = step
        self.loss = loss


class RetraceError(BenchmarkError):
    """A call between timed steps would make TensorFlow trace a function again, because the
    arguments have a different signature.
    """


class ReplicaDivergenceError(BenchmarkError):
    """Copies of a variable that must be equal differ (--check_replica_consistency)."""


class DataError(BenchmarkError):
    """A record, image or file cannot be used. The message names the file and the record number."""
