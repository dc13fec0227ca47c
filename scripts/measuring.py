"""Helpers that start measured processes, and programs that keep CPUs busy meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cnnbench.base.terminal import Reporter
from cnnbench.campaigns.ab.side import Side, benchmark_command
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import ProcessResult
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
    sides: Sequence[Side], timeout: float, turn_seconds: float = 0.0
) -> list[ProcessResult]:
    """Runs the processes of all sides to their ends; a failed process has an error message.

    Args:
      timeout: seconds for each process, without its waits.
      turn_seconds: length of the turns in which all of them step; 0: one after the other.
    """
    with tempfile.TemporaryDirectory(prefix="measuring-") as folder:
        files = (Path(folder, str(number)) for number in range(len(sides)))
        commands = [
            benchmark_command(side, file.with_suffix(".json"), file.with_suffix(".log"))
            for side, file in zip(sides, files, strict=True)
        ]
        return Campaign(Reporter()).run(commands, timeout, turn_seconds)


@contextlib.contextmanager
def neighbour(cpus: float, seed: int) -> Iterator[None]:
    """Context manager that runs processes which keep CPUs busy.

    Args:
      cpus: number of CPUs, in halves: a busy loop for a whole one, one in bursts for a half.
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
    """Declares an option that selects the CPU load of `neighbour`."""
    text = "CPUs that programs beside the processes keep busy; 0.5 is one in bursts."
    return flag("0", text, choices=("0", "0.5", "1", "2"))
