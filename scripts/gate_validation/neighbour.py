"""Something that keeps one CPU busy in bursts of seconds, as other tenants of a machine do."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

MEAN_SECONDS = 4.0
"""Of a burst and of a pause, which are drawn from exponential distributions."""


@contextlib.contextmanager
def neighbour(seed: int) -> Iterator[None]:
    """A process of its own that makes bursts until the context is left.

    Args:
      seed: of their lengths.
    """
    process = subprocess.Popen([sys.executable, "-I", __file__, str(seed)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _bursts(seed: int) -> None:
    lengths = random.Random(seed)
    while True:
        time.sleep(lengths.expovariate(1 / MEAN_SECONDS))
        end = time.monotonic() + lengths.expovariate(1 / MEAN_SECONDS)
        while time.monotonic() < end:
            sum(range(10_000))


if __name__ == "__main__":
    _bursts(int(sys.argv[1]))
