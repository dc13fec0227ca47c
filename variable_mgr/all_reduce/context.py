"""What an all-reduce algorithm is told about the devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.variable_mgr.all_reduce.groups import process_of


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
      share_memory: whether CPU devices of one process hand each other tensors by
        reference, and algorithms leave out what would only move them. False treats every
        device as having a memory of its own, as GPUs have.
    """

    devices: tuple[str, ...]
    cpu_devices: tuple[str, ...] = ()
    shards: int = 1
    cpu_device: str | None = None
    network_topology: str = "dgx1"
    share_memory: bool = True

    def memory_of(self, device: str) -> str:
        """A name for the memory that a device computes in."""
        shared = self.share_memory and ":CPU:" in device.upper()
        return process_of(device) if shared else device

    @functools.cached_property
    def memories(self) -> int:
        """How many memories the devices have between them.

        To cut a tensor keeps as many links busy as there are memories; more chunks than
        that only have to be joined again.
        """
        return len(set(map(self.memory_of, self.devices)))

    def within(self, devices: Sequence[str], shards: int = 1) -> ReduceContext:
        """The same parameters for other devices."""
        return dataclasses.replace(self, devices=tuple(devices), shards=shards)
