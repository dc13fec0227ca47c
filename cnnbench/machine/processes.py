"""Other processes of this machine: the scope of their PIDs, and their CPU time."""

from __future__ import annotations

import os

from cnnbench.machine.host import Host

_USER_TIME = 11
"""Index of utime in /proc/PID/stat after the name; stime, cutime and cstime follow."""


def pid_namespace(host: Host) -> str | None:
    """Identifier of the namespace of this process's PIDs; None if unreadable.

    A PID names the same process in two processes with the same identifier. Other machines, and
    containers with PIDs of their own, have other ones.
    """
    boot = host.text("proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink(host.root / "proc/self/ns/pid")
    except OSError:
        return None
    return f"{boot} {namespace}" if boot else None


def cpu_seconds_of(host: Host, pid: int) -> float | None:
    """CPU time of a process and of its ended children; None if the process has ended."""
    fields = (host.text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    times = fields[_USER_TIME : _USER_TIME + 4]
    if len(times) < 4 or not all(time.isdigit() for time in times):
        return None
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
