"""Counters of the machine, their changes between two samples, and the clock of its CPUs.

Everything is read from a few files of /proc and /sys, in well under a millisecond on a small
machine; nothing runs in between.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any

from cnnbench.base.stats.descriptive import median
from cnnbench.machine.cpu import cgroup_folders, usable_cpus
from cnnbench.machine.host import Host

_USER_TIME = 11
"""Index of utime in /proc/PID/stat after the name; stime, cutime and cstime follow."""

_SHORTEST = 0.2
"""Least interval between samples; the kernel counts CPU time in hundredths of a second."""

_CPU = "sys/devices/system/cpu"

_CLOCKS = 8
"""Maximum number of CPUs whose clock is read: older kernels may take 10 ms for each."""

_CLOCK = re.compile(r"^processor\s*:\s*(\d+)$(?:\n.+)*?\ncpu MHz\s*:\s*(\d+\.\d+)$", re.MULTILINE)
"""Number and clock of a CPU in /proc/cpuinfo, which has a paragraph for each."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters since the machine (or this process) started; None where unreadable.

    Attributes:
      at: seconds, monotonic.
      busy_seconds: busy time of all CPUs.
      steal_seconds: CPU time that the hypervisor withheld.
      own_seconds: CPU time of the processes of the run, and of their ended children.
      load_average: runnable tasks, mean of the last minute.
      thermal_events: times that a core or package was throttled for heat.
      quota_seconds: time for which control groups stopped threads.
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

    def since(self, first: Counters) -> dict[str, Any]:
        """Changes since an earlier sample, by name; None where unknown."""
        pairs = {f.name: (getattr(first, f.name), getattr(self, f.name)) for f in fields(self)}
        # A counter that goes back was reset, by a suspended machine for example.
        return {
            name: None if before is None or now is None or now < before else now - before
            for name, (before, now) in pairs.items()
        }

    def moved(self, first: Counters, second: Counters) -> Counters:
        """These counters without what was counted between two later samples; None where unknown."""
        changes = second.since(first)
        changes["load_average"] = 0.0
        known: dict[str, Any] = {
            name: None if (now := getattr(self, name)) is None or change is None else now + change
            for name, change in changes.items()
        }
        return Counters(**known)


def take(
    host: Host, clock: Callable[[], float] = time.monotonic, peers: Collection[int] = ()
) -> Counters:
    """Samples the counters. Never raises.

    `peers` are PIDs of the other processes of the run on this machine; the run's CPU time is
    unknown when one of them has ended.
    """
    busy, steal = _cpu_seconds(host)
    # Not os.times, which counts hundredths of a second.
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(one.ru_utime + one.ru_stime for one in used)
    of_peers = [cpu_seconds_of(host, pid) for pid in peers]
    known = [seconds for seconds in of_peers if seconds is not None]
    vmstat = host.text("proc/vmstat") or ""
    swapped = re.findall(r"^pswp(?:in|out) (\d+)$", vmstat, re.MULTILINE)
    load = (host.text("proc/loadavg") or "").split(" ", 1)[0]
    return Counters(
        at=clock(),
        busy_seconds=busy,
        steal_seconds=steal,
        own_seconds=own + sum(known) if len(known) == len(of_peers) else None,
        load_average=float(load) if re.fullmatch(r"\d+(\.\d+)?", load) else None,
        thermal_events=_thermal_events(host),
        quota_seconds=_quota_seconds(host),
        swapped_pages=sum(map(int, swapped)) if swapped else None,
    )


def changes(first: Counters, second: Counters) -> dict[str, float]:
    """Changes between two samples by name, without unknown ones.

    `other_cpus` is the mean number of CPUs kept busy by processes outside the run,
    `steal_fraction` the share of the wanted CPU time that the hypervisor withheld; both are unknown
    for samples less than 0.2 s apart. `load_average` is that at the beginning, because it includes
    this process later.
    """
    change = second.since(first)
    seconds, busy, quota = change["at"], change["busy_seconds"], change["quota_seconds"]
    own, steal = change["own_seconds"], change["steal_seconds"]
    others = stolen = None
    if seconds >= _SHORTEST and busy is not None and own is not None:
        others = round(max(0.0, busy - own) / seconds, 3)
    if seconds >= _SHORTEST and busy is not None and steal is not None:
        stolen = round(steal / (busy + steal), 4) if busy + steal else 0.0
    found = {
        "seconds": round(seconds, 3),
        "other_cpus": others,
        "steal_fraction": stolen,
        "load_average": first.load_average,
        "thermal_events": change["thermal_events"],
        "quota_seconds": None if quota is None else round(quota, 3),
        "swapped_pages": change["swapped_pages"],
    }
    return {name: value for name, value in found.items() if value is not None}


def _cpu_seconds(host: Host) -> tuple[float | None, float | None]:
    """Busy and stolen time of all CPUs; guests' time is part of the first two columns."""
    found = re.match(r"cpu +([\d ]+)", host.text("proc/stat") or "")
    columns = [] if found is None else [int(word) for word in found.group(1).split()]
    if len(columns) < 7:
        return None, None
    user, nice, system, _, _, irq, softirq, *rest = columns
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, rest[0] / ticks if rest else None


def cpu_seconds_of(host: Host, pid: int) -> float | None:
    """CPU time of a process and of its ended children; None if the process has ended."""
    fields = (host.text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    times = fields[_USER_TIME : _USER_TIME + 4]
    if len(times) < 4 or not all(time.isdigit() for time in times):
        return None
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _thermal_events(host: Host) -> int | None:
    if not (host.root / _CPU / "cpu0/thermal_throttle").is_dir():
        return None  # avoids a search over hundreds of CPUs
    counts = [
        host.number(f"{_CPU}/{folder.parent.name}/thermal_throttle/{kind}_throttle_count")
        for folder in (host.root / _CPU).glob("cpu[0-9]*/thermal_throttle")
        for kind in ("core", "package")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _quota_seconds(host: Host) -> float | None:
    total: float | None = None
    for folder in cgroup_folders(host, "cpu"):
        text = host.text(f"{folder}/cpu.stat") or ""
        for key, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            found = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
            if found is not None:
                total = (total or 0.0) + int(found.group(1)) / unit
    return total


def clock_mhz(host: Host) -> int | None:
    """The current clock: the median over some CPUs that this process may use. Never raises.

    None where the kernel does not report it, as in most virtual machines.
    """
    wanted = sorted(usable_cpus())
    some = wanted[:: -(-len(wanted) // _CLOCKS) or 1]
    paths = (f"{_CPU}/cpu{number}/cpufreq/scaling_cur_freq" for number in some)
    kilohertz = [clock for path in paths if (clock := host.number(path))]
    if kilohertz:
        return round(median(kilohertz) / 1000)
    told = dict(_CLOCK.findall(host.text("proc/cpuinfo") or ""))
    # A nominal clock is the same to the last digit everywhere, a measured one is not.
    if len(set(told.values())) < 2:
        return None
    known = [float(told[str(number)]) for number in wanted if str(number) in told]
    return round(median(known)) if known else None
