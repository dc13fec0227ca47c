"""What an all-reduce algorithm is told about the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReduceContext:
    """The devices between which one algorithm reduces, and its parameters.

    Attributes:
      devices: full device string (job, replica, task, device) of each value, in the
        order of a ring; at least two, all different.
      cpu_devices: CPU devices on which values may be added: one of each process, and
        those of `devices` that are CPUs themselves.
      shards: the number after "#" in a spec.
      cpu_device: the one CPU that copying adds on; None to add tensor i on device
        i mod N.
      network_topology: "dgx1" or "gcp_v100", for hierarchical copies.
    """

    devices: tuple[str, ...]
    cpu_devices: tuple[str, ...] = ()
    shards: int = 1
    cpu_device: str | None = None
    network_topology: str = "dgx1"

    def within(self, devices: Sequence[str], shards: int = 1) -> ReduceContext:
        """The same parameters for other devices."""
        return dataclasses.replace(self, devices=tuple(devices), shards=shards)
