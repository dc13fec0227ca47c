"""All-reduce of gradients with the algorithms of --all_reduce_spec, by size of the tensor."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.check import check_spec
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, leaders_by_rotation
from cnnbench.variable_mgr.all_reduce.registry import Algorithm, create, must_use_all_results
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec


class AllReducer:
    """Sums tensors over devices, each tensor with the algorithm that a spec selects for its size.

    Args:
      context: the devices; the spec sets its `shards`.
      merge_scope: number of consecutive tensors that share a name scope. The scope only groups the
        names of operations. TensorFlow's scoped allocator, which would merge the collectives of a
        scope, stays off: see docs/aggregation.md.

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
        # With one device, no algorithm runs, so even an algorithm that does not support the device
        # is accepted.
        if len(context.devices) > 1:
            check_spec(spec, context, groups)
            for index, part in enumerate(spec.ranges):
                try:
                    self._algorithms.append(_create_algorithm(part.algorithm, context, groups))
                except ValueError as error:
                    raise spec.error(index, str(error)) from error

    def __call__(self, columns: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Sums each tensor i over all devices t, from columns[i][t] to sums[i][t].

        Dtype and static shape of tensor i are the same on all devices. Devices that share a sum get
        the same object.
        """
        if not self._algorithms:
            return [list(column) for column in columns]
        places = self._range_positions(columns)
        sums: list[list[tf.Tensor]] = [[] for _ in columns]
        # Some reductions, such as collectives, run in the order in which they are traced. The
        # gradients of the last layers are computed first, so their reductions are traced first.
        for number in reversed(range(len(columns))):
            which, index = places[number]
            # With the final "/", TensorFlow enters the same name scope again instead of creating a
            # numbered one.
            with tf.name_scope(f"allreduce_{number // self._merge_scope}/"):
                sums[number] = self._algorithms[which](columns[number], index)
        return sums

    def _range_positions(self, columns: Sequence[Sequence[tf.Tensor]]) -> list[tuple[int, int]]:
        """Returns the index of each tensor's size range, and the tensor's position in the range."""
        counts = [0] * len(self._algorithms)
        places = []
        for tensors in columns:
            size = tensors[0].shape.num_elements() * tensors[0].dtype.size
            which = self._spec.range_index(size)
            places.append((which, counts[which]))
            counts[which] += 1
        return places


def _create_algorithm(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> Algorithm:
    if len(algorithm.levels) == 2:
        return TwoLevelAllReduce(*algorithm.levels, context, groups, algorithm.shards)
    return create(algorithm.levels[0], context.with_devices(context.devices, algorithm.shards))


class TwoLevelAllReduce:
    """Two-level all-reduce: sums within each group of devices, and then between groups.

    Then the sum is sent to each group. The leader of a group rotates with the index of the tensor.
    `within` computes the group's sum for all devices of the group. TensorFlow removes operations
    whose results are unused. This is not allowed for algorithms whose devices wait for each other
    (`must_use_all_results`), so their results are all used.

    Args:
      groups: the devices of `context` in groups, usually one group per process. Sizes may differ.
        With a single group, `between` has nothing to do.
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
        # Each group of devices is in one process, and each process reduces only its own groups.
        self._groups = [group for group in groups if {*group} <= {*self._devices}]
        self._within = [
            create(within, context.for_members(group)) if len(group) > 1 else None
            for group in self._groups
        ]
        # The leaders rotate, and the algorithm between groups is created for given leaders, so
        # there is one for each rotation.
        leaders = leaders_by_rotation(groups)
        by_leader = {
            leader: create(between, context.for_members(leader, shards))
            for leader in dict.fromkeys(leaders if len(groups) > 1 else ())
        }
        self._between = [by_leader[leader] for leader in leaders if by_leader]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor, with one sum for each group of devices; see `Algorithm.__call__`."""
        of_device = dict(zip(self._devices, tensors, strict=True))
        sums: list[list[tf.Tensor]] = []
        for group, algorithm in zip(self._groups, self._within, strict=True):
            values = [of_device[device] for device in group]
            sums.append(values if algorithm is None else algorithm(values, index))
        if not self._between:
            return self._in_device_order(sums)
        round_index, rotation = divmod(index, len(self._between))
        by_leaders = [
            _leader_result(group, values, rotation % len(group), algorithm)
            for group, values, algorithm in zip(self._groups, sums, self._within, strict=True)
        ]
        # The index advances only after each device of a group has been the leader, so that all
        # devices get equal work.
        totals = self._between[rotation](by_leaders, round_index)
        return self._in_device_order(
            [[total] * len(group) for total, group in zip(totals, self._groups, strict=True)]
        )

    def _in_device_order(self, by_group: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        of_device = {
            device: value
            for group, values in zip(self._groups, by_group, strict=True)
            for device, value in zip(group, values, strict=True)
        }
        return [of_device[device] for device in self._devices]


def _leader_result(
    group: Sequence[str],
    values: Sequence[tf.Tensor],
    leader: int,
    algorithm: Algorithm | None,
) -> tf.Tensor:
    """Returns the sum over a group of devices, as a tensor on the group's leader.

    If the group's operations run together, the result depends on all values of the group.
    """
    if algorithm is None or not must_use_all_results(algorithm):
        return values[leader]
    other_values = [*values[:leader], *values[leader + 1 :]]
    with tf.device(group[leader]), tf.control_dependencies(other_values):
        return tf.identity(values[leader])
