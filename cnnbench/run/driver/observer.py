"""Callbacks that run outside timed steps: summaries and logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cnnbench.records.parts import Evaluation


class Moment(NamedTuple):
    """State of a training after a step of the warm-up or a timed one.

    Attributes:
      global_step: global step of the weights.
      metrics: metrics of the step's batch by name; empty unless they are computed.
      images_per_sec: as the row of the step prints it; None in the warm-up.
    """

    global_step: int
    learning_rate: float
    loss: float
    metrics: Mapping[str, float]
    images_per_sec: float | None


class Observer:
    """Receives the events of a run; by default ignores them."""

    def begins(self, global_step: int, steps: int) -> None:
        """The training begins, with the warm-up; `steps` are timed after it, at most."""

    def displayed(self, step: int, images_per_sec: float, metrics: Mapping[str, float]) -> None:
        """The row of a timed step was printed; the first step is 1. Metrics as in `Moment`."""

    def due(self, global_step: int) -> bool:
        """Whether `paused` is to be called after this step of the warm-up or of the timed loop."""
        del global_step
        return False

    def paused(self, moment: Moment) -> None:
        """Called while no step is running; may take time."""

    def evaluating(self, global_step: int) -> None:
        """An evaluation begins; the training is paused or has ended."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """An evaluation has ended."""

    def resuming(self, global_step: int) -> None:
        """The training continues after an evaluation."""

    def ended(self, global_step: int, steps: int, images_per_sec: float) -> None:
        """The training has ended, with its last evaluation; steps and rate of the timed loop."""

    def close(self) -> None:
        """The run has ended, successfully or not."""
