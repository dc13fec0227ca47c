"""What is measured: every algorithm with every packing, and the peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from cnnbench.errors import FlagError
from cnnbench.flags.groups.allreduce import words
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec, Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to reduce.

    Attributes:
      spec: the parsed spec; None for a peer.
      peer: name of the peer; None for a spec.
      packing: around it; none around a peer.
    """

    spec: AllReduceSpec | None = None
    peer: str | None = None
    packing: Packing = field(default_factory=Packing)

    def __str__(self) -> str:
        return self.peer or str(self.spec)

    def aggregation(self) -> AggregationSpec:
        """The stages around the algorithm, for `cnnbench.variable_mgr`."""
        return AggregationSpec(all_reduce=self.spec, **dataclasses.asdict(self.packing))


def parse_peers(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The peers asked for.

    Raises:
      FlagError: names one that does not exist.
    """
    peers = words(text)
    for peer in peers:
        if peer not in known:
            raise FlagError("peers", text, f"there is no {peer!r}; must be of {', '.join(known)}")
    return peers
