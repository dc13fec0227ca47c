"""Devices in groups, for reductions of two levels: strings only, no TensorFlow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence


@functools.cache
def process_of(device: str) -> str:
    """Job, replica and task of a full device string."""
    return device.rpartition("/device:")[0]


def groups_of(devices: Sequence[str], group_size: int = 0) -> tuple[tuple[str, ...], ...]:
    """Groups devices by process, or into runs within each process.

    Args:
      devices: full device strings.
      group_size: 0 for one group per process. More than 0 makes groups of so many
        consecutive devices of a process, of which the last may be smaller: islands of
        GPUs on one PCIe switch or NUMA node, or several hosts emulated in one process.

    Returns:
      Every device in one group; groups and devices in the order of their first device.

    Raises:
      ValueError: for a negative size.
    """
    if group_size < 0:
        raise ValueError(f"a group cannot have {group_size} devices")
    processes: dict[str, list[str]] = {}
    for device in devices:
        processes.setdefault(process_of(device), []).append(device)
    return tuple(
        tuple(members[begin : begin + (group_size or len(members))])
        for members in processes.values()
        for begin in range(0, len(members), group_size or len(members))
    )


def cpus_of(
    members: Sequence[str], devices: Sequence[str], cpu_devices: Sequence[str]
) -> tuple[str, ...]:
    """The CPU devices that some of the devices may add on without leaving their processes.

    Args:
      members: a group of `devices`.
      devices: all devices of the reduction.
      cpu_devices: the CPU devices among which to choose.

    Returns:
      Members that are CPUs, and CPUs of the members' processes that are not themselves
      devices of another group.
    """
    processes = {process_of(member) for member in members}
    others = {*devices} - {*members}
    return tuple(cpu for cpu in cpu_devices if process_of(cpu) in processes and cpu not in others)


def speakers_of(groups: Sequence[Sequence[str]], turn: int) -> tuple[str, ...]:
    """The device of each group that reduces between groups in a turn, in rotation."""
    return tuple(group[turn % len(group)] for group in groups)


def turns_of(groups: Sequence[Sequence[str]]) -> int:
    """Number of turns after which every device has reduced between groups."""
    return max(map(len, groups))


def check_partition(groups: Sequence[Sequence[str]], devices: Sequence[str]) -> None:
    """Checks that every device is in exactly one group.

    Raises:
      ValueError: a device is in no group or in two, or a group is empty.
    """
    members = list(itertools.chain.from_iterable(groups))
    if sorted(members) != sorted(devices) or not all(groups):
        raise ValueError(
            f"the groups {[list(group) for group in groups]} do not divide the devices "
            f"{list(devices)}"
        )
