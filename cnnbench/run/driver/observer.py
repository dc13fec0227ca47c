"""What follows a run: summaries and logs hear of its events, outside of every step's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cnnbench.records.run import Evaluation


class Moment(NamedTuple):
    """Where a training stands after a timed step.

    Attributes:
      global_step: of the weights.
      learning_rate: of the step.
      loss: of the step.
      metrics: of its batch, by name; empty unless they are computed.
      images_per_sec: as the row of the step prints it.
    """

    global_step: int
    learning_rate: float
    loss: float
    metrics: Mapping[str, float]
    images_per_sec: float


class Observer:
    """Hears of what happens; does nothing about it."""

    def begins(self, global_step: int, steps: int) -> None:
        """Training begins, with the warm-up.

        Args:
          global_step: steps that came before.
          steps: to be timed after the warm-up, at most.
        """

    def displayed(self, global_step: int, images_per_sec: float) -> None:
        """A row of the table was printed."""

    def due(self, step: int) -> bool:
        """Whether `paused` is to be called after the timed step of this number."""
        del step
        return False

    def paused(self, moment: Moment) -> None:
        """No step is running; may take its time."""

    def evaluating(self, global_step: int) -> None:
        """Training pauses, or is over, and an evaluation begins."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """An evaluation is over."""

    def resuming(self, global_step: int) -> None:
        """Training goes on after an evaluation."""

    def ended(self, global_step: int, images_per_sec: float) -> None:
        """Training has come to its end, the last evaluation too.

        Args:
          global_step: of the weights.
          images_per_sec: of the timed loop, without the evaluations in it.
        """

    def close(self) -> None:
        """The run is over, however it ended."""
