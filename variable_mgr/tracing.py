"""Caches of tensors during one trace, and variables that store a tensor until the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from cnnbench import lazy_tensorflow as tf

_T = TypeVar("_T")


def run_untraced(function: Callable[[], _T]) -> _T:
    """Runs a function in another thread, in which TensorFlow traces no function.

    tf.init_scope is not used: if variables are created in it, tf.function traces the whole step a
    second time.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def current_traced_graph() -> tf.Graph:
    """Returns the graph that is being traced, by creating an unused constant in it."""
    return tf.constant(0, name="traced_graph").graph


class PerTraceCache:
    """A cache of tensors of the function that is being traced, by any key.

    The cache is emptied when another function is traced.
    """

    def __init__(self) -> None:
        self._graph: tf.Graph | None = None
        self._values: dict[Any, tf.Tensor] = {}

    def tensors_of_trace(self) -> dict[Any, tf.Tensor]:
        """Returns the cached tensors of the function that is being traced, to read or add to."""
        graph = current_traced_graph()
        if graph is not self._graph:
            self._graph, self._values = graph, {}
        return self._values

    def clear(self) -> None:
        """Empties the cache."""
        self._graph, self._values = None, {}


def assign_and_return_old(variable: tf.Variable, tensor: tf.Tensor) -> tf.Tensor:
    """Assigns a new value to a variable and returns the old value.

    The assignment runs even if the old value is unused.
    """
    old = variable.read_value()
    # Outside of tf.function, TensorFlow may reorder a read and a write of a variable, so
    # dependencies are added.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old
