"""All-reduce in two levels: within groups of devices, then between the groups."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce import registry
from cnnbench.variable_mgr.all_reduce.context import ReduceContext


class TwoLevel:
    """Sums within each group, then one value per group, then hands the sum back.

    The device that speaks for its group changes with the index of the tensor.

    Args:
      within: algorithm inside a group.
      between: algorithm between the groups; gets the shards.
      context: all devices, the parameters of both algorithms.
      groups: the devices of `context` in groups, usually one per process.
      shards: for `between`.

    Raises:
      ValueError: an algorithm cannot work with its devices.
    """

    def __init__(
        self,
        within: str,
        between: str,
        context: ReduceContext,
        groups: Sequence[Sequence[str]],
        shards: int,
    ) -> None:
        self._devices = context.devices
        self._groups = [tuple(group) for group in groups]
        self._within = [
            registry.create(within, context.within(group)) if len(group) > 1 else None
            for group in self._groups
        ]
        self._context = context
        self._between_name = between
        self._shards = shards

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """See `Algorithm.__call__`."""
        raise NotImplementedError
