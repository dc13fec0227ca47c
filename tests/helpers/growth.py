"""CPU time of a function for a small and for a large input.

The ratio of two times of one process says how a function grows; a time alone says how fast the
machine is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

FACTOR = 4
"""How many times as large the large input is as the small one."""

MOST = 5.5
"""Highest ratio: 4 of a function whose time is proportional to the size, and some for sorting. Of a
function with a quadratic part, this part takes at most an eighth of the time of the small input.
"""

LEAST = 1.3
"""Lowest ratio: below, the function does not depend on the size, or hardly at the sizes tried."""

TRIES = 6
"""Measurements of which one has to be good."""

ENOUGH = 0.5
"""CPU time in seconds after which a function is not measured again."""


def cpu_seconds(function: Callable[[], object], times: int = 2) -> float:
    """The shortest CPU time of a function in seconds, without garbage collections."""
    found: list[float] = []
    while len(found) < times and sum(found) < ENOUGH:
        gc.collect()
        gc.disable()
        try:
            begin = time.process_time()
            function()
            found.append(time.process_time() - begin)
        finally:
            gc.enable()
    return min(found)


def growth(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """CPU time of the input that is `FACTOR` times as large, divided by that of the small one.

    Args:
      prepare: prepare(n) makes an input of n elements, and returns the function to measure. The
        function takes 0.1 to 1 s for the large input, so that the clock is exact enough.
      size: elements of the small input.
    """
    small = cpu_seconds(prepare(size))
    return cpu_seconds(prepare(FACTOR * size)) / small


def check_growth(prepare: Callable[[int], Callable[[], object]], size: int) -> None:
    """Fails if the time of a function grows faster than its input; see `growth`."""
    for _ in range(TRIES):  # another process may have emptied the caches of the CPU
        found = growth(prepare, size)
        if LEAST < found < MOST:
            return
    raise AssertionError(f"{FACTOR} times the input takes {found:.2f} times the CPU time")
