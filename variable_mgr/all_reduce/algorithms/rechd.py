"""All-reduce by recursive halving and doubling, for any number of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeAlias

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.chunks import ChunkLayout
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import concat


@register("rechd", reads=("all_reduce_share_memory",))
class RecursiveHalvingDoubling:
    """All-reduce: a reduce-scatter with ever smaller parts of a tensor, and then an all-gather.

    The first p ranks take part in the rounds, where p is the largest power of two that is at most
    the number of ranks. If there are more ranks, rank p + r and rank r first add their values, each
    for one half of the tensor, and rank p + r receives the result at the end. The first rounds are
    between devices that share a memory, where whole tensors cost no more than halves. There are
    only as many chunks as memories.
    """

    def __init__(self, context: ReduceContext) -> None:
        context.refuse_shards("rechd")
        self._context = context
        self._ranks = _interleave_memories(context)
        self._power = 1 << (len(context.devices).bit_length() - 1)
        self._chunks = min(self._power, context.num_memories)

    def device_order(self, tensor_index: int = 0) -> list[str]:
        """Returns the devices in rank order for tensor `tensor_index`. Rank r sums chunk r."""
        first = tensor_index % len(self._ranks)
        return [*self._ranks[first:], *self._ranks[:first]]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor; see `Algorithm.__call__`."""
        layout = ChunkLayout(tensors[0], self._chunks)
        order = self.device_order(index)
        value_on = dict(zip(self._context.devices, tensors, strict=True))
        values = []
        for device in order:
            with tf.device(device):
                values.append(layout.flat(value_on[device]))
        chunks = _reduce_scatter(values, layout, order, self._power)
        return layout.join(_all_gather(chunks, order, self._context), self._context, index)


def _interleave_memories(context: ReduceContext) -> list[str]:
    """Returns the devices in an order that alternates between the memories that they use."""
    devices_so_far: Counter[str] = Counter()
    places = []
    for device in context.devices:
        memory = context.memory_of(device)
        places.append(devices_so_far[memory])
        devices_so_far[memory] += 1
    # Sorting is stable, so devices in equal places stay in the order of `context.devices`.
    placed = zip(places, context.devices, strict=True)
    return [device for _, device in sorted(placed, key=itemgetter(0))]


_Part: TypeAlias = "tf.Tensor | None"
"""A part of a tensor; None for ranks beyond the number of chunks."""


def _reduce_scatter(
    values: Sequence[tf.Tensor], layout: ChunkLayout, order: Sequence[str], power: int
) -> list[_Part]:
    """Exchanges and adds halves of tensors until each rank r < `power` has the sum of chunk r."""
    sizes = [*layout.sizes, *[0] * (power - len(layout))]
    parts: list[_Part] = list(values)
    length = power
    while length > 1:
        length //= 2
        halves = []
        for rank, (part, device) in enumerate(zip(parts, order, strict=False)):
            begin = rank % power & -2 * length
            middle, end = begin + length, begin + 2 * length
            with tf.device(device):
                halves.append(
                    _split_part(part, sum(sizes[begin:middle]), sum(sizes[middle:end]), layout)
                )
        for extra in range(power, len(parts)):
            mine, lower = halves[extra], halves[extra - power]
            halves[extra - power] = (
                _add_parts(lower[0], mine[0], order[extra - power]),
                _add_parts(mine[1], lower[1], order[extra]),
            )
        sides = [int(rank & length > 0) for rank in range(power)]
        parts = [
            _add_parts(halves[rank][side], halves[rank ^ length][side], order[rank])
            for rank, side in enumerate(sides)
        ]
    return parts


def _split_part(part: _Part, lower: int, upper: int, layout: ChunkLayout) -> tuple[_Part, _Part]:
    if part is None or upper == 0:
        return part, None
    first, second = layout.split(part, (lower, upper))
    return first, second


def _add_parts(own: _Part, other: _Part, device: str) -> _Part:
    if own is None:
        return None
    with tf.device(device):
        return tf.add(own, other)


def _all_gather(
    chunks: Sequence[_Part], order: Sequence[str], context: ReduceContext
) -> dict[str, list[tf.Tensor]]:
    """Exchanges blocks of 1, 2, 4, ... chunks until every memory contains all chunks, in order."""
    power = len(chunks)
    memories = [context.memory_of(device) for device in order]
    # For each block, given as (memory, number of its first chunk): the tensors of its chunks.
    held = {
        (memory, rank): [] if chunk is None else [chunk]
        for rank, (memory, chunk) in enumerate(zip(memories, chunks, strict=False))
    }
    length = 1
    while length < power:
        for rank, memory in enumerate(memories[:power]):
            partner = rank ^ length
            block = partner & -length
            if (memory, block) not in held:
                sent = held[memories[partner], block]
                held[memory, block] = _send_pieces(sent, order[partner], order[rank])
        doubled = {}
        for rank, memory in enumerate(memories[:power]):
            begin = rank & -2 * length
            if (memory, begin) not in doubled:
                doubled[memory, begin] = held[memory, begin] + held[memory, begin + length]
        held = doubled
        length *= 2
    result = {memory: pieces for (memory, _), pieces in held.items()}
    for extra in range(power, len(order)):
        if memories[extra] not in result:
            pieces = result[memories[extra - power]]
            result[memories[extra]] = _send_pieces(pieces, order[extra - power], order[extra])
    return result


def _send_pieces(pieces: list[tf.Tensor], sender: str, receiver: str) -> list[tf.Tensor]:
    """Sends the tensors of a block of chunks as one message."""
    if not pieces:
        return []
    with tf.device(sender):
        block = concat(pieces)
    with tf.device(receiver):
        return [tf.identity(block)]
