"""Phases of a reduction, and their costs over links."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.workload import Tensor

# Adding reads two bytes and writes one, copying reads one and writes one.
_COPY_TO_ADD = 2 / 3


@dataclass(frozen=True)
class NodeLayout:
    """Assignment of devices to nodes; device d is in node d // per_node.

    The devices of a node have a link each; between nodes they share one link. With `per_node` 1
    every device has a network link of its own.
    """

    devices: int
    per_node: int = 1

    @property
    def nodes(self) -> int:
        """Nodes, the last of which may be smaller."""
        return math.ceil(self.devices / self.per_node)

    @property
    def near(self) -> int:
        """Devices of a full node."""
        return min(self.per_node, self.devices)


@dataclass(frozen=True)
class ReductionPhase:
    """Part of a reduction that waits for the part before.

    Messages and bytes are those that pass the busiest device one after another, within its node
    (near) and through the link of its node (far). Near and far bytes move at the same time,
    latencies add up.

    Attributes:
      near_messages, far_messages: number of consecutive latencies.
      near_bytes, far_bytes: consecutive bytes in one direction.
      added: bytes added on the busiest device.
      copied: bytes copied within the memory of the busiest device.
      fixed: further seconds.
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
        return ReductionPhase(*(one + two for one, two in pairs))

    def times(self, count: float) -> ReductionPhase:
        """Every field times a number."""
        return ReductionPhase(*(count * value for value in vars(self).values()))

    def seconds(self, near: Link, far: Link) -> float:
        """Time of this phase."""
        return (
            self.near_messages * near.alpha
            + self.far_messages * far.alpha
            + max(self.near_bytes * near.beta, self.far_bytes * far.beta)
            + (self.added + _COPY_TO_ADD * self.copied) * near.gamma
            + self.fixed
        )


Path = Sequence[ReductionPhase]


def path_seconds(path: Path, near: Link, far: Link) -> float:
    """Seconds of phases that follow each other."""
    return sum(phase.seconds(near, far) for phase in path)


PathOf = Callable[[Tensor, NodeLayout, int], Path]


@dataclass(frozen=True)
class Formula:
    """The cost of one algorithm.

    Attributes:
      path: phases of one tensor, of (tensor, layout, shards).
      cost: the cost of one large tensor in words, for devices with equal links.
      busy: phases for which one tensor occupies a device, where shorter than the path.
      roots: number of devices over which successive tensors rotate, of (layout, shards).
      or_paths: alternatives that the algorithm takes where they are faster.
      traffic: messages and bytes of all devices together; by default n times `busy` or the path.
    """

    path: PathOf
    source: str
    cost: str
    busy: PathOf | None = None
    roots: Callable[[NodeLayout, int], int] = lambda layout, shards: 1
    or_paths: tuple[PathOf, ...] = ()
    traffic: PathOf | None = None
