"""The devices and parameters of one all-reduce."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.variable_mgr.all_reduce.groups import cpus_of, process_of


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

    @classmethod
    def of_towers(
        cls,
        devices: Sequence[str],
        cpu: str,
        *,
        add_on_cpu: bool = False,
        network_topology: str = "dgx1",
        share_memory: bool = True,
    ) -> ReduceContext:
        """The context of all towers of a run.

        Args:
          devices: full device string of each tower; all different unless there is one.
          cpu: the host's, on which values may be added where no tower is a CPU itself.
          add_on_cpu: whether copying adds on `cpu`.
          network_topology: see `ReduceContext`.
          share_memory: see `ReduceContext`.
        """
        towers = [device for device in devices if "/device:CPU:" in device]
        return cls(
            devices=tuple(devices),
            cpu_devices=tuple(dict.fromkeys(towers or [cpu])),
            cpu_device=cpu if add_on_cpu else None,
            network_topology=network_topology,
            share_memory=share_memory,
        )

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

    def part(self, members: Sequence[str], shards: int = 1) -> ReduceContext:
        """The context of some of the devices, with the CPUs of their processes."""
        cpus = cpus_of(members, self.devices, self.cpu_devices)
        cpu_device = self.cpu_device
        if cpu_device is not None and cpus and cpu_device not in cpus:
            cpu_device = cpus[0]
        return dataclasses.replace(
            self.within(members, shards), cpu_devices=cpus, cpu_device=cpu_device
        )
