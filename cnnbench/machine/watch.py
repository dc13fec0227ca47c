"""Samples the conditions under which a run measures: load, clocks, energy and GPUs.

Each sample of the conditions reads a few files in /proc and /sys, which takes well under a
millisecond on a small machine. Only a `ProcessUseSampler` runs between these samples: once a
second, its thread reads the memory and the CPU time of this process, which takes some ten
microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from cnnbench.machine.checks import AFTER, BEFORE, Check, ConditionCheckFlags, ConditionCheckInput
from cnnbench.machine.counters import MachineCounters, changes, current_clock_mhz, read_counters
from cnnbench.machine.cpu import Host
from cnnbench.machine.energy import EnergyMeter, opened_nvml_counters, rapl_counters
from cnnbench.machine.gpu import GpuState, GpuStates, gpu_states, gpus_of_run
from cnnbench.records.measurements import USE_PERIOD, ResourceUseSample
from cnnbench.records.run import ConditionNote, Conditions

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
        # Without a thread, samples are taken only at the start and the end of the loop.
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


def _resident_bytes() -> int:
    """Resident memory of this process in bytes.

    Raises:
      OSError: the kernel does not report it.
    """
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class ConditionMonitor:
    """Observes the measuring conditions of one run, such as load by other processes. As a context
    manager, encloses the timed loop.

    Args:
      use: samples memory and CPUs; the monitor takes a sample at both ends of the timed loop.

    Attributes:
      energy: energy of the timed loop. Keys are the names in `Measured`. Empty if it cannot be
        read.
    """

    def __init__(
        self,
        host: Host | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        use: ProcessUseSampler | None = None,
    ) -> None:
        self._host = Host() if host is None else host
        self._clock = clock
        self._use = ProcessUseSampler(clock) if use is None else use
        self._starts_with_others = False
        self._peers: Collection[int] = ()
        self._first = self._loop_start = MachineCounters(at=0.0)
        self._asked: Future[tuple[GpuState, ...]] | None = None
        self._facts: Mapping[str, Any] = {}
        self._flags = ConditionCheckFlags()
        self._gpus = GpuStates()
        self._gpus_after = GpuStates()
        self._before: dict[str, Any] | None = None
        self._during: dict[str, Any] = {}
        self._notes: list[ConditionNote] = []
        self._resources = ExitStack()
        self._meter = EnergyMeter(())
        self.energy: dict[str, Any] = {}

    def start(self, *, gpus: bool = True, starts_with_others: bool = False) -> ConditionMonitor:
        """Starts to measure the load by other processes, and returns this object.

        A run starts its monitor before it imports TensorFlow, and thus measures the load during
        the import. Meanwhile, a thread reads the state of the GPUs.

        Args:
          gpus: whether the run may use GPUs.
          starts_with_others: whether other processes of the same measurement start at the same
            time. They then cause the load before the first step, so this load is ignored.
        """
        self._starts_with_others = starts_with_others
        self._first = self._sample_counters()
        if gpus:
            executor = ThreadPoolExecutor(1, "cnnbench-gpus")
            self._asked = executor.submit(gpu_states, self._host)
            executor.shutdown(wait=False)
        return self

    def set_peers(self, peers: Collection[int]) -> None:
        """Makes all later checks treat other processes on this machine, given by PID, as part of
        the run, because they belong to the same job.
        """
        if peers:
            self._peers = frozenset(peers)
            self._first = replace(self._sample_counters(), load_average=self._first.load_average)

    def check_before_run(
        self, facts: Mapping[str, Any], flags: ConditionCheckFlags
    ) -> tuple[ConditionNote, ...]:
        """Checks the measuring conditions before the first step. `facts` are recorded properties of
        the machine; see `cnnbench.machine.facts`.
        """
        self._facts, self._flags = facts, flags
        interval = changes(self._first, self._sample_counters())
        if self._starts_with_others:
            interval.pop("other_cpus", None)
            interval.pop("load_average", None)
        if flags.on_gpu and self._asked is not None:
            self._gpus = self._own_states(self._asked.result())
        self._before = {**interval, **self._clock_fact(), **self._gpus.facts()}
        now = ConditionCheckInput(facts=facts, interval=interval, flags=flags, gpus=self._gpus)
        return self._run_checks(BEFORE, now, "before")

    def __enter__(self) -> ConditionMonitor:
        flags = self._flags
        counters = list(rapl_counters(self._host))
        if flags.on_gpu:
            counters += self._resources.enter_context(opened_nvml_counters(self._host, flags.cards))
            # The other processes of the same measurement use the GPUs by now; they do not count as
            # disturbances.
            if self._starts_with_others:
                self._gpus = self._own_states(gpu_states(self._host))
        self._loop_start = self._sample_counters()
        self._use.sample_at_loop_edge()
        self._meter = EnergyMeter(counters)
        self._meter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.energy = self._meter.stop()
        self._use.sample_at_loop_edge()
        self._during = {
            **changes(self._loop_start, self._sample_counters()),
            **self._clock_fact(),
        }
        self._resources.close()
        if self._flags.on_gpu and kind is None:
            self._gpus_after = self._own_states(gpu_states(self._host))
            self._during.update(self._gpus_after.facts())

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Context manager that excludes the time of its block, within the timed loop, from the
        measured conditions and energy.
        """
        self._meter.pause()
        begin = self._sample_counters()
        try:
            yield
        finally:
            self._loop_start = self._loop_start.excluding_interval(begin, self._sample_counters())
            self._meter.start()

    def check_timed_loop(self) -> tuple[ConditionNote, ...]:
        """Checks the measuring conditions in the timed loop. Empty if the loop did not begin."""
        if not self._during:
            return ()
        then = ConditionCheckInput(
            facts=self._facts,
            interval=self._during,
            flags=self._flags,
            gpus=self._gpus_after,
            gpus_before=self._gpus,
        )
        return self._run_checks(AFTER, then, "during")

    def observed_conditions(self) -> Conditions | None:
        """Returns the conditions for the record; None if `check_before_run` was not called."""
        if self._before is None:
            return None
        return Conditions(before=self._before, during=self._during, notes=tuple(self._notes))

    def _sample_counters(self) -> MachineCounters:
        return read_counters(self._host, self._clock, self._peers)

    def _clock_fact(self) -> dict[str, int]:
        clock = current_clock_mhz(self._host)
        return {} if clock is None else {"cpu_clock_mhz": clock}

    def _own_states(self, states: Sequence[GpuState]) -> GpuStates:
        flags = self._flags
        uuids = [state.uuid for state in states]
        mine = gpus_of_run(uuids, self._host.environ, flags.cards)
        return GpuStates(tuple(states), mine).without_processes(self._peers)

    def _run_checks(
        self, checks: Mapping[str, Check], situation: ConditionCheckInput, when: str
    ) -> tuple[ConditionNote, ...]:
        notes = []
        for name, check in checks.items():
            if finding := check(situation):
                text, advice = finding
                notes.append(ConditionNote(id=name, when=when, text=text, advice=advice))
        self._notes = [*(note for note in self._notes if note.when != when), *notes]
        return tuple(notes)
