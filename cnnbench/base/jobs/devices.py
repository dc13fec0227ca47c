"""Device names, and strategies that choose among devices; does not load TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias


def cpu_of(device: str) -> str:
    """The first CPU of a device's process; for a short name such as "GPU:1" one without process."""
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


def is_cpu(device: str) -> bool:
    """Whether a device, by its full or short name, is a (logical) CPU."""
    return "CPU:" in device.upper()


Chooser: TypeAlias = Callable[[int], str]
"""Returns the device for the next variable, given its bytes; remembers earlier choices."""


def round_robin(devices: Sequence[str]) -> Chooser:
    """Chooses the devices, at least one, in turn, beginning with the first."""
    turns = itertools.cycle(devices)
    return lambda num_bytes: next(turns)


def greedy_by_bytes(devices: Sequence[str]) -> Chooser:
    """Chooses the device with the fewest bytes so far, the first of equals."""
    loads = dict.fromkeys(devices, 0)

    def choose(num_bytes: int) -> str:
        lightest = min(loads, key=loads.__getitem__)
        loads[lightest] += num_bytes
        return lightest

    return choose
