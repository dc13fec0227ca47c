"""What limits a reduction on an interconnect: latencies, bytes and additions in sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.predict.links import Link
from cnnbench.predict.workload import Additive

# Adding reads two bytes and writes one, copying reads one and writes one.
_COPY_TO_ADD = 2 / 3


@dataclass(frozen=True)
class Layout:
    """How devices share nodes; device d sits in node d // per_node.

    Attributes:
      devices: how many reduce together.
      per_node: devices per node, connected by a link each; between nodes, all devices of a
        node share one link. 1: every device has a network link of its own.
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
class Phase(Additive):
    """Part of a reduction that waits for the part before.

    Messages and bytes are those that pass the busiest device one after another, within its
    node (near) and through the link of its node (far). Near and far bytes move at the same
    time, latencies add up.

    Attributes:
      near_messages, far_messages: latencies in a row.
      near_bytes, far_bytes: bytes in a row, in one direction.
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

    def coefficients(self) -> tuple[float, float, float]:
        """What alpha, beta and gamma are multiplied by where near and far links are alike."""
        return (
            self.near_messages + self.far_messages,
            max(self.near_bytes, self.far_bytes),
            self.added + _COPY_TO_ADD * self.copied,
        )

    def seconds(self, near: Link, far: Link) -> float:
        """Time of this phase on such links."""
        return (
            self.near_messages * near.alpha
            + self.far_messages * far.alpha
            + max(self.near_bytes * near.beta, self.far_bytes * far.beta)
            + (self.added + _COPY_TO_ADD * self.copied) * near.gamma
            + self.fixed
        )


Path = Sequence[Phase]


def path_seconds(path: Path, near: Link, far: Link) -> float:
    """Time of phases that follow each other."""
    return sum(phase.seconds(near, far) for phase in path)
