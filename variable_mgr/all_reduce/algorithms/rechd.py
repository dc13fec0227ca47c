"""All-reduce by recursive halving and doubling, for any number of devices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeAlias

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.chunks import ChunkLayout
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    NodeLayout,
    Path,
    ReductionPhase,
    Tensor,
    join_phase,
    messages_phase,
    mixed_messages_phase,
)
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import concat


def _phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases: devices exchange a half, a quarter, ... of the tensor, and then the sums in reverse
    order.

    Halving and doubling take log2 p rounds each, where p is the largest power of two up to n.

    In the first exchange, the distance between partners is half of the devices; in the last
    exchange, partners are neighbours. Each device beyond p first divides the additions with a
    partner: both add half of the tensor. It receives the result at the end. The partner continues
    with only its own half, unless there are more than p/2 devices beyond p.
    """
    steps = layout.devices.bit_length() - 1
    power = 2**steps
    extra = layout.devices - power
    count, size = tensor.chunks(power)
    halving, doubling = [], []
    for step in range(1, steps + 1):
        distance = power >> step
        piece = min(tensor.bytes, distance * size)
        far = layout.nodes > 1 and distance >= layout.near
        message = _message_phase(far, piece, layout.near)
        halving.append(message + ReductionPhase(added=piece))
        doubling.append(message + ReductionPhase(copied=piece if step < steps else 0))
    before: tuple[ReductionPhase, ...] = ()
    after: tuple[ReductionPhase, ...] = ()
    if extra:
        sharing = min(extra, layout.near)
        half = min(tensor.bytes, power // 2 * size)
        shared = _message_phase(layout.nodes > 1, half, sharing)
        fetched = shared if extra > power // 2 else ReductionPhase()
        before = (shared + ReductionPhase(added=half), fetched)
        after = (_message_phase(layout.nodes > 1, tensor.bytes, sharing),)
    return (*before, *halving, *reversed(doubling), *after, join_phase(tensor, count))


def _message_phase(far: bool, size: float, sharing: int) -> ReductionPhase:
    """Returns the cost of a message; if `far`, `sharing` devices of a node share the link."""
    return messages_phase(far, 1, sharing * size if far else size)


def _device_load(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases for which one tensor keeps a device busy, so that other tensors must wait.

    They are the messages of all devices divided by n. Only devices with a chunk take part in a
    round.

    The ranks of each tensor begin at a different device. Therefore, with m devices per node,
    partners at distance d are in different nodes in d of m cases.
    """
    steps = layout.devices.bit_length() - 1
    power = 2**steps
    chunks, _ = tensor.chunks(power)
    rounds, added = ReductionPhase(), 0.0
    for step in range(1, steps + 1):
        block = power >> step
        messages = block * math.ceil(chunks / block) / layout.devices
        size = block * tensor.bytes / layout.devices
        leaving = min(1.0, block / layout.near) if layout.nodes > 1 else 0.0
        rounds += mixed_messages_phase(layout, messages, size, leaving)
        added += size
    extra = (layout.devices - power) / layout.devices
    sharing = layout.near if layout.nodes > 1 else 1
    # With so few chunks, one half would be empty, so the tensor is sent as a whole.
    halves = 2 if chunks > power // 2 else 1
    fetched = max(0, layout.devices - power - power // 2) / layout.devices * (halves - 1)
    fold = messages_phase(
        layout.nodes > 1,
        halves * extra + fetched,
        (extra + 0.5 * fetched) * tensor.bytes * sharing,
    )
    unfold = messages_phase(layout.nodes > 1, extra, extra * tensor.bytes * sharing)
    return (
        rounds + fold + ReductionPhase(added=added + extra * tensor.bytes),
        rounds + unfold,
        join_phase(tensor, chunks),
    )


@register("rechd", cost=Formula(_phases, busy=_device_load), reads=("all_reduce_share_memory",))
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
