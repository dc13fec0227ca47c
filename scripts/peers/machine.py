"""What the machine can do, and who else is using it."""

from __future__ import annotations

import os
import re
import resource
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")


def cpu_has_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (Linux; elsewhere taken as not)."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16|bf16|svebf16)\b", text) is not None


def others_cpu_seconds(stat: Path = _STAT) -> float | None:
    """CPU time that everybody but this process and its finished children ever used.

    The difference of two calls is what others took in between. None where the
    system does not tell (anything but Linux).
    """
    try:
        cells = stat.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, irq, softirq = (int(cell) for cell in cells[1:8])
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Watch:
    """What others did on this machine since it was made.

    Attributes:
      load_average: one-minute load average at the beginning.
    """

    def __init__(self) -> None:
        """Begins to watch."""
        self.load_average = os.getloadavg()[0]
        self._others, self._start = others_cpu_seconds(), time.perf_counter()

    def others_cpus(self) -> float | None:
        """CPUs that other processes kept busy until now, on average; None if unknown."""
        others, wall = others_cpu_seconds(), time.perf_counter() - self._start
        if self._others is None or others is None:
            return None
        return max(0.0, others - self._others) / wall
