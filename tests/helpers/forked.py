"""Real processes that begin with what they need loaded, which saves each of them seconds.

A `Server` loads it once, uses nothing of TensorFlow, and forks. What the start of a program does
besides is shown by tests that start one. Signals, exit codes, time-outs and files are real.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import fork_server
import psutil

from cnnbench.base import interrupts
from cnnbench.campaigns.processes import child, guard
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.machine import repository
from cnnbench.records.files import write_atomically
from cnnbench.run.runtime.supervisor import GUARDED

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)


class Server:
    """A connection to a running fork_server.py, which ends with the last of its connections.

    The processes of one pytest-xdist run share those of the same preload, options and key.

    Args:
      preload: code that it runs before anything else; see `LOADED`.
      options: of the interpreter.
      environment: variables beside those of this process; see `variables`.
      key: tells apart those with different environments.
    """

    def __init__(
        self,
        preload: str,
        *options: str,
        environment: Mapping[str, str | None] | None = None,
        key: str = "",
    ) -> None:
        same = zlib.crc32(repr((preload, options, key)).encode())
        address = f"\0cnnbench {_RUN} {same}"  # no file, so nothing of it is left
        self._control, listener = (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)
        )
        with listener:
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # another process starts it, or has
                    raise
            else:
                listener.listen()
                number = listener.fileno()
                subprocess.run(
                    [sys.executable, *options, fork_server.__file__, str(number), preload],
                    check=True,
                    env=variables(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[number],
                    start_new_session=True,
                )
        until(lambda: self._control.connect_ex(address) == 0)

    def ask(self, request: Mapping[str, Any]) -> socket.socket:
        """Has it fork; returns the other end of the child's socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Ends the connection."""
        self._control.close()


def variables(more: Mapping[str, str | None] | None) -> dict[str, str]:
    """The environment of this process with these variables; without those that are None."""
    given = {**os.environ, **(more or {})}
    return {name: value for name, value in given.items() if value is not None}


