"""Facts about machine and software, for the record of a run.

A fact that cannot be read is absent, never empty, and reading one never raises.
Nothing here loads TensorFlow; where a run has loaded it, it is asked too.
"""

from __future__ import annotations

from cnnbench.environment import gpu, machine, software, variables
from cnnbench.environment.host import Fact, FactGroup, Host, gather

__all__ = ["FACT_GROUPS", "Fact", "Host", "collect"]

FACT_GROUPS: tuple[FactGroup, ...] = (
    *software.GROUPS,
    *machine.GROUPS,
    *gpu.GROUPS,
    *variables.GROUPS,
)
"""Functions that each read a few facts; adding one here adds its facts everywhere."""


def collect(host: Host | None = None) -> dict[str, Fact]:
    """All facts that can be read, by name.

    Args:
      host: where to read; this machine and process if None.
    """
    return gather(FACT_GROUPS, Host() if host is None else host)
