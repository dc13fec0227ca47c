"""Cost formulas of all-reduce algorithms, per tensor, for any number of devices.

Every formula returns the path of one tensor of s bytes: the sequence of messages, bytes and
additions (see `ReductionPhase`). In Hockney's terms the cost is then messages * alpha + bytes *
beta + added * gamma. ``n`` devices, ``k`` shards. Every algorithm but copying cuts a tensor into
chunks of 16 KiB or more, so a small tensor is one chunk, and joins them with a copy in the end.

Of several tensors:

* Where a tensor is added on one device, the devices add tensors in turn, and the cost is that of
the busiest device (`Formula.roots`).
* Elsewhere tensors follow each other closely: the cost is the path of the slowest one, and for the
others the time that they occupy a device (`Formula.busy`): the messages and bytes of all devices
over n, as every tensor begins on another device.

Whole lists of tensors and specs: `cnnbench.lab.predict.interconnect`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from cnnbench.variable_mgr.all_reduce import registry
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    NodeLayout,
    Path,
    PathOf,
    ReductionPhase,
    Tensor,
    ring_lap,
    star_of,
)

# NCCL's own model (src/graph/tuning.cc, commit 5067397): a call costs 8.4 us and more with
# its protocol for large messages ("Simple", whose latencies the presets of links have).
# Its protocol for small ones ("LL") costs 6.6 us, has a fifth of the latency (NVLink 0.6 of
# 3.4 us, PCIe 1.0 of 5.7, network 2.7 of 14) and moves four bytes for each of the tensor.
_NCCL_CALL = 8.4e-6
_NCCL_CALL_LL = 6.6e-6
_LL_LATENCY = 0.19
_LL_BYTES = 4


def _copy(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Every other device sends to the root, which adds and sends the sum to each of them."""
    star = star_of(layout.near - 1, layout.devices - layout.near, tensor.bytes)
    return (star + ReductionPhase(added=(layout.devices - 1) * tensor.bytes), star)


