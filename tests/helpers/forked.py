"""Real processes that begin with TensorFlow and cnnbench loaded, which saves each of them seconds.

A server of `multiprocessing` loads both once, uses nothing of TensorFlow, and forks. What the start
of a program does besides is shown by tests that start one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psutil
from brief import brief

from cnnbench.campaigns.processes import child
from cnnbench.campaigns.processes.child import Ended
from cnnbench.run.runtime.supervisor import GUARDED


def _modules(*packages: str) -> Iterator[str]:
    """Packages and everything in them."""
    for name in packages:
        yield name
        path = importlib.import_module(name).__path__
        yield from (module.name for module in pkgutil.walk_packages(path, f"{name}."))


_USED = ("run", "data", "models", "variable_mgr", "lab.allreduce", "cli.commands")
_context = multiprocessing.get_context("forkserver")


def preloaded() -> list[str]:
    """What processes have imported when they are forked."""
    return ["tensorflow", *_modules(*(f"cnnbench.{one}" for one in _USED))]


_context.set_forkserver_preload(preloaded())


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
        self._process = _context.Process(target=_begin, args=arguments)
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


def cnnbench() -> NoReturn:
    """`python -m cnnbench`, with what is `brief`."""
    from cnnbench.cli import entry_point

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
    defaults.update(silence=2.0, timeout=2.0)
    cnnbench()


def execute(command: child.Command, timeout: float, grace: float = child.GRACE_SECONDS) -> Ended:
    """Runs a command of this cnnbench as `child.execute` does, and any other one by that."""
    words = list(command.words)
    if words[0] != sys.executable or "run" not in words:
        return child.execute(command, timeout, grace)
    started = time.monotonic()
    command.log.write_bytes(b"")
    argv, logs = words[words.index("run") :], (command.log, command.log)
    variables = {**command.environment, GUARDED: "1"}
    process = Forked(cnnbench, argv, *logs, command.folder, variables)
    try:
        code = process.wait(timeout)
    finally:
        process.kill()
    return Ended(code=code, seconds=time.monotonic() - started)


def _begin(
    run: Callable[[], object],
    argv: list[str],
    out: str,
    err: str,
    folder: str,
    variables: dict[str, str],
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for descriptor, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["cnnbench", *argv]
    run()
