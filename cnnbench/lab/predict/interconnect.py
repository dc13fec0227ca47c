"""The time of an all-reduce over given links, for specs and lists of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from cnnbench.lab.predict.formulas import (
    SPREAD,
    formulas,
)
from cnnbench.lab.predict.workload import NotPredictedError, sent, total_bytes
from cnnbench.records.codec import one_of
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    Link,
    NodeLayout,
    Path,
    ReductionPhase,
    Tensor,
)
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec


@dataclass(frozen=True)
class Interconnect:
    """Devices with links of their own, or nodes of devices with a link per node.

    Attributes:
      link: link between the devices of a node, or between all devices.
      inter_link: link between nodes; None where every device has its own link to all others.
      devices_per_node: devices of a node; used with inter_link.
      launch: further seconds per reduction.
      kind: "network", the only kind so far.
    """

    link: Link
    inter_link: Link | None = None
    devices_per_node: int = 1
    launch: float = 0.0
    kind: str = field(default="network", metadata=one_of(("network",)))

    @property
    def name(self) -> str:
        """The names of the links."""
        if self.inter_link is None:
            return self.link.name
        return f"{self.devices_per_node} x {self.link.name} + {self.inter_link.name}"

    def seconds(
        self, spec: AllReduceSpec, tensors: Sequence[Tensor], devices: int, packing: Packing
    ) -> float:
        """Time to reduce the tensors of one device, given before packing."""
        if devices == 1:
            return 0.0
        phases: list[ReductionPhase] = []  # on the busiest device
        if packing.joins:
            # Joining copies; splitting gives views.
            phases.append(ReductionPhase(copied=total_bytes(tensors)))
        travelling = sent(packing, tensors)
        layout = NodeLayout(devices, self.devices_per_node if self.inter_link is not None else 1)
        for index, part in enumerate(spec.ranges):
            mine = [tensor for tensor in travelling if spec.range_of(tensor.bytes) == index]
            if mine:
                phases += self._algorithm(part.algorithm, mine, layout)
        return self.launch + self._path_seconds(phases)

    def _one_level(
        self, name: str, tensors: Sequence[Tensor], layout: NodeLayout, shards: int
    ) -> Path:
        formula = formulas().get(name)
        if formula is None:
            raise NotPredictedError(f"there is no formula for {name}")
        if shards > layout.devices:
            raise NotPredictedError(f"{shards} shards need as many devices")
        return self._list_phases(formula, tensors, layout, shards)

    def _algorithm(
        self, algorithm: AlgorithmSpec, tensors: Sequence[Tensor], layout: NodeLayout
    ) -> Path:
        """One level, or within nodes, then between one device per node, then back to its node."""
        if len(algorithm.levels) == 1:
            return self._one_level(algorithm.levels[0], tensors, layout, algorithm.shards)
        if self.inter_link is None:
            raise NotPredictedError(
                f"{algorithm} has two levels; give --inter_link and --devices_per_node"
            )
        within, between = algorithm.levels
        inside = NodeLayout(layout.near, layout.near)
        phases: list[ReductionPhase] = []
        if inside.devices > 1:
            phases += self._one_level(within, tensors, inside, 1)
        if layout.nodes > 1:
            phases += self._one_level(between, tensors, NodeLayout(layout.nodes), algorithm.shards)
            if inside.devices > 1:
                phases += self._list_phases(SPREAD, tensors, inside, 1)
        return phases

    def _list_phases(
        self, formula: Formula, tensors: Sequence[Tensor], layout: NodeLayout, shards: int
    ) -> Path:
        """Phases of the slowest tensor, and the time that the others occupy its device."""
        if layout.devices == 1:
            return ()
        roots = min(formula.roots(layout, shards), len(tensors))
        loads: list[list[ReductionPhase]] = [[] for _ in range(roots)]
        longest: Path = ()
        instead: Path = ()
        waiting = -1.0
        for index, tensor in enumerate(tensors):
            paths = [make(tensor, layout, shards) for make in (formula.path, *formula.or_paths)]
            path = min(paths, key=self._path_seconds)
            busy = path if formula.busy is None else formula.busy(tensor, layout, shards)
            loads[index % roots] = _add(loads[index % roots], busy)
            wait = self._path_seconds(path) - self._path_seconds(busy)
            if wait > waiting:
                longest, instead, waiting = path, busy, wait
        _share_links(loads, max(1, formula.roots(layout, shards) * layout.near // layout.devices))
        load = max(loads, key=self._path_seconds)
        if formula.busy is None:
            return load
        return [*_add(load, [phase.times(-1) for phase in instead]), *longest]

    def _path_seconds(self, path: Path) -> float:
        return sum(phase.seconds(self.link, self.inter_link or self.link) for phase in path)


def _add(load: Path, path: Path) -> list[ReductionPhase]:
    both = itertools.zip_longest(load, path, fillvalue=ReductionPhase())
    return [one + other for one, other in both]


def _share_links(loads: list[list[ReductionPhase]], per_node: int) -> None:
    """Roots of one node send through one link: each waits for the bytes of all of them."""
    if per_node == 1:
        return
    for start in range(0, len(loads), per_node):
        node = loads[start : start + per_node]
        for position in range(max(map(len, node))):
            far_bytes = sum(load[position].far_bytes for load in node if position < len(load))
            for load in node:
                if position < len(load):
                    more = far_bytes - load[position].far_bytes
                    load[position] = load[position] + ReductionPhase(far_bytes=more)
