"""Device names, and strategies that choose among devices; does not load TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias


def device_string(job: str, task: int, kind: str, index: int) -> str:
    """A full device string, such as "/job:ps/replica:0/task:1/device:CPU:0".

    Args:
      kind: "cpu" or "gpu".
      index: number of the device in its task.
    """
    return f"/job:{job}/replica:0/task:{task}/device:{kind.upper()}:{index}"


def cpu_of(device: str) -> str:
    """The first CPU of the process that has a device.

    Args:
      device: full device string; of a short one such as "CPU:1" the process stays open.
    """
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


def is_cpu(device: str) -> bool:
    """Whether a device is a CPU, logical ones included.

    Args:
      device: device string, full or short.
    """
    return "CPU:" in device.upper()


def host_of(device: str) -> str:
    """The device itself if it is a CPU, otherwise the first CPU of its process.

    Args:
      device: full device string.
    """
    return device if is_cpu(device) else cpu_of(device)


Chooser: TypeAlias = Callable[[int], str]
"""Returns the device for the next variable, given its bytes; remembers earlier choices."""


class RoundRobin:
    """Hands out the devices in turn, beginning with the first.

    Raises:
      ValueError: for no devices.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._next = 0

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable, whatever its size."""
        device = self._devices[self._next % len(self._devices)]
        self._next += 1
        return device


class GreedyByBytes:
    """Hands out the device with the fewest bytes so far, the first of equals.

    Raises:
      ValueError: for no devices.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._load = [0] * len(self._devices)

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable.

        Raises:
          ValueError: for a negative number of bytes.
        """
        if num_bytes < 0:
            raise ValueError(f"a variable cannot have {num_bytes} bytes")
        lightest = self._load.index(min(self._load))
        self._load[lightest] += num_bytes
        return self._devices[lightest]


def _non_empty(devices: Sequence[str]) -> tuple[str, ...]:
    if not devices:
        raise ValueError("no devices to choose from")
    return tuple(devices)
