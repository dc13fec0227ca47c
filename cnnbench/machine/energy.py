"""The energy that processors and GPUs use in the timed loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from cnnbench.machine.cpu import Host
from cnnbench.machine.gpu import gpu_handles_of_run, opened_nvml, query_nvml

_POWERCAP = "sys/class/powercap"


_WATTS_AT_MOST = 1000.0
"""Assumed power limit, in watts, of a package that reports none."""


_ABOVE_LIMIT = 1.2
"""Factor by which short peaks of power may exceed a package's limit."""


class EnergyCounter(NamedTuple):
    """A counter of the energy that a CPU package or a GPU uses. The function `read` returns None if
    the counter cannot be read.

    Attributes:
      per_joule: by how much the counter increases per joule.
      range: value at which the counter wraps around to zero; None if it does not wrap.
      longest_seconds: longest interval in which the counter cannot wrap around more than once.
    """

    name: str
    on_gpu: bool
    read: Callable[[], float | None]
    per_joule: float = 1.0
    range: float | None = None
    longest_seconds: float | None = None


class EnergyMeter:
    """Measures the energy of the timed loop by reading all counters before and after it.

    The counters are never read within the loop.

    RAPL counts the energy of processor packages and their memory. NVML counts the energy of whole
    GPU boards. Both include all processes. Neither includes disks, fans and power supplies.
    """

    def __init__(
        self, counters: Sequence[EnergyCounter], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters = tuple(counters)
        self._clock = clock
        self._start: tuple[float, list[float | None]] | None = None
        self._past: list[float | None] = [0.0] * len(self._counters)

    def start(self) -> None:
        """Reads the counters at the beginning of the timed loop, or after a pause."""
        self._start = (self._clock(), self._read_counters())

    def pause(self) -> None:
        """Pauses the measurement of energy until the next `start`."""
        if self._start is None:
            return
        start, first = self._start
        last, seconds = self._read_counters(), self._clock() - start
        self._past = [
            None
            if past is None or (joules := _joules(counter, a, b, seconds)) is None
            else past + joules
            for counter, past, a, b in zip(self._counters, self._past, first, last, strict=True)
        ]

    def stop(self) -> dict[str, Any]:
        """Stops measuring and returns the energy since the first `start`, without pauses.

        The keys are the names in `Measured`.

        If a counter of a kind of device cannot be read, its value is None. If no counter can be
        read, the result is empty.
        """
        self.pause()
        cpu, gpu = self._total_joules(on_gpu=False), self._total_joules(on_gpu=True)
        names = [c.name for c in self._counters if (gpu if c.on_gpu else cpu) is not None]
        energy = {"cpu_energy_joules": cpu, "gpu_energy_joules": gpu}
        return {**energy, "energy_source": ", ".join(names)} if names else {}

    def _read_counters(self) -> list[float | None]:
        return [counter.read() for counter in self._counters]

    def _total_joules(self, *, on_gpu: bool) -> float | None:
        both = zip(self._counters, self._past, strict=True)
        mine = [joules for counter, joules in both if counter.on_gpu == on_gpu]
        known = [joules for joules in mine if joules is not None]
        return sum(known) if mine and len(known) == len(mine) else None


def _joules(
    counter: EnergyCounter, first: float | None, last: float | None, seconds: float
) -> float | None:
    if first is None or last is None:
        return None
    if counter.longest_seconds is not None and seconds > counter.longest_seconds:
        # In such a long time, the counter may have wrapped around several times, so the energy is
        # unknown.
        return None
    if last < first:
        if counter.range is None:
            return None
        last += counter.range
    return (last - first) / counter.per_joule


def rapl_counters(host: Host) -> tuple[EnergyCounter, ...]:
    """Finds the energy counters of the processor packages and of their memory. Empty if one of
    these counters cannot be read.

    Domains inside a package (cores, graphics) are part of the package, and "psys", the whole
    platform, contains it, so they are not added. The folder's name is intel-rapl on AMD processors
    too. Only root can read the files, unless root has made them readable.
    """
    counters = []
    for path in sorted((host.root / _POWERCAP).glob("intel-rapl:*")):
        folder = f"{_POWERCAP}/{path.name}"
        name = host.read_text(f"{folder}/name") or ""
        package = re.fullmatch(r"intel-rapl:\d+", path.name) and name.startswith("package")
        beside = re.fullmatch(r"intel-rapl:(\d+):\d+", path.name) if name == "dram" else None
        if package or beside:
            read = partial(host.read_integer, f"{folder}/energy_uj")
            limit = host.read_integer(f"{folder}/max_energy_range_uj")
            longest = None if limit is None else limit / 1e6 / _power_limit(host, folder)
            label = f"RAPL {name} {beside[1]}" if beside else f"RAPL {name}"
            counters.append(EnergyCounter(label, False, read, 1e6, limit, longest))
    return tuple(counters) if all(counter.read() is not None for counter in counters) else ()


def _power_limit(host: Host, folder: str) -> float:
    """Power in watts that a RAPL domain, such as a CPU package, can only briefly exceed."""
    files = [
        f"{folder}/constraint_{i}_{kind}_uw"
        for i in range(3)
        for kind in ("power_limit", "max_power")
    ]
    known = [watts / 1e6 for watts in map(host.read_integer, files) if watts]
    return _ABOVE_LIMIT * max(known) if known else _WATTS_AT_MOST


@contextmanager
def opened_nvml_counters(
    host: Host, cards: Sequence[int] | None
) -> Iterator[tuple[EnergyCounter, ...]]:
    """Context manager that yields the energy counters of a run's GPUs. Yields no counters if pynvml
    is missing or the GPUs have none.

    The counters can be read only within the block.
    """
    with opened_nvml(host) as module:
        counters: tuple[EnergyCounter, ...] = ()
        if module is not None:
            with suppress(Exception):  # pynvml raises errors of its own.
                mine = gpu_handles_of_run(module, host, cards)
                # GPUs before Volta do not count energy.
                count = module.nvmlDeviceGetTotalEnergyConsumption
                counters = tuple(
                    EnergyCounter(f"NVML GPU {i}", True, partial(query_nvml, count, handle), 1e3)
                    for i, handle in mine.items()
                )
        yield counters
