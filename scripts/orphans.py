"""Kills commands (SIGKILL) at random times, and finds processes that run on afterwards.

A killed command cannot end its child processes. They must end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_VARIABLE = "CNNBENCH_ORPHANS"
"""Environment variable that all processes of a command inherit."""

_LINGER_SECONDS = 5.0
"""Time in which the processes of a killed command must have ended."""

_RUN = (
    *("--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=1"),
    "--num_batches=300000",
)
_COMMANDS = {
    "run": (("run", *_RUN), 9.0),
    "launch": (("launch", "--workers=2", "--", *_RUN), 14.0),
    "ab": (("ab", "--b=--optimizer=adam", "--", *_RUN, "--num_batches=20"), 20.0),
    "a Keras model": (("run", "--model=keras:MobileNetV3Small", "--device=cpu"), 12.0),
}
"""Commands by name, with the longest time in seconds before the kill."""


@dataclass(frozen=True)
class KilledCommand:
    """A test case: a command line that is killed after some seconds."""

    name: str
    command: Sequence[str]
    seconds: float

    @classmethod
    def draw(cls, number: int, seed: int) -> KilledCommand:
        """Creates the case with a number: the commands take turns, and the time is random."""
        name = [*_COMMANDS][number % len(_COMMANDS)]
        words, longest = _COMMANDS[name]
        seconds = longest * random.Random(f"orphans {seed} {number}").random()
        return cls(name, (sys.executable, "-m", "cnnbench", *words), seconds)

    def find_orphans(self) -> list[str]:
        """Runs and kills the command. Returns its remaining processes, a line each."""
        mark = uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="orphans-", ignore_cleanup_errors=True) as folder:
            with open(Path(folder, "log"), "wb") as log:
                child = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    start_new_session=True,
                    env={**os.environ, _VARIABLE: mark, "TMPDIR": folder},
                )
            time.sleep(self.seconds)
            child.kill()
            child.wait()
            until = time.monotonic() + _LINGER_SECONDS
            while (left := [*_marked_processes(mark)]) and time.monotonic() < until:
                time.sleep(0.05)
            for process in left:
                process.kill()
        after = f"{self.name}, killed after {self.seconds:.2f} s"
        return [f"{after}: process {process.pid} is left" for process in left]


def _marked_processes(mark: str) -> Iterable[psutil.Process]:
    """Running processes whose environment contains a mark."""
    for process in psutil.process_iter():
        # A process may end meanwhile, or belong to another user.
        with contextlib.suppress(psutil.Error, OSError):
            is_running = process.status() != psutil.STATUS_ZOMBIE
            if is_running and process.environ().get(_VARIABLE) == mark:
                yield process
