"""Cost of an all-reduce algorithm for one tensor and any number of devices.

A formula counts messages, bytes and additions of an algorithm, as in Hockney's model.
docs/cost_model.md lists all formulas. `cnnbench.lab.predict` applies formulas to tensor lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.variable_mgr.all_reduce.sizes import elements_per_chunk

# Bytes that move in memory for each byte: an addition moves three (two reads, one write), a copy
# two.
_COPY_TO_ADD = 2 / 3


@dataclass(frozen=True)
class Link:
    """Latency and bandwidth of the connection of one device to the other devices.

    Attributes:
      name: name of the preset, or the parameters as the user wrote them.
      alpha: seconds per message.
      beta: seconds per byte, in one direction, of one device.
      gamma: seconds per byte added.
    """

    name: str
    alpha: float
    beta: float
    gamma: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second that one device sends in one direction."""
        return math.inf if self.beta == 0 else 1 / self.beta

    def __str__(self) -> str:
        return (
            f"{self.name}: alpha {1e6 * self.alpha:.4g} us, "
            f"bandwidth {self.bandwidth / 1e9:.4g} GB/s, gamma {1e9 * self.gamma:.3g} ns/B"
        )


@dataclass(frozen=True)
class Tensor:
    """Number and size of the elements of a tensor that is sent. `itemsize` is in bytes."""

    elements: int
    itemsize: int = 4

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.elements * self.itemsize

    def chunks(self, max_chunks: int) -> tuple[int, int]:
        """Returns the number of chunks into which algorithms cut the tensor, and bytes per chunk.

        There are at most `max_chunks` chunks. The last one may have fewer bytes.
        """
        size = elements_per_chunk(self.elements, max_chunks, self.itemsize)
        count = max(1, math.ceil(self.elements / size))
        return count, min(size, self.elements) * self.itemsize


@dataclass(frozen=True)
class NodeLayout:
    """Assignment of devices to nodes. Device d is in node d // per_node.

    Within a node, each device has its own link. Between nodes, the devices of a node share one
    link. With `per_node` 1, every device has its own network link.
    """

    devices: int
    per_node: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes that the devices need; the last node may have fewer devices."""
        return math.ceil(self.devices / self.per_node)

    @property
    def near(self) -> int:
        """Number of devices in each node; the last node may have fewer devices."""
        return min(self.per_node, self.devices)


@dataclass(frozen=True)
class ReductionPhase:
    """Cost of one phase of a reduction, which begins when the previous phase has ended.

    Messages and bytes are counted on the busiest device, where they pass one after another. Near
    messages stay within the device's node. Far messages use the link of the node. Near and far
    bytes move at the same time. Latencies add up.

    Attributes:
      near_messages, far_messages: number of consecutive latencies.
      near_bytes, far_bytes: consecutive bytes in one direction.
      added: bytes added on the busiest device.
      copied: bytes copied within the memory of the busiest device.
      fixed: additional seconds.
    """

    near_messages: float = 0.0
    near_bytes: float = 0.0
    far_messages: float = 0.0
    far_bytes: float = 0.0
    added: float = 0.0
    copied: float = 0.0
    fixed: float = 0.0

    def __add__(self, other: ReductionPhase) -> ReductionPhase:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return ReductionPhase(*(first + second for first, second in pairs))

    def times(self, count: float) -> ReductionPhase:
        """Returns a phase that costs `count` times as much as this phase, in every field."""
        return ReductionPhase(*(count * value for value in vars(self).values()))

    def seconds(self, near: Link, far: Link) -> float:
        """Returns the seconds of this phase with links within (near) and between (far) nodes."""
        return (
            self.near_messages * near.alpha
            + self.far_messages * far.alpha
            + max(self.near_bytes * near.beta, self.far_bytes * far.beta)
            + (self.added + _COPY_TO_ADD * self.copied) * near.gamma
            + self.fixed
        )


Path = Sequence[ReductionPhase]


PathOf = Callable[[Tensor, NodeLayout, int], Path]


@dataclass(frozen=True)
class Formula:
    """Cost formula of one all-reduce algorithm.

    Attributes:
      path: function of (tensor, layout, shards): the phases of reducing one tensor.
      busy: phases during which one tensor occupies a device, if they are shorter than the path.
      roots: function of (layout, shards): number of devices through which the root of successive
        tensors rotates.
      or_paths: alternative paths; the algorithm uses the fastest path.
    """

    path: PathOf
    busy: PathOf | None = None
    roots: Callable[[NodeLayout, int], int] = lambda layout, shards: 1
    or_paths: tuple[PathOf, ...] = ()


def ring_lap(layout: NodeLayout, messages_per_hop: float, bytes_sent: float) -> ReductionPhase:
    """Returns the cost of n - 1 hops along a ring of n devices.

    Each hop has `messages_per_hop` messages. In all hops together, a device sends `bytes_sent`
    bytes. As many hops leave a node as there are nodes.
    """
    hops = layout.devices - 1
    far = min(layout.nodes, hops) if layout.nodes > 1 else 0
    return ReductionPhase(
        near_messages=messages_per_hop * (hops - far),
        near_bytes=bytes_sent if far < hops else 0,
        far_messages=messages_per_hop * far,
        far_bytes=bytes_sent if far else 0,
    )


def star_of(near: int, far: int, size: float) -> ReductionPhase:
    """Returns the cost of a star: one device exchanges `size` bytes with each other device.

    `near` other devices are in the same node, and `far` devices in other nodes.
    """
    return ReductionPhase(near, near * size, far, far * size)


def messages_phase(far: bool, count: float, size: float) -> ReductionPhase:
    """Returns the cost of `count` messages with `size` bytes in total, within or between nodes."""
    return ReductionPhase(0, 0, count, size) if far else ReductionPhase(count, size)


def mixed_messages_phase(
    layout: NodeLayout, messages: float, size: float, leaving: float
) -> ReductionPhase:
    """Returns the cost of several messages with `size` bytes in total.

    The share `leaving` of the messages goes to other nodes.
    """
    near = 1 - leaving
    return ReductionPhase(
        near * messages, near * size, leaving * messages, leaving * size * layout.near
    )


def join_phase(tensor: Tensor, chunks: int) -> ReductionPhase:
    """Returns the cost of the copy that joins the chunks of a tensor."""
    return ReductionPhase(copied=tensor.bytes if chunks > 1 else 0)


def round_trip_phases(move: ReductionPhase, added: float, tensor: Tensor, chunks: int) -> Path:
    """Returns the phases of moving and adding chunks, moving the sums back, and joining them."""
    return (move + ReductionPhase(added=added), move, join_phase(tensor, chunks))
