"""Samples the conditions under which a run measures: load, clocks, energy and GPUs.

Each sample of the conditions reads a few files in /proc and /sys, which takes well under a
millisecond on a small machine. Only a `ProcessUseSampler` runs between these samples: once a
second, its thread reads the memory and the CPU time of this process, which takes some ten
microseconds.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from cnnbench.base.stats import median
from cnnbench.machine.checks import AFTER, BEFORE, Check, ConditionCheckFlags, ConditionCheckInput
from cnnbench.machine.cpu import Host, cgroup_folders, usable_cpu_numbers
from cnnbench.machine.gpu import (
    GpuState,
    GpuStates,
    gpu_handles_of_run,
    gpu_states,
    gpus_of_run,
    opened_nvml,
    query_nvml,
)
from cnnbench.records.measurements import USE_PERIOD, ResourceUseSample
from cnnbench.records.run import ConditionNote, Conditions

# Functions that read counters and CPU clock rates of the machine, and compute their changes.

_USER_TIME = 11
"""Index of utime in /proc/PID/stat after the name; stime, cutime and cstime follow."""

_SHORTEST = 0.2
"""Minimum interval between samples, because the kernel counts CPU time in hundredths of a second.
"""

_CPU = "sys/devices/system/cpu"

_CLOCKS = 8
"""Maximum number of CPUs whose clock rate is read, because older kernels may need 10 ms for each.
"""

_CLOCK = re.compile(r"^processor\s*:\s*(\d+)$(?:\n.+)*?\ncpu MHz\s*:\s*(\d+\.\d+)$", re.MULTILINE)
"""Number and clock rate of a CPU in /proc/cpuinfo, which contains one paragraph per CPU."""


@dataclass(frozen=True, kw_only=True)
class MachineCounters:
    """Counters of the machine since it was started. Counters that cannot be read are None.

    Attributes:
      at: seconds, monotonic.
      busy_seconds: busy time of all CPUs.
      steal_seconds: CPU time that the hypervisor withheld.
      own_seconds: CPU time of the run's processes, and of their children that have ended.
      load_average: runnable tasks, mean of the last minute.
      thermal_events: number of times that a core or package was throttled because of heat.
      quota_seconds: time for which control groups paused threads.
      swapped_pages: pages read from and written to swap space.
    """

    at: float
    busy_seconds: float | None = None
    steal_seconds: float | None = None
    own_seconds: float | None = None
    load_average: float | None = None
    thermal_events: int | None = None
    quota_seconds: float | None = None
    swapped_pages: int | None = None

    def changes_since(self, first: MachineCounters) -> dict[str, Any]:
        """Computes the change of each counter since the sample `first`; None if unknown."""
        elapsed = {}
        for name, now in vars(self).items():
            before = getattr(first, name)
            # A counter that has decreased was reset, for example when the machine was suspended.
            unknown = before is None or now is None or now < before
            elapsed[name] = None if unknown else now - before
        return elapsed

    def excluding_interval(
        self, first: MachineCounters, second: MachineCounters
    ) -> MachineCounters:
        """Excludes a later interval from this sample: returns a sample to which the changes from
        `first` to `second` are added.

        Unknown counters are None.
        """
        changes = second.changes_since(first)
        changes["load_average"] = 0.0
        known: dict[str, Any] = {
            name: None if (now := getattr(self, name)) is None or change is None else now + change
            for name, change in changes.items()
        }
        return MachineCounters(**known)


def read_counters(
    host: Host, clock: Callable[[], float] = time.monotonic, peers: Collection[int] = ()
) -> MachineCounters:
    """Takes a sample of all counters. The function never raises an exception.

    `peers` are the PIDs of the run's other processes on this machine. If one of them has ended, the
    run's CPU time is unknown.
    """
    busy, steal = _busy_and_stolen(host)
    # os.times counts only hundredths of a second, so getrusage is used.
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(usage.ru_utime + usage.ru_stime for usage in used)
    of_peers = [process_cpu_seconds(host, pid) for pid in peers]
    known = [seconds for seconds in of_peers if seconds is not None]
    vmstat = host.read_text("proc/vmstat") or ""
    swapped = re.findall(r"^pswp(?:in|out) (\d+)$", vmstat, re.MULTILINE)
    load = (host.read_text("proc/loadavg") or "").split(" ", 1)[0]
    return MachineCounters(
        at=clock(),
        busy_seconds=busy,
        steal_seconds=steal,
        own_seconds=own + sum(known) if len(known) == len(of_peers) else None,
        load_average=float(load) if re.fullmatch(r"\d+(\.\d+)?", load) else None,
        thermal_events=_thermal_events(host),
        quota_seconds=_paused_seconds(host),
        swapped_pages=sum(map(int, swapped)) if swapped else None,
    )


def changes(first: MachineCounters, second: MachineCounters) -> dict[str, float]:
    """Computes the changes of load, throttling and swapping between two samples, by name. Unknown
    changes are left out.

    `other_cpus` is the mean number of CPUs that processes outside the run keep busy.
    `steal_fraction` is the share of the requested CPU time that the hypervisor withheld. Both are
    unknown if the samples are less than 0.2 s apart. `load_average` is the value at the beginning,
    because later it includes this process.
    """
    change = second.changes_since(first)
    seconds, busy, quota = change["at"], change["busy_seconds"], change["quota_seconds"]
    own, steal = change["own_seconds"], change["steal_seconds"]
    others = stolen = None
    if seconds >= _SHORTEST and busy is not None and own is not None:
        others = round(max(0.0, busy - own) / seconds, 3)
    if seconds >= _SHORTEST and busy is not None and steal is not None:
        stolen = round(steal / (busy + steal), 4) if busy + steal else 0.0
    known_changes = {
        "seconds": round(seconds, 3),
        "other_cpus": others,
        "steal_fraction": stolen,
        "load_average": first.load_average,
        "thermal_events": change["thermal_events"],
        "quota_seconds": None if quota is None else round(quota, 3),
        "swapped_pages": change["swapped_pages"],
    }
    return {name: value for name, value in known_changes.items() if value is not None}


def _busy_and_stolen(host: Host) -> tuple[float | None, float | None]:
    """Seconds for which all CPUs together were busy, and seconds that the hypervisor withheld.

    The first two columns of /proc/stat include the time of guests.
    """
    match = re.match(r"cpu +([\d ]+)", host.read_text("proc/stat") or "")
    columns = [] if match is None else list(map(int, match.group(1).split()))
    if len(columns) < 7:
        return None, None
    user, nice, system, _, _, irq, softirq, *rest = columns
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, rest[0] / ticks if rest else None


def process_cpu_seconds(host: Host, pid: int) -> float | None:
    """CPU time in seconds of a process and its ended children; None if the process has ended."""
    fields = (host.read_text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    times = fields[_USER_TIME : _USER_TIME + 4]
    if len(times) < 4 or not all(time.isdigit() for time in times):
        return None
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _thermal_events(host: Host) -> int | None:
    if not (host.root / _CPU / "cpu0/thermal_throttle").is_dir():
        # If CPU 0 has no counter, no CPU has one, so the files of the other CPUs are not searched.
        return None
    counts = [
        host.read_integer(f"{_CPU}/{folder.parent.name}/thermal_throttle/{kind}_throttle_count")
        for folder in (host.root / _CPU).glob("cpu[0-9]*/thermal_throttle")
        for kind in ("core", "package")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _paused_seconds(host: Host) -> float | None:
    total: float | None = None
    for folder in cgroup_folders(host, "cpu"):
        text = host.read_text(f"{folder}/cpu.stat") or ""
        for key, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            match = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
            if match is not None:
                total = (total or 0.0) + int(match.group(1)) / unit
    return total


def current_clock_mhz(host: Host) -> int | None:
    """Current clock rate in MHz: the median over up to eight CPUs that this process may use.

    None if the kernel does not report the clock rate, as in most virtual machines. The function
    never raises an exception.
    """
    wanted = sorted(usable_cpu_numbers())
    kilohertz = []
    for number in wanted[:: -(-len(wanted) // _CLOCKS) or 1]:
        if clock := host.read_integer(f"{_CPU}/cpu{number}/cpufreq/scaling_cur_freq"):
            kilohertz.append(clock)
    if kilohertz:
        return round(median(kilohertz) / 1000)
    clocks = dict(_CLOCK.findall(host.read_text("proc/cpuinfo") or ""))
    # If all CPUs report exactly the same clock rate, it is the nominal rate, not a measured rate.
    if len(set(clocks.values())) < 2:
        return None
    known = [float(clocks[str(number)]) for number in wanted if str(number) in clocks]
    return round(median(known)) if known else None


# Classes that sample counters before the first step and around the timed loop, not within it.

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
            if past is None or (joules := _joules_between(counter, a, b, seconds)) is None
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


def _joules_between(
    counter: EnergyCounter, first: float | None, last: float | None, seconds: float
) -> float | None:
    if first is None or last is None:
        return None
    if counter.longest_seconds is not None and seconds > counter.longest_seconds:
        # The counter may have wrapped around several times.
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
            with suppress(Exception):  # pynvml raises exceptions of its own classes.
                mine = gpu_handles_of_run(module, host, cards)
                # GPUs that are older than Volta do not count energy.
                count = module.nvmlDeviceGetTotalEnergyConsumption
                counters = tuple(
                    EnergyCounter(f"NVML GPU {i}", True, partial(query_nvml, count, handle), 1e3)
                    for i, handle in mine.items()
                )
        yield counters


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

    def add_peer_processes(self, peers: Collection[int]) -> None:
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
            self._gpus = self._own_gpu_states(self._asked.result())
        self._before = {**interval, **self._clock_fact(), **self._gpus.facts()}
        now = ConditionCheckInput(facts=facts, interval=interval, flags=flags, gpus=self._gpus)
        return self._run_checks(BEFORE, now, "before")

    def __enter__(self) -> ConditionMonitor:
        flags = self._flags
        counters = list(rapl_counters(self._host))
        if flags.on_gpu:
            counters += self._resources.enter_context(opened_nvml_counters(self._host, flags.cards))
            # By now, the other processes of the measurement also use the GPUs.
            if self._starts_with_others:
                self._gpus = self._own_gpu_states(gpu_states(self._host))
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
            self._gpus_after = self._own_gpu_states(gpu_states(self._host))
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

    def _own_gpu_states(self, states: Sequence[GpuState]) -> GpuStates:
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
