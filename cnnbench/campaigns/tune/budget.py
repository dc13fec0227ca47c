"""The time of a search, over all of its sessions."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """The time of a search.

    Args:
      seconds: of all of it.
      races: spent on races before it is resumed.
      pairs: spent on pairs of the final by then.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        seconds: float,
        races: float = 0.0,
        pairs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begun = clock() - races - pairs
        self._pairs = pairs

    @property
    def minutes(self) -> float:
        """All of it."""
        return self.seconds / 60

    @property
    def left(self) -> float:
        """Seconds; negative when it is used up."""
        return self.seconds - (self._clock() - self._begun)

    def left_for_races(self, reserve: float) -> float:
        """Seconds for races.

        Args:
          reserve: of all of it, for the final; its pairs of before were measured in this time.
        """
        return self.left + self._pairs - reserve
