"""--staged_vars: a step computes with the values that the step before read.

Copying a variable to the devices that compute with it then overlaps with the step before,
instead of standing at the beginning of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.gradients import cast
from cnnbench.variable_mgr.kept import exchange, traced_graph, untraced


class Staging:
    """One kept value per device, variable and dtype, made when a step first asks for it.

    Further traces use the same ones. Tensors belong to the trace that made them.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, tf.DType], tuple[tf.Variable, tf.Variable]] = {}
        self._graph: tf.Graph | None = None
        self._values: dict[tuple[str, str, tf.DType], tf.Tensor] = {}

    def value(
        self,
        device: str,
        variable: tf.Variable,
        dtype: tf.DType,
        read: Callable[[], tf.Tensor],
    ) -> tf.Tensor:
        """What the step before read; call it inside the traced step, before any update.

        Args:
          device: full string of the device that asks.
          variable: whose value.
          dtype: of the value.
          read: the current value as `dtype`, which is kept for the next step.
        """
        graph = traced_graph()
        if graph is not self._graph:
            self._graph, self._values = graph, {}
        key = (device, variable.name, dtype)
        if key not in self._values:
            if key not in self._kept:
                kept = untraced(lambda: _copy(device, variable, dtype))
                self._kept[key] = (variable, kept)
            with tf.device(device):
                self._values[key] = exchange(self._kept[key][1], read())
        return self._values[key]

    def refill(self) -> None:
        """Forgets what was read: the next step computes with the values of now (eagerly)."""
        for (device, _, dtype), (variable, kept) in self._kept.items():
            with tf.device(device):
                kept.assign(cast(tower_variable.read(variable), dtype), read_value=False)


def _copy(device: str, variable: tf.Variable, dtype: tf.DType) -> tf.Variable:
    with tf.device(device):
        value = cast(tower_variable.read(variable), dtype)
        return tf.Variable(value, trainable=False, name=f"staged/{variable.name.split(':')[0]}")
