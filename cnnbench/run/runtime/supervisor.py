"""Runs a measurement in a child process, so that a crash of native code is recorded and an
interrupt ends it.

TensorFlow calls C's `exit` for a wrong environment variable, and its kernels may abort or crash. No
Python code runs then. So a command measures in a child process, which is forked before TensorFlow
is loaded, and the parent waits for the child. Standard streams, signals and exit codes of the child
pass through. The parent forwards the standard error of native code as notices, and keeps the last
part. If the child ends without an announcement by Python, the parent prints a line, completes the
record and exits with code 4.

With --find_batch_size, the parent forks again after a child has run out of memory, because each
attempt needs a process that has never loaded TensorFlow.

Python handles a signal only after a native call has returned, and the call may never return. So the
parent kills a child that has not ended `interrupt_grace_seconds` after a signal, or that gets a
second signal, and completes its record.

Processes are only forked on Linux: on other systems, a child would survive if its parent is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from cnnbench.base import interrupts, message, plugins
from cnnbench.base.child import ChildProcess, StopLadder, end_with_parent, exit_manner, fork_child
from cnnbench.base.interrupts import (
    AT_ONCE,
    SAME_SECONDS,
    SIGNALS,
    grace_announcement,
    interrupt_grace_seconds,
)
from cnnbench.base.log_lines import fatal_message, library_output_notices
from cnnbench.base.terminal import ErrorStoringStream, print_error, print_notice, print_warning
from cnnbench.errors import BenchmarkError, ExitCode, out_of_memory_reason
from cnnbench.machine.cpu import count_oom_kills
from cnnbench.run.runtime.turns import TimeSlices

GUARDED = "CNNBENCH_GUARDED"
"""Environment variable that is not empty in a process if another process records its crash."""

RETRY = 75
"""Number that a child announces in place of its exit code if the run must be tried again."""

_GENERATED = "__autograph_generated_file"
"""Beginning of the names of modules that TensorFlow generates from functions and imports."""

_WAITED_FOR = {*SIGNALS, signal.SIGCHLD}
_LONGEST_WAIT = 1e6
"""Time limit in seconds, because `sigtimedwait` does not accept an infinite time."""
_LOG_BYTES = 1 << 17
"""Bytes to read at once and to keep of a log. They are more than a pipe can contain."""
_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "a user killed the process, or the kernel killed it for lack of memory",
    signal.SIGABRT: "native code gave up, often for lack of memory",
    signal.SIGALRM: "the other processes of the job did not connect within --cluster_timeout",
}


class NativeDeathError(BenchmarkError):
    """The error of a run whose measuring process was ended by native code."""


@dataclass
class _SupervisionState:
    """How this process supervises a child process, or is supervised by its parent.

    Attributes:
      wanted: whether `fork_supervised` may fork.
      program: whether this process runs only cnnbench, which is not part of another program.
      measuring: forks the process that measures; None in commands that measure in other processes.
      link: the socket on which a child announces its exit code; None in other processes.
      connected: whether TensorFlow is connected with other processes. If so, TensorFlow's clean-up
        would wait for these processes, although they may be lost.
      attempt: number of earlier children of the same parent, which ran out of memory.
    """

    wanted: bool = False
    program: bool = False
    measuring: Callable[[], None] | None = None
    link: socket.socket | None = None
    connected: bool = False
    attempt: int = 0


state = _SupervisionState()


@contextlib.contextmanager
def forks_allowed() -> Iterator[None]:
    """A context in which this module may fork, because this process runs only cnnbench."""
    state.wanted = sys.platform == "linux"
    state.program = True
    try:
        yield
    finally:
        state.wanted = False


@contextlib.contextmanager
def limited_connection_time(seconds: float) -> Iterator[None]:
    """A context that ends a cnnbench command by SIGALRM if it takes longer than `seconds`.

    A timeout in Python would not work, because TensorFlow runs no Python code while it connects.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds if state.program else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def announce_exit_code(code: int) -> None:
    """Announces to a supervising parent process that Python exits with this code."""
    if state.link is not None:
        state.link.sendall(message.pack({"code": code & 0xFF}))
        state.link.close()
        state.link = None


def exit_within_two_seconds(code: int) -> None:
    """Announces the exit code, and ends this process if it is still running after two seconds.

    The interpreter waits for threads and exit handlers of plug-ins, which may never end.
    """
    announce_exit_code(code)
    # At its end, the interpreter would restore the default actions of signals, and a late signal
    # would end the process with another exit code.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    late = threading.Timer(AT_ONCE, _exit_at_once, [code])
    late.daemon = True
    with contextlib.suppress(RuntimeError):  # There may be too little memory for a thread.
        late.start()


