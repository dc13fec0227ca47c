"""--variable_consistency=relaxed: gradients that are applied one step late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.shapes import static_dtypes, static_shapes
from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors

_T = TypeVar("_T")


class Deferral:
    """Hands out what it was given one step earlier, in the first step zeros.

    The reduction of the last step's gradients then waits for nothing in this step,
    and runs beside the forward and backward pass.

    What is kept is a variable per tensor on the tower's device, made when a step is
    traced for the first time; further traces of the same object use the same ones. A
    CPU or GPU takes over the gradient's memory instead of copying it.

    Args:
      devices: of the towers.
    """

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices
        self._kept: list[list[tf.Variable]] = []

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """What is kept, by tower; empty before a step has been traced."""
        return tuple(variable for kept in self._kept for variable in kept)

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """See `Stage.__call__`.

        Raises:
          ValueError: the tensors have other shapes or dtypes than those of the first
            trace.
        """
        form = list(zip(static_shapes(tensors), static_dtypes(tensors), strict=True))
        if not self._kept:
            self._kept = _untraced(lambda: [_zeros(device, form) for device in self._devices])
        known = [(variable.shape, variable.dtype) for variable in self._kept[0]]
        if form != known:
            raise ValueError("a step with other gradients than before cannot use the deferred ones")
        deferred = []
        for device, kept, own in zip(self._devices, self._kept, tensors, strict=True):
            with tf.device(device):
                deferred.append([_exchange(v, t) for v, t in zip(kept, own, strict=True)])
        return deferred, lambda reduced: reduced


def _zeros(device: str, form: Sequence[tuple[tf.TensorShape, tf.DType]]) -> list[tf.Variable]:
    with tf.device(device):
        return [
            tf.Variable(tf.zeros(shape, dtype), trainable=False, name=f"deferred/{i}")
            for i, (shape, dtype) in enumerate(form)
        ]


def _untraced(function: Callable[[], _T]) -> _T:
    """Runs a function where no trace is under way, which is in any other thread.

    Within tf.init_scope, tf.function would notice the new variables and trace the whole
    step a second time.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _exchange(variable: tf.Variable, tensor: tf.Tensor) -> tf.Tensor:
    """The variable's old value; the new one is assigned even if nobody asks for the old."""
    old = variable.read_value()
    # A traced function keeps reads and writes of a variable in order by itself. The
    # dependency holds wherever else the ops may end up.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old
