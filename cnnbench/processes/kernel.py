"""What the kernel tells about processes it ended for want of memory."""

from __future__ import annotations

import re
from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int:
    """Processes ended so far, in our control group or, if that does not count, on the machine.

    Args:
      root: of the file system that /proc and /sys are under.

    Returns:
      A count that only its growth says something about; 0 where nobody counts.
    """
    for counter in (*_group_counters(root), root / "proc/vmstat"):
        try:
            found = re.search(r"^oom_kill (\d+)$", counter.read_text("ascii"), re.MULTILINE)
        except (OSError, ValueError):
            continue
        if found is not None:
            return int(found.group(1))
    return 0


def _group_counters(root: Path) -> list[Path]:
    """The counters of the control group of this process, either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return []
    counters = []
    for line in lines:
        _, names, path = line.split(":", 2)
        # Inside a container the path may be that of the host, and the mount point our group.
        for inner in (path.lstrip("/"), ""):
            if not names:
                counters.append(root / "sys/fs/cgroup" / inner / "memory.events")
            elif "memory" in names.split(","):
                counters.append(root / "sys/fs/cgroup/memory" / inner / "memory.oom_control")
    return counters
