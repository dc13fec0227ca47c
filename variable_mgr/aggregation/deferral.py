"""--variable_consistency=relaxed: gradients that are applied one step late."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.shapes import (
    Columns,
    Inverse,
    static_dtypes,
    static_shapes,
)
from cnnbench.variable_mgr.gradients import on_devices

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
        """The gradients that are kept; empty before a step has been traced."""
        return tuple(variable for column in self._kept for variable in column)

    def __call__(self, columns: Columns) -> tuple[Columns, Inverse]:
        """See `Stage.__call__`.

        Raises:
          ValueError: the tensors have other shapes or dtypes than those of the first
            trace.
        """
        form = list(zip(static_shapes(columns), static_dtypes(columns), strict=True))
        if not self._kept:
            self._kept = _untraced(lambda: [self._zeros(i, *f) for i, f in enumerate(form)])
        known = [(column[0].shape, column[0].dtype) for column in self._kept]
        if form != known:
            raise ValueError("a step with other gradients than before cannot use the deferred ones")
        deferred = []
        for kept, column in zip(self._kept, columns, strict=True):
            pairs = list(zip(kept, column, strict=True))
            deferred.append(on_devices(self._devices, _exchange, pairs))
        return deferred, lambda reduced: reduced

    def _zeros(self, index: int, shape: tf.TensorShape, dtype: tf.DType) -> list[tf.Variable]:
        result = []
        for device in self._devices:
            with tf.device(device):
                zeros = tf.zeros(shape, dtype)
                result.append(tf.Variable(zeros, trainable=False, name=f"deferred/{index}"))
        return result


def _untraced(function: Callable[[], _T]) -> _T:
    """Runs a function where no trace is under way, which is in any other thread.

    Within tf.init_scope, tf.function would notice the new variables and trace the whole
    step a second time.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _exchange(pair: tuple[tf.Variable, tf.Tensor]) -> tf.Tensor:
    """The variable's old value; the new one is assigned even if nobody asks for the old."""
    variable, tensor = pair
    old = variable.read_value()
    # A traced function keeps reads and writes of a variable in order by itself. The
    # dependency holds wherever else the ops may end up.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old
