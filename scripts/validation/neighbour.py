"""Other programs that keep CPUs busy beside the processes of a pool."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

MEAN_SECONDS = 4.0
"""Mean length of a burst at half a CPU; both bursts and pauses are exponentially distributed."""


@contextlib.contextmanager
def neighbour(cpus: float, seed: int) -> Iterator[None]:
    """Processes that keep CPUs busy until the context is left.

    Args:
      cpus: number of CPUs, in halves: a busy loop for a whole one, one in bursts for a half.
      seed: seed of the lengths of bursts.
    """
    whole, halves = int(cpus), cpus != int(cpus)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for arguments in [*([] for _ in range(whole)), *([str(seed)] for _ in range(halves))]:
            started.append(subprocess.Popen([sys.executable, "-I", __file__, *arguments]))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def _bursts(seed: int) -> None:
    lengths = random.Random(seed)
    while True:
        time.sleep(lengths.expovariate(1 / MEAN_SECONDS))
        _work(lengths.expovariate(1 / MEAN_SECONDS))


if __name__ == "__main__":
    if sys.argv[1:]:
        _bursts(int(sys.argv[1]))
    while True:
        _work(1.0)