def finished(
    words: Iterable[object],
    code: int | None = 0,
    *,
    environment: Mapping[str, str | None] | None = None,
    seconds: float = 120.0,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A program, not forked, that has ended with this exit code; None: any.

    Args:
      words: its command line.
      code: the exit code.
      environment: see `variables`.
      seconds: in which it has to end.
      **options: of `subprocess.run`.
    """
    command = [str(word) for word in words]
    given = {"capture_output": True, "text": True, "env": variables(environment), **options}
    done = subprocess.run(command, timeout=seconds, check=False, **given)
    assert code in (done.returncode, None), done.stderr
    return done


LOADED = "import forked; forked.load()"
"""For a `Server`: loads TensorFlow, and what commands import."""

_USED = ("run", "data", "models", "variable_mgr", "lab.all_reduce", "cli.commands")


def never_sync() -> None:
    """Files of this process are not flushed to the disk: no test cuts the power."""
    for name in ("fsync", "sync"):
        setattr(os, name, lambda *_: None)


def load() -> None:
    """Imports TensorFlow, without Keras, which takes the longer part, and packages of cnnbench.

    Also asks git once about cnnbench.
    """
    from cnnbench.run.runtime.loading import load_tensorflow

    never_sync()
    own_checkout()
    load_tensorflow()
    for name in _USED:
        path = importlib.import_module(f"cnnbench.{name}").__path__
        for module in pkgutil.walk_packages(path, f"cnnbench.{name}."):
            importlib.import_module(module.name)


@functools.cache
def _loaded() -> Server:
    return Server(LOADED)


own_checkout = functools.cache(repository.cnnbench_checkout)
"""What git says about cnnbench, which no test changes."""


def brief() -> Iterator[tuple[object, str, object]]:
    """Owner, name and value of what a run measures beside its steps, to measure it for a moment.

    It also asks git about cnnbench no more than once.
    Most tests read none of it; a test of such a measurement itself sets nothing.
    """
    from cnnbench.run.driver import input_speed
    from cnnbench.run.runtime import peak_flops

    yield input_speed, "_WHOLE_SECONDS", 0.05
    yield input_speed, "_DRAIN_SECONDS", 0.05
    yield peak_flops, "_BUDGET_SECONDS", 0.01
    yield repository, "cnnbench_checkout", own_checkout


def be_brief() -> None:
    """Has the runs of this process measure for a moment what is `brief`."""
    for owner, name, value in brief():
        setattr(owner, name, value)


_graph_options = {"disable_meta_optimizer": True}
"""Options of TensorFlow's graph optimizer that replace those of runs in this process."""


def shorten_runs() -> None:
    """Has TensorFlow do less in the runs of this process, which saves an eighth of their CPU time.

    Later runs use the kernels of earlier ones: TensorFlow drops the kernels of operations outside
    of functions with every seed that it is given. Graphs run as they were traced; the processes of
    commands optimize theirs. See `optimized_graphs`.
    """
    import tensorflow as tf

    tf.random.set_seed = functools.lru_cache(1)(tf.random.set_seed)
    real = tf.config.optimizer.set_experimental_options

    def set_options(options: Mapping[str, bool]) -> None:
        real({**options, **_graph_options})

    tf.config.optimizer.set_experimental_options = set_options
    set_options({})


@contextlib.contextmanager
def optimized_graphs() -> Iterator[None]:
    """Graphs that first run inside the context are optimized, as a user's are."""
    import tensorflow as tf

    with mock.patch.dict(_graph_options, disable_meta_optimizer=False):
        tf.config.optimizer.set_experimental_options({})
        yield
    tf.config.optimizer.set_experimental_options({})


class Forked:
    """A process in a session of its own, with the methods of `subprocess.Popen` that tests use.

    It is killed when its context is left.

    Args:
      run: a function of a module, or Python code.
      argv: its arguments, behind the name of the program.
      out, err: files that take what it prints, behind what is there; the same one is possible.
      cwd: its working directory; None for this one.
      environment: variables beside those of this process; see `variables`.
      program: its name.
      server: what forks it; by default one with `LOADED`.
      begins: whether it begins at once; otherwise with `end`.
    """

    def __init__(
        self,
        run: Callable[[], object] | str,
        argv: Sequence[object],
        out: Path,
        err: Path,
        cwd: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        *,
        program: str = "cnnbench",
        server: Server | None = None,
        begins: bool = True,
    ) -> None:
        if not isinstance(run, str):
            run = f"from {run.__module__} import {run.__name__} as run; run()"
        for path in (out, err):
            path.touch()  # readers need not wait for it
        request = {
            "code": run,
            "argv": [program, *map(str, argv)],
            "out": os.path.abspath(out),
            "err": os.path.abspath(err),
            "folder": os.path.abspath(cwd or "."),
            "environment": variables(environment),
        }
        self._link = (server or _loaded()).ask(request)
        self._code: int | None = None
        self.pid = int(self._link.recv(32))
        self._waits = True
        if begins:
            self._begin()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

    @property
    def returncode(self) -> int | None:
        """As of `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
          subprocess.TimeoutExpired: it runs after so many seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def end(self, timeout: float, grace: float = 0.0) -> tuple[int, bool]:
        """The exit code, and whether it took longer, and was ended with all of its group.

        The group gets SIGTERM then, or on KeyboardInterrupt, and SIGKILL after the grace.
        """
        try:
            self._begin()
            code = self._ended(timeout)
            return (self._stop(grace), True) if code is None else (code, False)
        except KeyboardInterrupt:
            self._stop(grace)
            raise

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

    def _begin(self) -> None:
        if self._waits:
            self._waits = False
            self._link.send(b"g")

    def _ended(self, seconds: float | None) -> int | None:
        if self._code is None:
            limit = None if seconds is None else min(seconds, 1e6)
            if select.select([self._link], [], [], limit)[0]:
                self._code = os.waitstatus_to_exitcode(int(self._link.recv(32)))
                self._link.close()
        return self._code

    def _stop(self, grace: float) -> int:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 60.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            code = self._ended(seconds)
            if code is not None:
                return code
        raise AssertionError("a process outlives SIGKILL")


def see_own_gpus() -> None:
    """Emulated GPUs are those that the variables of this process name.

    The process that loaded their library, from which this one was forked, may have had others.
    """
    if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ:
        from tensorflow.python.eager import context  # noqa: TID251 (as the loader does)

        context.context().reinitialize_physical_devices()


def cnnbench() -> NoReturn:
    """`python -m cnnbench`, with what is `brief`."""
    be_brief()
    cnnbench_unshortened()


def cnnbench_unshortened() -> NoReturn:
    """`python -m cnnbench` that measures everything for as long as a user's run does."""
    from cnnbench.cli import entry_point

    see_own_gpus()
    entry_point()


def cnnbench_with_little_disk() -> NoReturn:
    """`python -m cnnbench` that can write no file of more than 4 KiB, as if the disk were full."""
    sys.dont_write_bytecode = True  # it would be cut off, and read by the next process
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    cnnbench()


def unhurried() -> NoReturn:
    """`cnnbench` that sleeps before each step: until it is ended, it leaves the CPUs to others."""
    from cnnbench.run.driver.step_loop import AsyncLoop, StepLoop

    for owner, name in ((StepLoop, "_read_and_time"), (AsyncLoop, "_wait_for_number")):
        setattr(owner, name, _after_a_sleep(getattr(owner, name)))
    cnnbench()


def _after_a_sleep(called: Callable[..., object]) -> Callable[..., object]:
    def slept(*arguments: object) -> object:
        time.sleep(0.01)
        return called(*arguments)

    return slept


def impatient() -> NoReturn:
    """The same, but a stopped process and a first update that hangs are found within seconds."""
    from cnnbench.run import watchdog
    from cnnbench.run.driver import step_loop

    limit_of = step_loop.stall_time_limit
    step_loop.stall_time_limit = lambda limit, longest, is_step: limit_of(
        limit if is_step else 2 * limit, longest, True
    )

    watchdog._SILENCE = watchdog._ANSWER_SECONDS = 2.0
    unhurried()


def launching() -> NoReturn:
    """`cnnbench`, whose own child processes are forked from this one."""
    fork_children()
    cnnbench()


def hasty() -> NoReturn:
    """The same, but interrupted native calls are ended two seconds later, also in its children."""
    interrupts.SHORTEST_GRACE = 2.0
    launching()


STAND_IN = "fake_python"
"""Name of the program that stands in for a Python that runs cnnbench; see tests/fake_python.py."""


@functools.cache
def source(program: str) -> str:
    """The text of a stand-in, which no test changes."""
    return Path(program).read_text()


def _needs_process(
    words: Sequence[str], folder: Path | None, environment: Mapping[str, str]
) -> bool:
    """Whether a stand-in is told to wait, or to end in a way that only a process of its own can."""
    told = Path(folder or ".", "fake.json")
    text = variables(environment).get("FAKE") or (told.read_text() if told.exists() else "{}")
    say, flags = json.loads(text), dict(word.lstrip("-").partition("=")[::2] for word in words)
    if "by_threads" in say:
        say |= say["by_threads"][int(flags["num_intra_threads"])]
    ended = {*say.get("interrupt", ()), *say.get("kill", ())}
    names = {Path(flags["result_json"]).stem, flags.get("batch_size")}
    return not ({"wait", "crash", "pause"}.isdisjoint(say) and ended.isdisjoint(names))


def stood_in(
    program: str,
    words: Sequence[str],
    out: Path,
    folder: Path | None,
    environment: Mapping[str, str],
) -> int:
    """Runs a stand-in in this process; its exit code.

    Args:
      program: its path.
      words: its arguments.
      out: takes what it prints.
      folder: its working directory; None for this one.
      environment: see `variables`.
    """
    names = {"__name__": "__main__", "__file__": program}
    with (
        open(out, "a", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
        mock.patch.object(sys, "argv", [program, *words]),
        mock.patch.dict(os.environ, variables(environment), clear=True),
        contextlib.ExitStack() as left,
    ):
        left.callback(os.chdir, os.getcwd())
        os.chdir(folder or ".")
        try:
            exec(fork_server.compiled(source(program), program), names)
        except SystemExit as end:
            return fork_server.status_of(end.code)
        except Exception:
            traceback.print_exc()
            return 1
    return 0


def execute(
    command: child.Command,
    timeout: float,
    stand_ins: Server | None = None,
) -> ProcessResult:
    """Runs a command as `child.execute` does.

    Args:
      stand_ins: forks stand-ins that need a process; the others run in this one. If None,
        commands of this cnnbench are forked. Any other command is started.
    """
    words = [str(word) for word in command.words]
    run: Callable[[], object] | str = cnnbench
    program, at = "cnnbench", None
    if stand_ins is not None:
        at = next((at for at, one in enumerate(words, 1) if Path(one).name == STAND_IN), None)
    elif words[0] == sys.executable:
        at = _first_argument(words)
    if at is None:
        return child.execute(command, timeout)
    if stand_ins is not None:
        program = words[at - 1]
        run = source(program)
    elif words[at] == "launch":
        run = launching
    started = time.monotonic()
    command.log.write_bytes(b"")
    place = command.folder, {**command.extra_environment(), GUARDED: "1"}
    if stand_ins is not None and not _needs_process(words[at:], *place):
        code = stood_in(program, words[at:], command.log, *place)
        return ProcessResult(code=code, seconds=max(0.01, time.monotonic() - started))
    logs = command.log, command.log
    process = Forked(
        run, words[at:], *logs, *place, program=program, server=stand_ins, begins=False
    )
    code, late = process.end(timeout, interrupts.SHORTEST_GRACE)
    return ProcessResult(code=code, seconds=time.monotonic() - started, timed_out=late)


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
            sys.stderr = os.fdopen(2, "w", 1, closefd=False)  # it may use another descriptor
            # Numbers stay taken: an object that has one may be collected later, and close it.
            null = os.open(os.devnull, os.O_RDWR)
            for number in map(int, os.listdir("/proc/self/fd")):
                if number > 2 and number not in (null, *pass_fds):
                    os.dup2(null, number, inheritable=False)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd or ".")
            guard.start_program = _program
            guard.main(words[words.index(guard.__file__) + 1 :])
        finally:
            os._exit(1)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def _program(words: Sequence[str]) -> int:
    """Forks the program of a guard; its process number."""
    pid = os.fork()
    if not pid:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["cnnbench", *words[_first_argument(words) :]]
        fork_server.end_with(cnnbench)
    return pid


PATIENCE = 60.0  # seconds; what is waited for takes a fraction of one


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
    """What a file holds, once there is something in it."""
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


def until(
    holds: Callable[[], object],
    seconds: float = PATIENCE,
    process: Any = None,
    log: Path | None = None,
) -> None:
    """Waits until a condition holds.

    Args:
      holds: the condition.
      seconds: in which it has to hold.
      process: what has to live until then.
      log: the path of what it prints, for the message of a failed test.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        said = "" if log is None else log.read_text()
        assert process is None or process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


def killed_writer(target: Path) -> Path:
    """The unfinished file of a process that was killed while it wrote a file."""
    before = {*target.parent.iterdir()}
    writer = os.fork()
    if not writer:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            write_atomically(target, b"half")
        finally:
            os._exit(1)
    os.waitpid(writer, 0)
    (left,) = {*target.parent.iterdir()} - before
    return left
