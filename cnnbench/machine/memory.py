"""Memory available to a process, by machine and control groups."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cnnbench.machine.cpu import cgroup_folders
from cnnbench.machine.host import Host

_NO_LIMIT = 1 << 60  # control groups of version 1 write a huge number


@dataclass(frozen=True)
class Memory:
    """Bytes of memory, main or of a GPU.

    `total` is the most that a process can have, including swap space; `available` is the part that
    needs no swapping and is not used by other processes.
    """

    total: int
    available: int


def main_memory(host: Host | None = None) -> Memory | None:
    """Total and free main memory; None if unknown."""
    host = Host() if host is None else host
    lines = re.findall(r"^(\w+): +(\d+) kB$", host.text("proc/meminfo") or "", re.MULTILINE)
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes in lines}
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        return None
    swap = sizes.get("SwapTotal", 0)
    total, available = sizes["MemTotal"] + swap, sizes["MemAvailable"]
    for folder in cgroup_folders(host, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = host.number(f"{folder}/{limit_name}") or 0
            if 0 < limit < _NO_LIMIT:
                # Not all that a group uses is lost: file pages are given back.
                used = host.number(f"{folder}/{used_name}") or 0
                total = min(total, limit + swap)
                available = min(available, max(0, limit - used + _file_pages(host, folder)))
    return Memory(total, available)


def _file_pages(host: Host, folder: str) -> int:
    """Bytes of a control group that the kernel can reclaim at once."""
    found = re.search(
        r"^(?:inactive_file|total_inactive_file) (\d+)$",
        host.text(f"{folder}/memory.stat") or "",
        re.MULTILINE,
    )
    return int(found[1]) if found else 0
