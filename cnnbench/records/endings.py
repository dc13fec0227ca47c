"""Flags that end the timed loop early. A record names the flag that ended its loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class LoopProgress(NamedTuple):
    """Progress of the timed loop: its wall seconds so far, and the loss of its last step."""

    seconds: float
    loss: float


class Ending(NamedTuple):
    """A flag that ends the timed loop after a step.

    Attributes:
      help: the help of the flag, whose value N is a number above 0.
      is_reached: whether the loop ends. Its arguments are the value of the flag and the loop.
    """

    help: str
    is_reached: Callable[[float, LoopProgress], bool]


ENDINGS: dict[str, Ending] = {
    "max_seconds": Ending(
        "End the timed loop after the first step that ends at least N seconds after the start of "
        "the loop. The time of evaluations is not included. The loop never makes more than "
        "--num_batches steps. The exit code is 0.",
        lambda limit, loop: loop.seconds >= limit,
    ),
}
"""Flags that end the timed loop after a step, by name."""
