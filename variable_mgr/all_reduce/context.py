"""Devices and parameters of one all-reduce, and groups of devices, without importing TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

COMMUNICATION_HINTS = ("auto", "ring", "nccl")
"""Values of the communication hint of TensorFlow's collectives."""


@dataclass(frozen=True, kw_only=True)
class ReduceContext:
    """The devices between which an all-reduce algorithm reduces, and the algorithm's parameters.

    Attributes:
      devices: full device string (job, replica, task, device) of each value, in the
        order of a ring; at least two, all different.
      cpu_devices: CPU devices on which values may be added: one of each process, and
        those of `devices` that are CPUs themselves.
      shards: the number after "#" in a spec.
      cpu_device: the CPU on which `copy` adds; None to add tensor i on device i mod N.
      network_topology: "dgx1" or "gcp_v100", for hierarchical copies.
      share_memory: whether CPU devices of one process pass tensors by reference, so that algorithms
        need no copies between them. If False, every device has its own memory, like a GPU.
      own: the devices whose values are in this process, in the same order; None for all. Other
        processes run their own steps, which reduce the other values.
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
        """The devices of this process, whose values are the input of an algorithm."""
        if self.own is None:
            return self.devices
        return tuple(device for device in self.devices if device in self.own)

    @property
    def all_devices_are_own(self) -> bool:
        """Whether the values of all devices are in this process."""
        return len(self.own_devices) == len(self.devices)

    @property
    def collective_hint(self) -> str:
        """Value of the attribute `communication_hint` of a collective operation.

        TensorFlow's "auto" uses the ring, which goes through the hosts, even between GPUs. Here,
        "auto" means NCCL between GPUs. It means the ring between parts of one GPU, and if there are
        `shards`, which NCCL does not support.
        """
        on_gpus = all(is_gpu(device) for device in self.devices) and not self.shared_cards
        auto = self.communication_hint == "auto"
        return "nccl" if auto and on_gpus and self.shards == 1 else self.communication_hint

    def memory_of(self, device: str) -> str:
        """Returns the name of a device's memory, which CPU devices of one process may share."""
        shared = self.share_memory and ":CPU:" in device.upper()
        return process_of_device(device) if shared else device

    @functools.cached_property
    def num_memories(self) -> int:
        """Number of separate memories of the devices.

        More chunks than memories would use no further links.
        """
        return len(set(map(self.memory_of, self.devices)))

    def refuse_shards(self, name: str) -> None:
        """Raises ValueError if there are shards, for the algorithm `name`, which takes none."""
        if self.shards != 1:
            raise ValueError(f"{name} takes no shards")

    def with_devices(self, devices: Sequence[str], shards: int = 1) -> ReduceContext:
        """Returns a context with the same parameters for other devices and another `shards`."""
        return dataclasses.replace(self, devices=tuple(devices), shards=shards)

    def for_members(self, members: Sequence[str], shards: int = 1) -> ReduceContext:
        """Returns a context for some of the devices, such as one group.

        Values may be added on the CPUs of the members' processes, except CPUs that are devices of
        this context but not members.
        """
        processes = set(map(process_of_device, members))
        others = {*self.devices} - {*members}
        own = (cpu for cpu in self.cpu_devices if process_of_device(cpu) in processes)
        cpus = tuple(cpu for cpu in own if cpu not in others)
        cpu_device = self.cpu_device
        if cpu_device is not None and cpus and cpu_device not in cpus:
            cpu_device = cpus[0]
        context = self.with_devices(members, shards)
        return dataclasses.replace(context, cpu_devices=cpus, cpu_device=cpu_device)


def cpus_for_additions(devices: Sequence[str], cpus: Sequence[str], cpu: str) -> tuple[str, ...]:
    """Returns the CPUs on which the towers' gradients may be added.

    If there are towers on CPUs, the result contains these CPUs. Otherwise, it contains `cpus`, one
    CPU of every process. If `cpus` is empty, it contains `cpu`, the host's CPU.
    """
    towers = [device for device in devices if "/device:CPU:" in device]
    return tuple(dict.fromkeys(towers or cpus or [cpu]))


@functools.cache
def process_of_device(device: str) -> str:
    """Returns job, replica and task from a full device string, as a name of the process."""
    return device.rpartition("/device:")[0]


def is_gpu(device: str) -> bool:
    """Whether a full device string names a GPU."""
    return "/device:GPU:" in device


def group_devices(devices: Sequence[str], group_size: int = 0) -> tuple[tuple[str, ...], ...]:
    """Groups devices by process, or into smaller groups within each process.

    With a `group_size` above 0, a group contains that many consecutive devices of a process; the
    last group may be smaller. Use it for GPUs on one PCIe switch or NUMA node, or to emulate
    several hosts in one process. Groups are ordered by their first device.
    """
    processes: dict[str, list[str]] = {}
    for device in devices:
        processes.setdefault(process_of_device(device), []).append(device)
    return tuple(
        tuple(members[begin : begin + (group_size or len(members))])
        for members in processes.values()
        for begin in range(0, len(members), group_size or len(members))
    )


def leaders_by_rotation(groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns the leaders of all groups for each tensor of a rotation.

    Leaders are the devices that reduce between groups. They rotate: in a whole rotation, every
    device is a leader at least once.
    """
    count = max(map(len, groups))
    return [tuple(group[index % len(group)] for group in groups) for index in range(count)]
