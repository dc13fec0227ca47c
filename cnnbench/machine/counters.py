"""Reads counters and CPU clock rates of the machine, and computes their changes."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from cnnbench.base.stats import median
from cnnbench.machine.cpu import Host, cgroup_folders, usable_cpu_numbers

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
            # A counter that has become smaller was reset, for example because the machine was
            # suspended, so its change is unknown.
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
    # getrusage is used, because os.times counts only hundredths of a second.
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
        quota_seconds=_quota_seconds(host),
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
        # If CPU 0 has no such file, no CPU has one, so the folders of other CPUs are not searched.
        return None
    counts = [
        host.read_integer(f"{_CPU}/{folder.parent.name}/thermal_throttle/{kind}_throttle_count")
        for folder in (host.root / _CPU).glob("cpu[0-9]*/thermal_throttle")
        for kind in ("core", "package")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _quota_seconds(host: Host) -> float | None:
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
    # If all CPUs report exactly the same clock rate, it is the nominal rate, and not measured.
    if len(set(clocks.values())) < 2:
        return None
    known = [float(clocks[str(number)]) for number in wanted if str(number) in clocks]
    return round(median(known)) if known else None
