"""Reduction of lists of tensors by an all-reduce spec."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce import limits, registry
from cnnbench.variable_mgr.all_reduce.context import (
    ReduceContext,
    leaders_of,
    turns_of,
)
from cnnbench.variable_mgr.all_reduce.registry import Algorithm
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec


class Reducer:
    """Sums each of many tensors over the devices, by the algorithm for its size.

    Args:
      context: the devices; the spec sets its `shards`.
      merge_scope: number of consecutive tensors that share a name scope, which only groups the
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
        # One device has nothing to reduce, with any algorithm.
        if len(context.devices) > 1:
            limits.check_spec(spec, context, groups)
            for index, part in enumerate(spec.ranges):
                try:
                    self._algorithms.append(_create(part.algorithm, context, groups))
                except ValueError as error:
                    raise spec.error(index, str(error)) from error

    def __call__(self, columns: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Sums each tensor i over devices t, from columns[i][t] to sums[i][t].

        Dtype and static shape of tensor i are the same on all devices. Devices that share a sum get
        the same object.
        """
        if not self._algorithms:
            return [list(column) for column in columns]
        places = self._places(columns)
        sums: list[list[tf.Tensor]] = [[] for _ in columns]
        # Backward passes end with the first layers. Reductions that run in the order of tracing,
        # such as collectives, should start with the gradients that are available first.
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
            size = tensors[0].shape.num_elements() * tensors[0].dtype.size
            which = self._spec.range_of(size)
            places.append((which, counts[which]))
            counts[which] += 1
        return places


def _create(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> Algorithm:
    if len(algorithm.levels) == 2:
        return TwoLevel(*algorithm.levels, context, groups, algorithm.shards)
    return registry.create(algorithm.levels[0], context.within(context.devices, algorithm.shards))


class TwoLevel:
    """Sums within each group, then between groups, then sends the sum to each group.

    The leader of a group rotates with the index of the tensor. `within` makes the sum of the group
    for all of its devices; TensorFlow prunes operations for unused results, except of algorithms
    whose devices wait for each other (`registry.runs_together`).

    Args:
      groups: the devices of `context` in groups, usually one per process. Their sizes
        may differ. A single group leaves nothing to do for `between`.
    """

    def __init__(
        self,
        within: str,
        between: str,
        context: ReduceContext,
        groups: Sequence[Sequence[str]],
        shards: int,
    ) -> None:
        self._devices = context.own_devices
        # A group lies in one process; only the groups of this one are reduced here.
        self._groups = [group for group in groups if {*group} <= {*self._devices}]
        self._within = [
            registry.create(within, context.part(group)) if len(group) > 1 else None
            for group in self._groups
        ]
        # One algorithm for the leaders of each turn.
        leaders = [leaders_of(groups, turn) for turn in range(turns_of(groups))]
        made = {
            one: registry.create(between, context.part(one, shards))
            for one in dict.fromkeys(leaders if len(groups) > 1 else ())
        }
        self._between = [made[one] for one in leaders if made]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """See `Algorithm.__call__`; the devices of a group share the sum."""
        of_device = dict(zip(self._devices, tensors, strict=True))
        sums: list[list[tf.Tensor]] = []
        for group, algorithm in zip(self._groups, self._within, strict=True):
            values = [of_device[device] for device in group]
            sums.append(values if algorithm is None else algorithm(values, index))
        if not self._between:
            return self._in_order(sums)
        later, turn = divmod(index, len(self._between))
        by_leaders = [
            _of_leader(group, values, turn % len(group), algorithm)
            for group, values, algorithm in zip(self._groups, sums, self._within, strict=True)
        ]
        # `between` rotates after all leaders have had their turn, so that every device gets every
        # role in time.
        totals = self._between[turn](by_leaders, later)
        return self._in_order(
            [[total] * len(group) for total, group in zip(totals, self._groups, strict=True)]
        )

    def _in_order(self, by_group: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        of_device = {
            device: value
            for group, values in zip(self._groups, by_group, strict=True)
            for device, value in zip(group, values, strict=True)
        }
        return [of_device[device] for device in self._devices]


def _of_leader(
    group: Sequence[str],
    values: Sequence[tf.Tensor],
    leader: int,
    algorithm: Algorithm | None,
) -> tf.Tensor:
    """The leader's value, which waits for the group's other values if they run together."""
    if algorithm is None or not registry.runs_together(algorithm):
        return values[leader]
    others = [*values[:leader], *values[leader + 1 :]]
    with tf.device(group[leader]), tf.control_dependencies(others):
        return tf.identity(values[leader])
