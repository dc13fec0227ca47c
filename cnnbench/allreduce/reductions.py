"""From cases to functions that reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.allreduce import peers
from cnnbench.allreduce.cases import Case
from cnnbench.allreduce.program import DeviceTensors, Reduction
from cnnbench.errors import FlagError, first_line
from cnnbench.variable_mgr.aggregation.pipeline import make_stages, run_through
from cnnbench.variable_mgr.all_reduce import (
    AllReduceSpec,
    ReduceContext,
    names,
    registry,
    single,
)
from cnnbench.variable_mgr.all_reduce.context import groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.gradients import transposed


@dataclass(frozen=True, kw_only=True)
class Place:
    """The devices that reduce together, and the options of algorithms.

    Attributes:
      devices: full device strings, in ring order.
      cpu: the host's.
      add_on_cpu: whether copying adds on the host.
      network_topology: of hierarchical copies.
      group_size: devices in a group of two-level algorithms, 0 for those of a process.
      share_memory: see `ReduceContext`.
    """

    devices: tuple[str, ...]
    cpu: str
    add_on_cpu: bool = False
    network_topology: str = "dgx1"
    group_size: int = 0
    share_memory: bool = True

    @property
    def context(self) -> ReduceContext:
        """The context of algorithms."""
        return ReduceContext.of_towers(
            self.devices,
            self.cpu,
            add_on_cpu=self.add_on_cpu,
            network_topology=self.network_topology,
            share_memory=self.share_memory,
        )

    def reducer(self, spec: AllReduceSpec, merge_scope: int = 1) -> Reducer:
        """What sums the tensors of these devices.

        Args:
          spec: algorithms.
          merge_scope: consecutive tensors that share a name scope.

        Raises:
          FlagError: an algorithm cannot work with these devices; points into the spec.
        """
        groups = groups_of(self.devices, self.group_size)
        return Reducer(spec, self.context, groups, merge_scope)


def factory(case: Case, place: Place) -> Callable[[], Reduction]:
    """Makes the reduction of a case, anew for every one in a chain.

    Args:
      case: what to reduce with.
      place: the devices.

    Raises:
      FlagError: an algorithm cannot work with these devices.
    """
    if case.peer is not None:
        # Made here, because a strategy is no part of a trace; it keeps nothing between uses.
        reduction = peers.Peer(case.peer, place.devices)
        return lambda: reduction
    spec = case.spec or single("copy")
    place.reducer(spec)
    aggregation = case.aggregation()

    def make() -> Reduction:
        stages = make_stages(aggregation, place.devices, None)
        reducer = place.reducer(spec, aggregation.allreduce_merge_scope)

        def reduce(tensors: DeviceTensors) -> DeviceTensors:
            return transposed(run_through(stages, transposed(tensors), reducer))

        return reduce

    return make


def usable(place: Place) -> tuple[tuple[AllReduceSpec, ...], dict[str, str]]:
    """The algorithms that work on these devices, and why the others do not."""
    specs, reasons = [], {}
    for name in names():
        try:
            registry.create(name, place.context)
        except ValueError as error:
            reasons[name] = first_line(error)
        except Exception as error:  # a defective algorithm is no reason to measure none
            reasons[name] = f"{type(error).__name__}: {first_line(error)}"
        else:
            specs.append(single(name))
    return tuple(specs), reasons


def check(specs: Sequence[AllReduceSpec] | None, peer_names: Sequence[str], place: Place) -> None:
    """Refuses specs and peers that cannot work on these devices.

    Args:
      specs: None for all that work.
      peer_names: of `peers.NAMES`.
      place: the devices.

    Raises:
      FlagError: points into the spec, or names the peer.
    """
    for spec in specs or ():
        place.reducer(spec)
    for name in peer_names:
        try:
            peers.check(name, place.devices)
        except ValueError as error:
            raise FlagError("peers", name, first_line(error)) from error
