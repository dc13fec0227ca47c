"""All-reduce of gradients by an algorithm for each size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce import registry
from cnnbench.variable_mgr.all_reduce import spec as limits
from cnnbench.variable_mgr.all_reduce.registry import Algorithm
from cnnbench.variable_mgr.all_reduce.spec import (
    LINE_BYTES,
    AlgorithmSpec,
    AllReduceSpec,
    ReduceContext,
    chunk_size,
    leaders_of,
    turns_of,
)
from cnnbench.variable_mgr.gradients import concat

# Chunks of tensors, which algorithms cut, send along hops and join.

# A sum by the memory in which it lies.
Copies: TypeAlias = "Mapping[str, tf.Tensor]"


def chunk_sizes(elements: int, most: int, itemsize: int) -> tuple[int, ...]:
    """Elements of each of at most `most` aligned chunks, of which the last may be shorter."""
    size = chunk_size(elements, most, itemsize)
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ()) or (0,)


class Cut:
    """Cutting and joining of tensors of one shape and dtype; `sizes` are the chunks' elements."""

    def __init__(self, like: tf.Tensor, most: int) -> None:
        self._shape = like.shape
        elements: int = like.shape.num_elements()
        self.sizes = chunk_sizes(elements, most, like.dtype.size)
        # Whole rows of LINE_BYTES bytes can be split by one operation without a copy.
        unit = LINE_BYTES // like.dtype.size
        self._row = unit if elements % unit == 0 else 1

    def __len__(self) -> int:
        return len(self.sizes)

    def flat(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor as a flat view, in which it is split and joined."""
        if len(self.sizes) < 2:
            return tensor
        return tf.reshape(tensor, [-1] if self._row == 1 else [-1, self._row])

    def split(self, flat: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
        """Parts of a flat tensor, by their elements; views where the sizes are aligned."""
        if len(sizes) < 2:
            return [flat]
        if self._row > 1:
            return list(tf.split(flat, [size // self._row for size in sizes]))
        begins = (sum(sizes[:number]) for number in range(len(sizes)))
        return [tf.slice(flat, [begin], [size]) for begin, size in zip(begins, sizes, strict=True)]

    def chunks(self, tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> list[list[tf.Tensor]]:
        """The chunks of each tensor, made on its device."""
        result = []
        for tensor, device in zip(tensors, devices, strict=True):
            with tf.device(device):
                result.append(self.split(self.flat(tensor), self.sizes))
        return result

    def join(
        self, pieces: Mapping[str, Sequence[tf.Tensor]], context: ReduceContext, index: int
    ) -> list[tf.Tensor]:
        """Concatenates the pieces of a tensor, given by memory, once per memory.

        `index` rotates the device that does it. Devices of one memory get the same object.
        """
        devices = context.devices
        first = index % len(devices)
        joined: dict[str, tf.Tensor] = {}
        for device in (*devices[first:], *devices[:first]):
            memory = context.memory_of(device)
            if memory not in joined:
                with tf.device(device):
                    joined[memory] = self._joined(pieces[memory])
        return [joined[context.memory_of(device)] for device in devices]

    def _joined(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        return pieces[0] if len(self.sizes) == 1 else tf.reshape(concat(pieces), self._shape)


def spread(
    total: tf.Tensor, source: str, hops: Iterable[tuple[str, str]], context: ReduceContext
) -> dict[str, tf.Tensor]:
    """Sends a tensor along hops (sender, receiver) in order; the result maps memories to copies."""
    copies = {context.memory_of(source): total}
    for sender, receiver in hops:
        memory = context.memory_of(receiver)
        if memory not in copies:
            with tf.device(receiver):
                copies[memory] = tf.identity(copies[context.memory_of(sender)])
    return copies


def by_memory(sums: Sequence[Copies], context: ReduceContext) -> dict[str, list[tf.Tensor]]:
    """The chunks in the memory of each device."""
    memories = set(map(context.memory_of, context.devices))
    return {memory: [copies[memory] for copies in sums] for memory in memories}


# Reduction of lists of tensors by an all-reduce spec.


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
