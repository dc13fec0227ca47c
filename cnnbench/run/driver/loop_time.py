"""Wall and CPU time of the timed loop, interruptions excluded."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class LoopTime(NamedTuple):
    """Seconds: wall time, and user and system CPU time of this process with all its threads.

    The kernel counts the sum of user and system time exactly and divides it by what its timer
    ticks found.
    """

    wall: float
    user: float
    system: float

    @classmethod
    def now(cls) -> LoopTime:
        """Reads the clocks; only differences of two readings are meaningful."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), usage.ru_utime, usage.ru_stime)

    def since(self, start: LoopTime) -> LoopTime:
        """The time between two readings, of which this is the later one."""
        return LoopTime(self.wall - start.wall, self.user - start.user, self.system - start.system)


class LoopTimer:
    """Times the loop from the timer's creation on."""

    def __init__(self, now: Callable[[], LoopTime] = LoopTime.now) -> None:
        self._now = now
        self._start = now()
        self._began = self._start.wall

    def loop(self) -> LoopTime:
        """The time of the loop so far; not defined within `away`."""
        return self._now().since(self._start)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Excludes a block from the time of the loop: turns of other processes, evaluations."""
        before = self.loop()
        try:
            yield
        finally:
            self._start = self._now().since(before)

    @property
    def wall_seconds(self) -> float:
        """Wall time since the beginning, `away` included."""
        return self._now().wall - self._began
