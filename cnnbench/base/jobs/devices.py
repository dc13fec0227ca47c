"""Device names, and strategies that choose among devices; does not load TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias


def device_string(job: str, task: int, kind: str, index: int) -> str:
    """A full device string, such as "/job:ps/replica:0/task:1/device:CPU:0"."""
    return f"/job:{job}/replica:0/task:{task}/device:{kind.upper()}:{index}"


def cpu_of(device: str) -> str:
    """The first CPU of a device's process; short names such as "CPU:1" stay without a process."""
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


def is_cpu(device: str) -> bool:
    """Whether a device, by its full or short name, is a (logical) CPU."""
    return "CPU:" in device.upper()


def host_of(device: str) -> str:
    """The device itself if it is a CPU, otherwise the first CPU of its process."""
    return device if is_cpu(device) else cpu_of(device)


Chooser: TypeAlias = Callable[[int], str]
"""Returns the device for the next variable, given its bytes; remembers earlier choices."""


class RoundRobin:
    """Chooses the devices in turn, beginning with the first; ValueError for no devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._next = 0

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable, of any size."""
        device = self._devices[self._next % len(self._devices)]
        self._next += 1
        return device


class GreedyByBytes:
    """Chooses the device with the fewest bytes so far, the first of equals; ValueError for none."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._load = [0] * len(self._devices)

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable; ValueError for a negative number of bytes."""
        if num_bytes < 0:
            raise ValueError(f"a variable cannot have {num_bytes} bytes")
        lightest = self._load.index(min(self._load))
        self._load[lightest] += num_bytes
        return self._devices[lightest]


def _non_empty(devices: Sequence[str]) -> tuple[str, ...]:
    if not devices:
        raise ValueError("no devices to choose from")
    return tuple(devices)
