"""Variables that carry a tensor from one step to the next, made while the step is traced."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

_T = TypeVar("_T")


def untraced(function: Callable[[], _T]) -> _T:
    """Runs a function where no trace is under way, which is in any other thread.

    Within tf.init_scope, tf.function would notice the new variables and trace the whole
    step a second time.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def traced_graph() -> tf.Graph:
    """The graph being traced. An unused constant tells, and costs nothing at run time."""
    return tf.constant(0, name="traced_graph").graph


def exchange(variable: tf.Variable, tensor: tf.Tensor) -> tf.Tensor:
    """The variable's old value; the new one is assigned even if nobody asks for the old."""
    old = variable.read_value()
    # A traced function keeps reads and writes of a variable in order by itself. The
    # dependency holds wherever else the ops may end up.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old