def _hierarchical_copy(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Two halves add on a device each; these two exchange and serve their halves."""
    size = tensor.bytes
    half = math.ceil(layout.devices / 2)
    near = min(layout.near, half)
    gather = star_of(near - 1, half - near, size)
    across = _message(layout.nodes > 1, size)
    return (
        gather + ReductionPhase(added=(half - 1) * size),
        across + ReductionPhase(added=size),
        across,
        gather,
    )


def _ring(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """n-1 hops that add, n-1 that distribute the sums; k rings at once.

    A device passes on one chunk per ring and hop. Of the hops of one lap, as many leave a node as
    there are nodes.
    """
    count, size = tensor.chunks(layout.devices * shards)
    at_once = max(1.0, count / layout.devices)
    moved = (layout.devices - 1) * at_once * size
    lap = ring_lap(layout, at_once, moved)
    return _there_and_back(lap, moved, tensor, count)


def _ring_busy(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Every chunk makes n-1 hops in each of two laps, spread over n devices."""
    share = (layout.devices - 1) / layout.devices
    chunks, _ = tensor.chunks(layout.devices * shards)
    lap = _messages(layout.nodes > 1, share * chunks, share * tensor.bytes)
    return _there_and_back(lap, share * tensor.bytes, tensor, chunks)


def _halving_doubling(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """log2 p exchanges of half, a quarter, ... and back, p the largest power of two up to n.

    Partners are half of the devices apart first, neighbours last. Each device beyond p first shares
    its additions with a partner, half of the tensor each, and receives the result in the end. The
    partner continues with its own half, unless there are more than p/2 such devices.
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
        message = _message(far, piece, layout.near)
        halving.append(message + ReductionPhase(added=piece))
        doubling.append(message + ReductionPhase(copied=piece if step < steps else 0))
    before: tuple[ReductionPhase, ...] = ()
    after: tuple[ReductionPhase, ...] = ()
    if extra:
        sharing = min(extra, layout.near)
        half = min(tensor.bytes, power // 2 * size)
        shared = _message(layout.nodes > 1, half, sharing)
        fetched = shared if extra > power // 2 else ReductionPhase()
        before = (shared + ReductionPhase(added=half), fetched)
        after = (_message(layout.nodes > 1, tensor.bytes, sharing),)
    return (*before, *halving, *reversed(doubling), *after, _join(tensor, count))


def _halving_doubling_busy(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """The messages of all devices over n: in a round, a device takes part if it has a chunk.

    As every tensor's ranks begin at another device, partners d apart are in two nodes of m devices
    in d of m cases.
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
        rounds += _partly_far(layout, messages, size, leaving)
        added += size
    extra = (layout.devices - power) / layout.devices
    sharing = layout.near if layout.nodes > 1 else 1
    # A tensor of so few chunks that one of its halves is empty goes as a whole.
    halves = 2 if chunks > power // 2 else 1
    fetched = max(0, layout.devices - power - power // 2) / layout.devices * (halves - 1)
    fold = _messages(
        layout.nodes > 1,
        halves * extra + fetched,
        (extra + 0.5 * fetched) * tensor.bytes * sharing,
    )
    unfold = _messages(layout.nodes > 1, extra, extra * tensor.bytes * sharing)
    return (
        rounds + fold + ReductionPhase(added=added + extra * tensor.bytes),
        rounds + unfold,
        _join(tensor, chunks),
    )


def _tree(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Each half of the tensor moves up a binary tree and down again, k chunks in a row."""
    levels = layout.devices.bit_length() - 1
    near_levels = min(levels, layout.near.bit_length() - 1) if layout.nodes > 1 else 0
    if layout.nodes == 1:
        near_levels = levels
    far_levels = levels - near_levels
    children = min(2, layout.devices - 1)
    count, size = tensor.chunks(2 * shards)
    behind = math.ceil(count / 2) - 1
    near = children * (near_levels + (behind if not far_levels else 0))
    far = children * (far_levels + (behind if far_levels else 0))
    climb = ReductionPhase(near, near * size) + ReductionPhase(
        far_messages=far, far_bytes=far * size
    )
    return _there_and_back(climb, (near + far) * size, tensor, count)


def _tree_busy(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Every chunk goes up and down the n-1 edges of its tree, spread over n devices.

    Of the edges, half span one device, a quarter two, and so on. As every tensor's tree begins at
    another device, one that spans d of the m devices of a node leaves it in d of m cases.
    """
    share = (layout.devices - 1) / layout.devices
    chunks, _ = tensor.chunks(2 * shards)
    leaving = 0.0
    if layout.nodes > 1:
        spans = [2**level for level in range(layout.devices.bit_length())]
        edges = sum(1 / span for span in spans)
        leaving = sum(min(1.0, span / layout.near) / span for span in spans) / edges
    climb = _partly_far(layout, share * chunks, share * tensor.bytes, leaving)
    return _there_and_back(climb, share * tensor.bytes, tensor, chunks)


def _shuffle(tensor: Tensor, layout: NodeLayout, shards: int, on_tower: bool = True) -> Path:
    """k devices, or the CPUs of k nodes, gather and add a shard each and send it back."""
    count, size = tensor.chunks(shards)
    near, far = layout.near - on_tower, layout.devices - layout.near
    # A gatherer receives its shard from every device; a device sends to every gatherer.
    gatherer = star_of(near, far, size)
    sender = _messages(layout.nodes > 1, count, tensor.bytes)
    move = gatherer if near + far >= count else sender
    return _there_and_back(move, (layout.devices - 1) * size, tensor, count)


def _nccl_ring(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """NCCL's ring cuts a tensor of any size into n chunks, and joins without a copy."""
    moved = (layout.devices - 1) * tensor.bytes / layout.devices
    lap = ring_lap(layout, 1, moved)
    return (lap + ReductionPhase(added=moved), lap, ReductionPhase(fixed=_NCCL_CALL))


def _nccl_tree(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """NCCL's pipelined double binary tree between nodes, chains within them.

    Up and down at once, each device sends and receives the tensor twice.
    """
    near_hops = layout.near - 1
    far_hops = math.ceil(math.log2(layout.nodes))
    size = 2 * tensor.bytes
    return (
        ReductionPhase(
            2 * near_hops,
            size if near_hops else 0,
            2 * far_hops,
            size if far_hops else 0,
            added=size,
            fixed=_NCCL_CALL,
        ),
    )


def _collective(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """TensorFlow's ring: n chunks per subdivision for any size; the input is copied first."""
    moved = (layout.devices - 1) * tensor.bytes / layout.devices
    lap = ring_lap(layout, shards, moved)
    return (ReductionPhase(copied=tensor.bytes), lap + ReductionPhase(added=moved), lap)


def _low_latency(path: PathOf) -> PathOf:
    """A path of NCCL with its protocol for small messages."""

    def small(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
        return [
            replace(
                one,
                near_messages=_LL_LATENCY * one.near_messages,
                near_bytes=_LL_BYTES * one.near_bytes,
                far_messages=_LL_LATENCY * one.far_messages,
                far_bytes=_LL_BYTES * one.far_bytes,
                fixed=_NCCL_CALL_LL if one.fixed else 0,
            )
            for one in path(tensor, layout, shards)
        ]

    return small


def _partly_far(layout: NodeLayout, messages: float, size: float, leaving: float) -> ReductionPhase:
    """Messages of `size` bytes in all, of which the share `leaving` leaves its node."""
    near = 1 - leaving
    return ReductionPhase(
        near * messages, near * size, leaving * messages, leaving * size * layout.near
    )


def _there_and_back(move: ReductionPhase, added: float, tensor: Tensor, chunks: int) -> Path:
    """Chunks are moved and added, their sums moved the same way, and joined in the end."""
    return (move + ReductionPhase(added=added), move, _join(tensor, chunks))


def _join(tensor: Tensor, chunks: int) -> ReductionPhase:
    return ReductionPhase(copied=tensor.bytes if chunks > 1 else 0)


def _messages(far: bool, count: float, size: float) -> ReductionPhase:
    return ReductionPhase(0, 0, count, size) if far else ReductionPhase(count, size)


def _message(far: bool, size: float, sharing: int = 1) -> ReductionPhase:
    """One message; `sharing` devices of a node send theirs through the same link at once."""
    return _messages(far, 1, sharing * size if far else size)


FORMULAS: dict[str, Formula] = {
    "copy": Formula(_copy, roots=lambda layout, shards: layout.devices),
    "hierarchical_copy": Formula(
        _hierarchical_copy, roots=lambda layout, shards: max(1, layout.devices // 2)
    ),
    "xring": Formula(_ring, busy=_ring_busy),
    "collective": Formula(_collective),
    "rechd": Formula(_halving_doubling, busy=_halving_doubling_busy),
    "tree": Formula(_tree, busy=_tree_busy),
    "psgpu": Formula(_shuffle, roots=lambda layout, shards: math.ceil(layout.devices / shards)),
    "pscpu": Formula(
        partial(_shuffle, on_tower=False),
        roots=lambda layout, shards: math.ceil(layout.nodes / shards),
    ),
    "nccl": Formula(
        _nccl_ring,
        or_paths=(_nccl_tree, _low_latency(_nccl_ring), _low_latency(_nccl_tree)),
    ),
}
"""Formulas by the name of the algorithm in a spec; docs/cost_model.md has their sources."""


def formulas() -> dict[str, Formula]:
    """`FORMULAS`, which need no TensorFlow, and those that other algorithms are registered with."""
    return {**FORMULAS, **registry.costs(FORMULAS)}


SPREAD = Formula(
    lambda tensor, layout, shards: (star_of(layout.devices - 1, 0, tensor.bytes),),
    roots=lambda layout, shards: layout.devices,
)
"""The last step of two levels: (m-1)(alpha + s beta), on one of m devices of a node in turn."""
