"""Tensors of one trace, and variables, made in a trace, that carry a tensor to the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

_T = TypeVar("_T")


def untraced(function: Callable[[], _T]) -> _T:
    """Runs a function in another thread, where no trace is active.

    Within tf.init_scope, tf.function would notice new variables and trace the whole step twice.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def traced_graph() -> tf.Graph:
    """The graph being traced, found by an unused constant."""
    return tf.constant(0, name="traced_graph").graph


class PerTrace:
    """Tensors by key, kept while one function is traced; the next function begins without any."""

    def __init__(self) -> None:
        self._graph: tf.Graph | None = None
        self._values: dict[Any, tf.Tensor] = {}

    def here(self) -> dict[Any, tf.Tensor]:
        """The tensors of the function that is being traced; the caller adds new ones."""
        graph = traced_graph()
        if graph is not self._graph:
            self._graph, self._values = graph, {}
        return self._values

    def forget(self) -> None:
        """Drops the function and its tensors."""
        self._graph, self._values = None, {}


def exchange(variable: tf.Variable, tensor: tf.Tensor) -> tf.Tensor:
    """The variable's old value; the new one is assigned even if the old is unused."""
    old = variable.read_value()
    # A traced function orders reads and writes of a variable by itself. The explicit dependency
    # holds in other graphs too.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old
