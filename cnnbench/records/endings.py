"""Flags that end the timed loop early. A record names the flag that ended its loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class LoopProgress(NamedTuple):
    """Progress of the timed loop: its wall seconds so far, and the loss of its last step."""

    seconds: float
    loss: float


ENDINGS: Mapping[str, Callable[[float, LoopProgress], bool]] = {
    "max_seconds": lambda limit, loop: loop.seconds >= limit,
}
"""Flags that end the timed loop after a step, and conditions on the flag's value and the loop."""
