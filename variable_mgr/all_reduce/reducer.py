"""Reduces lists of tensors as an all-reduce spec says."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce import registry
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import Algorithm
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec
from cnnbench.variable_mgr.all_reduce.two_level import TwoLevel


class Reducer:
    """Sums each of many tensors over the devices, by the algorithm for its size.

    Args:
      spec: which algorithm reduces tensors of which size.
      context: the devices; its `shards` is set by the spec.
      groups: the devices in groups, for algorithms of two levels.
      merge_scope: so many consecutive tensors share a name scope, which only groups the
        names of their operations. TensorFlow's scoped allocator, which would make one of
        the collectives of a scope, stays off: see docs/aggregation.md.

    Raises:
      FlagError: an algorithm of the spec cannot work with these devices.
    """

    def __init__(
        self,
        spec: AllReduceSpec,
        context: ReduceContext,
        groups: Sequence[Sequence[str]],
        merge_scope: int = 1,
    ) -> None:
        self._spec = spec
        self._merge_scope = merge_scope
        self._algorithms: list[Algorithm] = []
        # One device has nothing to reduce, whatever the algorithm would say to it.
        if len(context.devices) > 1:
            for index, part in enumerate(spec.ranges):
                try:
                    self._algorithms.append(_create(part.algorithm, context, groups))
                except ValueError as error:
                    raise spec.error(index, str(error)) from error

    def __call__(self, columns: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Sums each tensor.

        Args:
          columns: columns[i][t] is tensor i on device t; dtype and static shape of
            tensor i are the same on all devices.

        Returns:
          sums[i][t] for device t; a tensor that several devices are given is the same
          object for all of them.
        """
        if not self._algorithms:
            return [list(column) for column in columns]
        places = self._places(columns)
        sums: list[list[tf.Tensor]] = [[] for _ in columns]
        # Backward passes end with the first layers. What takes its turn in the order of
        # tracing, such as collectives, shall begin with the gradients that are there first.
        for number in reversed(range(len(columns))):
            which, index = places[number]
            # A name that ends in "/" is taken as it is, so the scope can be entered again.
            with tf.name_scope(f"allreduce_{number // self._merge_scope}/"):
                sums[number] = self._algorithms[which](columns[number], index)
        return sums

    def _places(self, columns: Sequence[Sequence[tf.Tensor]]) -> list[tuple[int, int]]:
        """For each tensor its range and its position among the tensors of that range."""
        counts = [0] * len(self._algorithms)
        places = []
        for tensors in columns:
            which = self._spec.range_of(_bytes(tensors[0]))
            places.append((which, counts[which]))
            counts[which] += 1
        return places


def _create(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> Algorithm:
    if len(algorithm.levels) == 1:
        return registry.create(
            algorithm.levels[0], context.within(context.devices, algorithm.shards)
        )
    within, between = algorithm.levels
    return TwoLevel(within, between, context, groups, algorithm.shards)


def _bytes(tensor: tf.Tensor) -> int:
    elements: int = tensor.shape.num_elements()
    return elements * int(tensor.dtype.size)
