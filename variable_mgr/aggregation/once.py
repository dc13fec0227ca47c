"""The same op on the same tensor, made once."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class Once:
    """Applies a function to tensors, only once to each of them on each device.

    Towers may be given the very same tensor object. Use one instance per traced list
    of tensors: it holds them, so that no identity can be taken for another's.
    """

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._function = function
        self._results: dict[tuple[int, str], tuple[tf.Tensor, tf.Tensor]] = {}

    def __call__(self, tensor: tf.Tensor, device: str) -> tf.Tensor:
        """The result for `tensor`, made on `device`."""
        key = (id(tensor), device)
        if key not in self._results:
            with tf.device(device):
                self._results[key] = (tensor, self._function(tensor))
        return self._results[key][1]
