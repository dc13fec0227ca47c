"""Real processes that begin with TensorFlow and cnnbench loaded, which saves each of them seconds.

A server of `multiprocessing` loads both once, uses nothing of TensorFlow, and forks. What the start
of a program does besides is shown by tests that start one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import multiprocessing
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil

from cnnbench.campaigns.processes import child, guard
from cnnbench.campaigns.processes.child import Ended
from cnnbench.run.runtime.loading import load_tensorflow
from cnnbench.run.runtime.supervisor import GUARDED

load_tensorflow()  # without Keras, which takes the longer part of an import


def _modules(*packages: str) -> Iterator[str]:
    """Packages and everything in them."""
    for name in packages:
        yield name
        path = importlib.import_module(name).__path__
        yield from (module.name for module in pkgutil.walk_packages(path, f"{name}."))


_USED = ("run", "data", "models", "variable_mgr", "lab.allreduce", "cli.commands")


def preloaded() -> list[str]:
    """What processes have imported when they are forked."""
    return ["forked", *_modules(*(f"cnnbench.{one}" for one in _USED))]


@functools.cache
def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded())
    return context


def brief() -> Iterator[tuple[object, str, object]]:
    """Owner, name and value of what a run measures beside its steps, to measure it for a moment.

    Most tests read none of it; a test of such a measurement itself sets nothing.
    """
    from cnnbench.run.driver import input_only
    from cnnbench.run.runtime import peak_flops

    yield input_only, "_WHOLE_SECONDS", 0.05
    yield peak_flops, "_BUDGET_SECONDS", 0.01


class Forked:
    """A process in a session of its own, with the methods of `subprocess.Popen` that tests use.

    Args:
      run: what it does; can be pickled by name.
      argv: its arguments, behind the name of the program.
      out, err: files for what it prints.
      cwd: its working directory; None for this one.
      environment: variables beside those of this process.
    """

    def __init__(
        self,
        run: Callable[[], object],
        argv: Sequence[str],
        out: Path,
        err: Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = {**os.environ, **(environment or {})}
        folder = os.getcwd() if cwd is None else str(cwd)
        arguments = (run, [str(text) for text in argv], str(out), str(err), folder, variables)
        for path in (out, err):
            path.touch()  # readers need not wait for it
        self._process = _context().Process(target=_begin, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
          subprocess.TimeoutExpired: it runs after so many seconds.
        """
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it runs; SIGSTOP, which nobody can hand on, to its children too."""
        if self.poll() is None:
            if number == signal.SIGSTOP:
                for child in psutil.Process(self.pid).children(recursive=True):
                    child.send_signal(number)
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)


def see_own_gpus() -> None:
    """Emulated GPUs are those that the variables of this process name.

    The process that loaded their library, from which this one was forked, may have had others.
    """
    if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ:
        from tensorflow.python.eager import context  # noqa: TID251 (as the loader does)

        context.context().reinitialize_physical_devices()


def cnnbench() -> NoReturn:
    """`python -m cnnbench`, with what is `brief`."""
    from cnnbench.cli import entry_point

    see_own_gpus()
    for owner, name, value in brief():
        setattr(owner, name, value)
    entry_point()


def cnnbench_with_little_disk() -> NoReturn:
    """`python -m cnnbench` that can write no file of more than 4 KiB, as if the disk were full."""
    sys.dont_write_bytecode = True  # it would be cut off, and read by the next process
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    cnnbench()


def impatient() -> NoReturn:
    """The same, but a stopped process and a first update that hangs are found within seconds."""
    from cnnbench.run.cluster.watchdog import Watchdog
    from cnnbench.run.driver import async_loop

    limit_of = async_loop.time_limit
    async_loop.time_limit = lambda limit, longest, is_step: limit_of(
        limit if is_step else 2 * limit, longest, True
    )

    defaults = Watchdog.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(silence=2.0, timeout=2.0, period=0.5)
    cnnbench()


def launching() -> NoReturn:
    """`cnnbench`, whose own child processes are forked from this one."""
    fork_children()
    cnnbench()


def execute(command: child.Command, timeout: float, grace: float = child.GRACE_SECONDS) -> Ended:
    """Runs a command of this cnnbench as `child.execute` does, and any other one by that."""
    at = _first_argument(command.words)
    if command.words[0] != sys.executable or at is None:
        return child.execute(command, timeout, grace)
    started = time.monotonic()
    command.log.write_bytes(b"")
    program = launching if command.words[at] == "launch" else cnnbench
    variables = {**command.environment, GUARDED: "1"}
    logs = (command.log, command.log)
    process = Forked(program, command.words[at:], *logs, command.folder, variables)
    try:
        code = process.wait(timeout)
    finally:
        process.kill()
    return Ended(code=code, seconds=time.monotonic() - started)


def _first_argument(words: Sequence[str]) -> int | None:
    """Where the command line of a cnnbench that measures begins."""
    return next((at for at, one in enumerate(words) if one in ("run", "launch", "allreduce")), None)


def fork_children() -> None:
    """From now on the child processes of jobs and campaigns are forked from this process.

    So are their guards. It must not have used TensorFlow.
    """
    child.subprocess = SimpleNamespace(DEVNULL=subprocess.DEVNULL, Popen=_Guard)


class _Guard:
    """What `child.start` needs of `subprocess.Popen`: a guard, which forks the program."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdout: Any,
        stderr: Any,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        cwd: Path | None,
        **_: Any,
    ) -> None:
        streams = [one if isinstance(one, int) else one.fileno() for one in (stdout, stderr)]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            with contextlib.suppress(PermissionError):  # it has done so itself
                os.setpgid(self.pid, self.pid)
            return
        try:
            os.setpgid(0, 0)
            for number, opened in enumerate(streams, start=1):
                os.dup2(opened, number)
            for number in map(int, os.listdir("/proc/self/fd")):
                if number > 2 and number not in pass_fds:
                    with contextlib.suppress(OSError):
                        os.close(number)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd or ".")
            guard.subprocess = SimpleNamespace(DEVNULL=None, Popen=_program)
            guard.main(words[words.index(guard.__file__) + 1 :])
        finally:
            os._exit(1)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def _program(words: Sequence[str], **_: object) -> SimpleNamespace:
    """What a guard needs of `subprocess.Popen`."""
    pid = os.fork()
    if pid:
        return SimpleNamespace(pid=pid)
    status: object = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["cnnbench", *words[_first_argument(words) :]]
        cnnbench()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


def _begin(
    run: Callable[[], object],
    argv: list[str],
    out: str,
    err: str,
    folder: str,
    variables: dict[str, str],
) -> None:
    os.setsid()
    gc.freeze()  # what is loaded, as where a process loads TensorFlow itself
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for descriptor, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["cnnbench", *argv]
    run()


PATIENCE = 20.0  # seconds; what is waited for takes a fraction of one


def gone(pid):
    """Whether a process is dead, if need be after a moment."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def wait_for(path):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")
