"""Samples of the memory and the CPU time of this process, once a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from cnnbench.records.resource_use import USE_PERIOD, ResourceUseSample


class ProcessUseSampler:
    """Samples the memory and the CPU time of this process once a second, in a separate thread.

    Attributes:
      device_memory: returns the bytes of tensors on the fullest GPU of this process; 0 without one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Creates a sampler that has not started. `clock` returns the time in seconds."""
        self.device_memory: Callable[[], float] = lambda: 0.0
        self._append: Callable[[float], None] = lambda number: None
        self._clock, self._start = clock, 0.0
        self._loops, self._own_seconds = 0, 0.0
        self._lock, self._ended = threading.Lock(), threading.Event()

    def start(self, append: Callable[[float], None]) -> None:
        """Takes a sample, and starts the thread that takes more samples.

        `append` takes the numbers of the samples, one after the other, in the order of
        `ResourceUseSample`.
        """
        self._append, self._start = append, self._clock()
        self.sample()
        self._thread = threading.Thread(target=self._run, name="use-sampler", daemon=True)
        # If no thread can be started, samples are taken only at the start and the end of the loop.
        with suppress(RuntimeError):
            self._thread.start()

    def sample_at_loop_edge(self) -> None:
        """Takes a sample at an end of the timed loop, outside of the measured time."""
        self._loops += 1
        self.sample()

    def sample(self) -> None:
        """Takes a sample. Does nothing if the kernel does not report the memory of this process."""
        with self._lock, suppress(OSError):
            sample = ResourceUseSample(
                seconds=self._clock() - self._start,
                memory=_resident_bytes(),
                device_memory=self.device_memory(),
                cpu_seconds=time.process_time(),
                sampler_seconds=self._own_seconds,
                loops=self._loops,
            )
            for number in sample:
                self._append(number)

    def close(self) -> None:
        """Tells the sampling thread to end, without waiting for it: a library that the thread calls
        may not respond.
        """
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(USE_PERIOD):
            self.sample()
            self._own_seconds = time.thread_time()


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    """Resident memory of this process in bytes.

    Raises:
      OSError: the kernel does not report it.
    """
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
