"""How many processors this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Processors in the affinity mask, or of the machine where there is no such thing."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1
