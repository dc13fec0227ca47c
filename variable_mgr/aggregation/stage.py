"""What stands between the gradients and their reduction: stages with exact inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import tensorflow as tf

# [tower][index]; tensor i has one dtype and static shape in all towers.
TowerTensors: TypeAlias = "list[list[tf.Tensor]]"
# Takes what was reduced back to the form that the stage was given.
Inverse: TypeAlias = "Callable[[TowerTensors], TowerTensors]"


class Stage(Protocol):
    """Changes the form in which gradients travel."""

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """Applies the stage, each tower's ops on the tower's device.

        Args:
          tensors: dense tensors by tower.

        Returns:
          The tensors to send, and the inverse for what comes back: as many tensors per
          tower, of the same dtypes and shapes, in the same order. What comes back may
          be the same object for several towers; the inverse keeps such sharing where
          it costs nothing.

        Raises:
          ValueError: the tensors do not fit the stage; says why.
        """
