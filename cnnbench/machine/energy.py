"""Energy of the timed loop, from RAPL and NVML.

RAPL counts the energy of processor packages and their memory, NVML that of whole GPU boards, all
processes included; disks, fans and power supplies are in neither. The counters are read before and
after the loop and never in it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from cnnbench.machine.gpu import ask, gpus_of_run, handles, nvml, uuid_of
from cnnbench.machine.host import Host

_POWERCAP = "sys/class/powercap"
_WATTS_AT_MOST = 1000.0
"""Assumed limit of a package that reports none."""

_ABOVE_LIMIT = 1.2
"""Short peaks exceed the limit of a package."""


@dataclass(frozen=True)
class Counter:
    """A counter of joules; `read` returns None if it is unreadable.

    Attributes:
      range_joules: value at which it wraps around to zero; None if it does not.
      longest_seconds: time in which it cannot wrap around more than once.
    """

    name: str
    on_gpu: bool
    read: Callable[[], float | None]
    range_joules: float | None = None
    longest_seconds: float | None = None


@dataclass(frozen=True)
class Energy:
    """Joules of the processors and of the GPUs, None where unknown, and their source."""

    cpu_joules: float | None
    gpu_joules: float | None
    source: str


class EnergyMeter:
    """Reads all counters at two moments."""

    def __init__(
        self, counters: Sequence[Counter], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters = tuple(counters)
        self._clock = clock
        self._start: tuple[float, list[float | None]] | None = None
        self._past: list[float | None] = [0.0] * len(self._counters)

    def start(self) -> None:
        """Reads the counters for the first time, or again after a pause."""
        self._start = (self._clock(), self._read())

    def pause(self) -> None:
        """Excludes energy from now to the next `start`."""
        if self._start is None:
            return
        start, first = self._start
        last, seconds = self._read(), self._clock() - start
        self._past = [
            None
            if past is None or (joules := _joules(counter, a, b, seconds)) is None
            else past + joules
            for counter, past, a, b in zip(self._counters, self._past, first, last, strict=True)
        ]

    def stop(self) -> Energy | None:
        """The energy since `start`, without pauses; None where no counter could be read.

        A kind of device with an unreadable counter is None.
        """
        if self._start is None:
            return None
        self.pause()
        taken = self._past
        cpu, gpu = self._total(taken, on_gpu=False), self._total(taken, on_gpu=True)
        names = [c.name for c in self._counters if (gpu if c.on_gpu else cpu) is not None]
        return Energy(cpu, gpu, ", ".join(names)) if names else None

    def _read(self) -> list[float | None]:
        return [counter.read() for counter in self._counters]

    def _total(self, taken: Sequence[float | None], *, on_gpu: bool) -> float | None:
        mine = [
            joules
            for counter, joules in zip(self._counters, taken, strict=True)
            if counter.on_gpu == on_gpu
        ]
        known = [joules for joules in mine if joules is not None]
        return sum(known) if mine and len(known) == len(mine) else None


def _joules(
    counter: Counter, first: float | None, last: float | None, seconds: float
) -> float | None:
    if first is None or last is None:
        return None
    if counter.longest_seconds is not None and seconds > counter.longest_seconds:
        return None  # it may have wrapped around several times
    if last < first:
        return None if counter.range_joules is None else last + counter.range_joules - first
    return last - first


def rapl_counters(host: Host) -> tuple[Counter, ...]:
    """The processor packages and the memory beside them; empty unless all can be read.

    The domains inside a package (cores, graphics) are part of it, and "psys", the whole platform,
    contains it; the name is intel-rapl for AMD, too. Reading needs root, or files that root has
    made readable.
    """
    counters = []
    for path in sorted((host.root / _POWERCAP).glob("intel-rapl:*")):
        folder = f"{_POWERCAP}/{path.name}"
        name = host.text(f"{folder}/name") or ""
        package = re.fullmatch(r"intel-rapl:\d+", path.name) and name.startswith("package")
        beside = re.fullmatch(r"intel-rapl:(\d+):\d+", path.name) if name == "dram" else None
        if package or beside:
            read = partial(_joules_of, 1e6, partial(host.number, f"{folder}/energy_uj"))
            limit = _joules_of(1e6, partial(host.number, f"{folder}/max_energy_range_uj"))
            longest = None if limit is None else limit / _watts(host, folder)
            label = f"RAPL {name} {beside[1]}" if beside else f"RAPL {name}"
            counters.append(Counter(label, False, read, limit, longest))
    return tuple(counters) if all(one.read() is not None for one in counters) else ()


def _watts(host: Host, folder: str) -> float:
    """Power that a domain cannot exceed for long."""
    files = [
        f"{folder}/constraint_{i}_{kind}_uw"
        for i in range(3)
        for kind in ("power_limit", "max_power")
    ]
    known = [watts / 1e6 for watts in map(host.number, files) if watts]
    return _ABOVE_LIMIT * max(known) if known else _WATTS_AT_MOST


@contextlib.contextmanager
def nvml_counters(host: Host, gpu_indices: str, num_gpus: int) -> Iterator[tuple[Counter, ...]]:
    """The GPUs of a run, within the block; empty where pynvml or the counters are missing."""
    with nvml(host) as module:
        counters: tuple[Counter, ...] = ()
        if module is not None:
            with contextlib.suppress(Exception):  # of pynvml's own making
                found = handles(module)
                uuids = [uuid_of(module, handle) for handle in found]
                mine = gpus_of_run(uuids, host.environ, gpu_indices, num_gpus)
                # GPUs before Volta do not count.
                count = module.nvmlDeviceGetTotalEnergyConsumption
                counters = tuple(
                    Counter(
                        f"NVML GPU {i}",
                        True,
                        partial(_joules_of, 1e3, partial(ask, count, found[i])),
                    )
                    for i in mine
                )
        yield counters


def _joules_of(per_joule: float, read: Callable[[], int | None]) -> float | None:
    value = read()
    return None if value is None else value / per_joule