def exit_without_cleanup(code: int) -> NoReturn:
    """Ends this process with an exit code, without clean-up by the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    announce_exit_code(code)
    _exit_at_once(code)


def _exit_at_once(code: int) -> NoReturn:
    """Ends this process without exit handlers, which would remove the files of generated code.

    The files and the folder of their bytecode are removed here.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_GENERATED)]
    for module in modules:
        file, cached = (getattr(module, name, None) or "" for name in ("__file__", "__cached__"))
        for path in (file, cached):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(cached))
    os._exit(code)


def fork_supervised(
    on_child_death: Callable[[NativeDeathError | None], None] = lambda error: None,
    prepare: Callable[[], None] = lambda: None,
    longest_step: Callable[[], float] | None = lambda: 0.0,
    should_retry: Callable[[], bool] = lambda: False,
) -> None:
    """Forks, and returns in the child. The parent waits for the child and ends in the same way.

    Forks only within `forks_allowed`, and only once. If the child announces `RETRY`, or if it runs
    out of memory and `should_retry` returns true, this function returns in another child, with a
    higher `state.attempt`.

    Args:
      on_child_death: called in the parent if the child ends without an announcement, to write a
        record. Its argument is None if the child was killed after an interrupt.
      prepare: called before each fork, to share memory with the child.
      longest_step: called in the parent; returns the seconds of the child's longest step so far.
        None if the child must never be killed.
      should_retry: called in the parent; returns whether to try again after a lack of memory.
    """
    if not state.wanted:
        return
    state.wanted = False
    # Imported only here, because --help and refused flags do not need it.
    from cnnbench.run.runtime.native_log import share_held_back_output

    # Signals are blocked before the fork, because they must not end the parent while the child is
    # alive.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    while True:
        prepare()
        sys.stdout.flush()
        sys.stderr.flush()
        unwritten = share_held_back_output()
        log = _NativeLogForwarder()
        interrupts.writing = mmap.mmap(-1, 1)
        plugins.share_running_plugin()
        kills = count_oom_kills()
        child, link = fork_child()
        if child is None:
            break
        announced, code, printed = _wait_for_child(child, log, longest_step)
        held_back = unwritten() if announced is None else ""
        if announced is None and code is not None:
            full = out_of_memory_reason(-code, count_oom_kills() - kills, held_back + printed)
            announced = RETRY if full and should_retry() else None
        if announced != RETRY:
            _end_like_child(announced, code, printed, held_back, on_child_death)
        state.attempt += 1
    log.redirect_stderr()
    # If the parent has failed, it has printed its error, so this process exits without another
    # message.
    if not link.recv(1):
        os._exit(int(ExitCode.FAILED))
    state.link = link
    _end_forks_with(os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_before_plugins() -> None:
    """Forks and returns in the child, before plug-ins and NumPy are loaded.

    OpenBLAS, which NumPy uses, ends the process if there is too little memory. Forks only within
    `forks_allowed`, and only once. A command that measures in this process has set
    `state.measuring`, which forks instead: a plug-in may start threads of TensorFlow, which do not
    survive a later fork.
    """
    if state.measuring is not None:
        state.measuring()
    elif state.wanted and state.link is None and not os.environ.get(GUARDED):
        fork_supervised(longest_step=None)
        state.wanted = True  # This child forks again: the process that measures is its child.


def _end_like_child(
    announced: int | None,
    code: int | None,
    printed: str,
    held_back: str,
    on_child_death: Callable[[NativeDeathError | None], None],
) -> NoReturn:
    """Ends this process in the same way as its child has ended, and reports the child's death."""
    if announced is None:
        sys.stderr.write(library_output_notices(held_back))
        error: NativeDeathError | None = None
        if code is not None:
            if os.environ.get(GUARDED):
                if code < 0:  # The same signal ends this process, too, so its parent can record it.
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
                    os.kill(os.getpid(), -code)
                os._exit(code)
            reason = fatal_message(held_back) or fatal_message(printed)
            error = NativeDeathError(_describe_death(code, reason))
        print_error("interrupted" if error is None else str(error))
        try:
            on_child_death(error)
        except Exception as failure:
            print_warning(f"the record could not be written: {failure}", "outputs")
        announced = int(ExitCode.INTERRUPTED if error is None else ExitCode.FAILED)
    # After `fork_before_plugins`, this process has a supervising parent itself.
    announce_exit_code(announced)
    os._exit(announced)


def _end_forks_with(process: int) -> None:
    """Makes processes that plug-ins fork end with this process.

    They would keep the output of this process open.
    Processes that other threads fork are left alone: the kernel would end them with the thread.
    """
    by_main_thread = False

    def before() -> None:
        nonlocal by_main_thread
        by_main_thread = threading.current_thread() is threading.main_thread()

    def end_copy_with_parent() -> None:
        if by_main_thread and os.getppid() == process:
            end_with_parent(process)

    os.register_at_fork(before=before, after_in_child=end_copy_with_parent)


class _NativeLogForwarder:
    """Forwards the standard error of native code in a child process as notices of its parent.

    Python's standard error is not redirected, because it draws progress bars on terminals.
    """

    def __init__(self) -> None:
        """Creates the pipe, before the process forks."""
        self._out, self._in = os.pipe()
        # The pipe may stay open in processes that the child has started, so the child's end cannot
        # be seen by end-of-file. This mark ends the log.
        self._mark = os.urandom(16)
        self._last = b""

    def redirect_stderr(self) -> None:
        """In the child, redirects file descriptor 2 into the pipe."""
        if isinstance(sys.stderr, ErrorStoringStream):
            sys.stderr.duplicate_descriptor()
        os.dup2(self._in, 2)
        os.close(self._in)
        os.close(self._out)

    def forward(self) -> None:
        """In the parent, starts the thread that forwards the log."""
        self._thread = threading.Thread(target=self._forward_log, daemon=True)
        self._thread.start()

    def end(self) -> str:
        """Forwards the rest of the log after the child has ended; returns the last part of it."""
        os.write(self._in, self._mark)
        self._thread.join()
        return self._last.decode(errors="replace")

    def _forward_log(self) -> None:
        rest = b""  # The line continues in the next read.
        while self._mark not in self._last:
            part = os.read(self._out, _LOG_BYTES)
            self._last = self._last[-_LOG_BYTES:] + part
            lines, is_over, _ = (rest + part).partition(self._mark)
            if not is_over and len(lines) < _LOG_BYTES:
                lines, _, rest = lines.rpartition(b"\n")
            else:  # After a crash, the last line may be incomplete, so it is written as it is.
                rest = b""
            with contextlib.suppress(OSError):  # Standard error may be closed.
                text = lines.decode(errors="backslashreplace")
                # Messages of OpenBLAS are hidden if this process reports the crash itself.
                hides = not os.environ.get(GUARDED)
                os.write(2, library_output_notices(text, hides_openblas=hides).encode())


def _wait_for_child(
    child: ChildProcess, log: _NativeLogForwarder, longest_step: Callable[[], float] | None
) -> tuple[int | None, int | None, str]:
    """Waits for a child to end. Forwards signals to the child, and kills it if it does not end.

    Returns the exit code that the child has announced, if any; its exit code, or the negative
    number of the signal that ended it; and the last part of its log. The second value is None if
    the child was killed, or if a signal of an interrupt ended it directly. Without `longest_step`,
    the child is never killed.
    """
    # Only the child needs the socket that assigns time slices, so the parent closes its copy.
    TimeSlices.from_environment(os.environ)
    # If there is too little memory for a thread, this raises an error, and the child ends.
    log.forward()
    child.link.sendall(b"\0")
    ladder, killed, status = StopLadder(), False, 0
    while True:
        timeout = min(max(0.0, ladder.deadline - time.monotonic()), _LONGEST_WAIT)
        received = signal.sigtimedwait(_WAITED_FOR, timeout)
        now, kill = time.monotonic(), False
        if received is None:
            if killed:  # Killed some time ago, but still waiting for a device.
                break
            if longest_step is not None and now >= ladder.deadline:
                seconds = interrupt_grace_seconds(longest_step())
                kill = not ladder.allow(seconds)
                if not kill and child.read_report() is None:
                    print_notice(grace_announcement(seconds))
        elif received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child.pid, os.WNOHANG)
            if ended:
                break
        else:
            # A terminal sends its signal to the child, too; another process sends it only to the
            # parent.
            if received.si_code <= 0:
                child.send_signal(received.si_signo)
            child.send_signal(signal.SIGCONT)  # A suspended child must continue to handle it.
            if longest_step is not None:
                is_ignored = signal.getsignal(received.si_signo) is signal.SIG_IGN
                kill = not is_ignored and ladder.interrupt(now)
        if kill:
            child.send_signal(signal.SIGKILL)
            killed, ladder.deadline = True, now + SAME_SECONDS
    announced = (child.read_report() or {}).get("code")
    printed, code = log.end(), os.waitstatus_to_exitcode(status)
    child.link.close()
    return announced, (None if killed or -code in SIGNALS else code), printed


def _describe_death(code: int, reason: str) -> str:
    where = plugins.running_plugin_name()
    if code >= 0:
        text = f"{where or 'a native library'} ended the process {exit_manner(code)}"
        return f"{text}: {reason}" if reason else f"{text}; see the lines above"
    text = f"ended {exit_manner(code)}{where and ' in '}{where}"
    return f"{text}: {reason or _HINTS.get(-code, 'native code crashed')}"
