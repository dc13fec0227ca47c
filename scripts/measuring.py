"""Helpers that start measured processes, and programs that keep CPUs busy meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.side import AbSide, benchmark_command
from cnnbench.campaigns.processes import Campaign, ProcessResult
from cnnbench.flags.declare import flag

# A busy loop. With a seed, busy times and pauses alternate (exponential, 4 s on average).
_NEIGHBOUR = """
import random, sys, time

seed = "".join(sys.argv[1:])
draw = random.Random(seed and int(seed))
while True:
    if seed:
        time.sleep(draw.expovariate(1 / 4.0))
    end = time.monotonic() + draw.expovariate(1 / 4.0)
    while time.monotonic() < end:
        sum(range(10_000))
"""


def measure(
    sides: Sequence[AbSide], timeout: float, turn_seconds: float = 0.0
) -> list[ProcessResult]:
    """Runs one process of each program in `sides`; the result of a failed one has a message.

    Args:
      timeout: seconds for each process, excluding the time in which it waits for the others.
      turn_seconds: length in seconds of the time slices in which the processes are interleaved; 0
        runs one process after the other.
    """
    with tempfile.TemporaryDirectory(prefix="measuring-") as folder:
        files = (Path(folder, str(number)) for number in range(len(sides)))
        commands = [
            benchmark_command(side, file.with_suffix(".json"), file.with_suffix(".log"))
            for side, file in zip(sides, files, strict=True)
        ]
        return Campaign(ChildProcessReporter()).run(commands, timeout, turn_seconds)


@contextlib.contextmanager
def keep_cpus_busy(cpus: float, seed: int) -> Iterator[None]:
    """Keeps CPUs busy within a ``with`` statement, by running other processes.

    Args:
      cpus: number of busy CPUs, a multiple of 0.5. A whole CPU is busy without a break, and half a
        CPU is busy in bursts.
      seed: seed of the lengths of bursts.
    """
    arguments: list[list[str]] = [[]] * int(cpus) + [[str(seed)]] * (cpus != int(cpus))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in arguments:
            started.append(subprocess.Popen([sys.executable, "-I", "-c", _NEIGHBOUR, *words]))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def neighbour_flag() -> Any:
    """Declares the option for the CPU load that `keep_cpus_busy` causes."""
    text = "CPUs that other programs keep busy during measurements; 0.5 is one CPU in bursts."
    return flag("0", text, choices=("0", "0.5", "1", "2"))
