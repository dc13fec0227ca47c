"""Processes forked from a small program that has already imported what they need.

A fork and a few lines of Python take milliseconds; an interpreter that starts, with a guard that
starts another one, takes tenths of a second. Signals, exit codes, time-outs and files are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cnnbench.campaigns.processes.child import GRACE_SECONDS, Command, Ended, execute

STAND_INS = ("fake_python",)
"""Names of the programs that `Zygote.execute` forks; it starts any other one."""

PRELOADED = "import json, os, pathlib, random, re, signal, socket, time, uuid"
"""What the stand-ins import."""

# The child waits until the caller knows its number: its first deed may be to interrupt the caller.
_SERVER = """
import functools, gc, json, os, sys, traceback
exec(sys.argv[1])
gc.freeze()  # as where a process loads TensorFlow itself
compiled = functools.cache(functools.partial(compile, mode="exec"))

def begin(ask, code, go):
    os.read(go, 1)
    files = ((0, os.devnull), (1, ask["out"]), (2, ask["err"]))
    for number, path in files:
        opened = os.open(path, (os.O_WRONLY | os.O_APPEND) if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(ask["folder"])
    os.environ.clear()
    os.environ.update(ask["environment"])
    sys.argv[:] = ask["argv"]
    exec(code, {"__name__": "__main__", "__file__": ask["argv"][0]})

while line := sys.stdin.readline():
    ask = json.loads(line)
    code = compiled(ask["code"], ask["argv"][0])
    here, there = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            begin(ask, code, here)
            status = 0
        except SystemExit as end:
            said = end.code
            status = said if isinstance(said, int) else int(said is not None)
            if isinstance(said, str):
                print(said, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status & 255)
    os.setpgid(child, child)
    print(child, flush=True)
    sys.stdin.readline()
    os.write(there, b"g")
    os.close(here)
    os.close(there)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Zygote:
    """The program that forks; one process at a time.

    Args:
      preload: code that it runs before anything else.
      options: of the interpreter.
      environment: all variables; those of this process if None.
    """

    def __init__(
        self, preload: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._server = subprocess.Popen(
            [sys.executable, *options, "-c", _SERVER, preload],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends it."""
        with self._server:
            self._server.kill()

    def run(
        self,
        code: str,
        argv: Sequence[str],
        out: Path,
        err: Path,
        *,
        folder: str,
        environment: Mapping[str, str],
        timeout: float,
        grace: float = 0.0,
    ) -> tuple[int, bool]:
        """Runs code to its end, or until it is ended.

        Args:
          code: Python.
          argv: as the code sees it.
          out, err: files for what it prints, replaced; the same one is possible.
          folder: working directory.
          environment: all variables.
          timeout: seconds until it gets SIGTERM.
          grace: seconds from there to SIGKILL.

        Returns:
          Exit code, negative for a signal, and whether it took too long.

        Raises:
          KeyboardInterrupt: it has been ended.
        """
        for path in (out, err):
            path.write_bytes(b"")
        files = {"out": os.path.abspath(out), "err": os.path.abspath(err)}
        ask = {"code": code, "argv": list(argv), "folder": folder, **files}
        self._send(json.dumps({**ask, "environment": dict(environment)}))
        child = int(self._line(timeout=60.0) or "")
        try:
            self._send("")
            status = self._line(timeout)
            timed_out = status is None
            if status is None:
                status = self._stop(child, grace)
        except KeyboardInterrupt:
            self._stop(child, grace)
            raise
        return os.waitstatus_to_exitcode(int(status)), timed_out

    def execute(self, command: Command, timeout: float, grace: float = GRACE_SECONDS) -> Ended:
        """Runs a command as `cnnbench.campaigns.processes.child.execute` does."""
        words = [str(word) for word in command.words]
        at = next((n for n, word in enumerate(words) if Path(word).name in STAND_INS), None)
        if at is None:
            return execute(command, timeout, grace)
        started = time.monotonic()
        code, timed_out = self.run(
            Path(words[at]).read_text(),
            words[at:],
            command.log,
            command.log,
            folder=str(command.folder or os.getcwd()),
            environment={**os.environ, **command.environment},
            timeout=timeout,
            grace=grace,
        )
        return Ended(code=code, seconds=time.monotonic() - started, timed_out=timed_out)

    def _stop(self, child: int, grace: float) -> str:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 60.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, number)
            status = self._line(seconds)
            if status is not None:
                return status
        raise AssertionError("a process outlives SIGKILL")

    def _send(self, text: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{text}\n".encode())

    def _line(self, timeout: float) -> str | None:
        """The next line that it prints; None if none comes in time."""
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], min(timeout, 1e6))
        return self._server.stdout.readline().decode() if ready else None
