"""Samples of the machine before the first step and around the timed loop, never within."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from cnnbench.machine.checks import (
    AFTER,
    BEFORE,
    Check,
    Condition,
    RunFlags,
    Situation,
    conditions,
)
from cnnbench.machine.energy import Energy, EnergyMeter, nvml_counters, rapl_counters
from cnnbench.machine.gpu import GpuState, GpuView, gpu_states, gpus_of_run
from cnnbench.machine.host import Host
from cnnbench.machine.sampling import CounterChanges, Counters, clock_mhz, take
from cnnbench.records.parts import ConditionNote, Conditions


class Watch:
    """The conditions of one run; as a context manager it encloses the timed loop.

    Created when the run starts, before TensorFlow is loaded: the load by other processes is
    measured over these seconds, and GPUs are read in a thread.

    Args:
      gpus: whether the run may use GPUs.
      starts_with_others: whether other processes of the same measurement start at the same time;
        the load before the first step is then theirs and ignored.

    Attributes:
      energy: of the timed loop; None where it cannot be read.
    """

    def __init__(
        self,
        host: Host | None = None,
        *,
        gpus: bool = True,
        clock: Callable[[], float] = time.monotonic,
        starts_with_others: bool = False,
    ) -> None:
        self._host = Host() if host is None else host
        self._clock = clock
        self._starts_with_others = starts_with_others
        self._peers: Collection[int] = ()
        self._first = self._sample()
        self._asked: Future[tuple[GpuState, ...]] | None = None
        if gpus:
            executor = ThreadPoolExecutor(1, "cnnbench-gpus")
            self._asked = executor.submit(gpu_states, self._host)
            executor.shutdown(wait=False)
        self._facts: Mapping[str, Any] = {}
        self._flags = RunFlags()
        self._gpus = GpuView()
        self._gpus_after = GpuView()
        self._before: dict[str, Any] | None = None
        self._clock_after: dict[str, int] = {}
        self._loop: CounterChanges | None = None
        self._loop_start: Counters | None = None
        self._notes: list[ConditionNote] = []
        self._resources = ExitStack()
        self._meter = EnergyMeter(())
        self.energy: Energy | None = None

    def met(self, peers: Collection[int]) -> None:
        """Counts the PIDs of the job's other processes on this machine as the run's from now on."""
        if peers:
            self._peers = frozenset(peers)
            self._first = replace(self._sample(), load_average=self._first.load_average)

    def before(self, facts: Mapping[str, Any], flags: RunFlags) -> tuple[Condition, ...]:
        """The conditions found before the first step; `facts` are of `cnnbench.machine.facts`."""
        self._facts, self._flags = facts, flags
        interval = CounterChanges.between(self._first, self._sample())
        if self._starts_with_others:
            interval = replace(interval, other_cpus=None, load_average=None)
        if flags.on_gpu and self._asked is not None:
            self._gpus = self._view(self._asked.result())
        self._before = {**interval.facts(), **self._clock_now(), **self._gpus.facts()}
        now = Situation(facts=facts, interval=interval, flags=flags, gpus=self._gpus)
        return self._run(BEFORE, now, "before")

    def __enter__(self) -> Watch:
        flags = self._flags
        counters = list(rapl_counters(self._host))
        if flags.on_gpu:
            counters += self._resources.enter_context(
                nvml_counters(self._host, flags.gpu_indices, flags.num_devices)
            )
            if self._starts_with_others:  # which are on the GPUs by now
                self._gpus = self._view(gpu_states(self._host))
        self._meter = EnergyMeter(counters)
        self._loop_start = self._sample()
        self._meter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop_start is not None
        self.energy = self._meter.stop()
        self._loop = CounterChanges.between(self._loop_start, self._sample())
        self._clock_after = self._clock_now()
        self._resources.close()
        if self._flags.on_gpu and kind is None:
            self._gpus_after = self._view(gpu_states(self._host))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Excludes a block within the timed loop from the samples."""
        assert self._loop_start is not None
        self._meter.pause()
        begin = self._sample()
        try:
            yield
        finally:
            self._loop_start = self._loop_start.moved(begin, self._sample())
            self._meter.start()

    def during(self) -> tuple[Condition, ...]:
        """The conditions found in the timed loop; none if it was not reached."""
        if self._loop is None:
            return ()
        then = Situation(
            facts=self._facts,
            interval=self._loop,
            flags=self._flags,
            gpus=self._gpus_after,
            gpus_before=self._gpus,
        )
        return self._run(AFTER, then, "during")

    def record(self) -> Conditions | None:
        """Section of the run record; None if `before` was not reached."""
        if self._before is None:
            return None
        loop: dict[str, Any] = {} if self._loop is None else self._loop.facts()
        loop = {**loop, **self._clock_after, **self._gpus_after.facts()}
        return Conditions(before=self._before, during=loop, notes=tuple(self._notes))

    def _sample(self) -> Counters:
        return take(self._host, self._clock, self._peers)

    def _clock_now(self) -> dict[str, int]:
        found = clock_mhz(self._host)
        return {} if found is None else {"cpu_clock_mhz": found}

    def _view(self, states: Sequence[GpuState]) -> GpuView:
        flags = self._flags
        uuids = [state.uuid for state in states]
        mine = gpus_of_run(uuids, self._host.environ, flags.gpu_indices, flags.num_devices)
        return GpuView(tuple(states), mine).without(self._peers)

    def _run(
        self, checks: Mapping[str, Check], situation: Situation, when: str
    ) -> tuple[Condition, ...]:
        found = conditions(checks, situation)
        self._notes = [note for note in self._notes if note.when != when]
        self._notes += [
            ConditionNote(id=c.id, when=when, text=c.text, advice=c.advice) for c in found
        ]
        return found
