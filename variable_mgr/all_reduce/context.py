"""Devices and parameters of one all-reduce, and groups of devices; no TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

COMMUNICATION_HINTS = ("auto", "ring", "nccl")
"""How TensorFlow's collectives may be asked to run."""


@dataclass(frozen=True, kw_only=True)
class ReduceContext:
    """The devices between which one algorithm reduces, and its parameters.

    Attributes:
      devices: full device string (job, replica, task, device) of each value, in the
        order of a ring; at least two, all different.
      cpu_devices: CPU devices on which values may be added: one of each process, and
        those of `devices` that are CPUs themselves.
      shards: the number after "#" in a spec.
      cpu_device: the CPU on which `copy` adds; None to add tensor i on device i mod N.
      network_topology: "dgx1" or "gcp_v100", for hierarchical copies.
      share_memory: whether CPU devices of one process pass tensors by reference, so that
        algorithms leave out copies. False treats every device as having a memory of its own, as
        GPUs have.
      own: those of `devices` whose values are in this process, in the same order; None for
        all. The other processes reduce theirs in steps of their own.
      communication_hint: one of `COMMUNICATION_HINTS`, for TensorFlow's collectives.
      shared_cards: whether several devices are parts of one GPU, which NCCL refuses.
    """

    devices: tuple[str, ...]
    cpu_devices: tuple[str, ...] = ()
    shards: int = 1
    cpu_device: str | None = None
    network_topology: str = "dgx1"
    share_memory: bool = True
    own: tuple[str, ...] | None = None
    communication_hint: str = "auto"
    shared_cards: bool = False

    @property
    def own_devices(self) -> tuple[str, ...]:
        """Devices of this process, whose values an algorithm gets."""
        if self.own is None:
            return self.devices
        return tuple(device for device in self.devices if device in self.own)

    @property
    def complete(self) -> bool:
        """Whether this process has the values of all devices."""
        return len(self.own_devices) == len(self.devices)

    @property
    def collective_hint(self) -> str:
        """The attribute `communication_hint` of a collective between the devices.

        TensorFlow's "auto" uses the ring through the hosts, also between GPUs. Here "auto" is NCCL
        between GPUs, but the ring on parts of one, and if there are `shards`, which NCCL lacks.
        """
        on_gpus = all(is_gpu(device) for device in self.devices) and not self.shared_cards
        auto = self.communication_hint == "auto"
        return "nccl" if auto and on_gpus and self.shards == 1 else self.communication_hint

    def memory_of(self, device: str) -> str:
        """A name for the memory that a device computes in."""
        shared = self.share_memory and ":CPU:" in device.upper()
        return process_of(device) if shared else device

    @functools.cached_property
    def memories(self) -> int:
        """Number of memories of the devices; more chunks of a tensor would use no more links."""
        return len(set(map(self.memory_of, self.devices)))

    def within(self, devices: Sequence[str], shards: int = 1) -> ReduceContext:
        """The same parameters for other devices."""
        return dataclasses.replace(self, devices=tuple(devices), shards=shards)

    def part(self, members: Sequence[str], shards: int = 1) -> ReduceContext:
        """The context of some of the devices.

        They may add on CPUs of their processes, unless these are devices of others.
        """
        processes = set(map(process_of, members))
        others = {*self.devices} - {*members}
        cpus = tuple(
            cpu for cpu in self.cpu_devices if process_of(cpu) in processes and cpu not in others
        )
        cpu_device = self.cpu_device
        if cpu_device is not None and cpus and cpu_device not in cpus:
            cpu_device = cpus[0]
        return dataclasses.replace(
            self.within(members, shards), cpu_devices=cpus, cpu_device=cpu_device
        )


def adding_cpus(devices: Sequence[str], cpus: Sequence[str], cpu: str) -> tuple[str, ...]:
    """The CPUs on which values of towers may be added: the towers' own, where some are CPUs.

    Otherwise they are `cpus`, one of every process, if given, or `cpu`, the host's.
    """
    towers = [device for device in devices if "/device:CPU:" in device]
    return tuple(dict.fromkeys(towers or cpus or [cpu]))


@functools.cache
def process_of(device: str) -> str:
    """Job, replica and task of a full device string."""
    return device.rpartition("/device:")[0]


def is_gpu(device: str) -> bool:
    """Whether a full device string names a GPU."""
    return "/device:GPU:" in device


def groups_of(devices: Sequence[str], group_size: int = 0) -> tuple[tuple[str, ...], ...]:
    """Groups devices by process, or into runs within each process.

    A `group_size` above 0 makes groups of that many consecutive devices of a process, of which the
    last may be smaller: islands of GPUs on one PCIe switch or NUMA node, or several hosts emulated
    in one process. Groups and devices are in the order of their first device.
    """
    processes: dict[str, list[str]] = {}
    for device in devices:
        processes.setdefault(process_of(device), []).append(device)
    return tuple(
        tuple(members[begin : begin + (group_size or len(members))])
        for members in processes.values()
        for begin in range(0, len(members), group_size or len(members))
    )


def leaders_of(groups: Sequence[Sequence[str]], turn: int) -> tuple[str, ...]:
    """The device of each group that reduces between groups in a turn, in rotation."""
    return tuple(group[turn % len(group)] for group in groups)


def turns_of(groups: Sequence[Sequence[str]]) -> int:
    """Number of turns after which every device has been a leader."""
    return max(map(len, groups))
