"""All-reduce algorithms by name, and the cost of each.

A formula gives the number of messages, bytes and additions of an algorithm, as in Hockney's model.
docs/cost_model.md lists the formulas of all algorithms. `cnnbench.lab.predict` applies them to
lists of tensors.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.errors import UsageError
from cnnbench.variable_mgr.all_reduce import algorithms, spec
from cnnbench.variable_mgr.all_reduce.spec import chunk_size

if TYPE_CHECKING:
    from cnnbench.variable_mgr.all_reduce.spec import ReduceContext


# Cost of an all-reduce algorithm for one tensor and any number of devices.

# An addition reads two bytes and writes one; a copy reads one and writes one.
_COPY_TO_ADD = 2 / 3


@dataclass(frozen=True)
class Link:
    """The connection of one device to the other devices.

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
        """Bytes per second in one direction, of one device."""
        return math.inf if self.beta == 0 else 1 / self.beta

    def __str__(self) -> str:
        return (
            f"{self.name}: alpha {1e6 * self.alpha:.4g} us, "
            f"bandwidth {self.bandwidth / 1e9:.4g} GB/s, gamma {1e9 * self.gamma:.3g} ns/B"
        )


@dataclass(frozen=True)
class Tensor:
    """Size of a tensor as it is sent; `itemsize` is bytes per element."""

    elements: int
    itemsize: int = 4

    @property
    def bytes(self) -> int:
        """Size of all elements."""
        return self.elements * self.itemsize

    def chunks(self, most: int) -> tuple[int, int]:
        """Number of chunks (at most `most`) and bytes per chunk, as the algorithms cut the tensor.

        The last one may have fewer bytes.
        """
        size = chunk_size(self.elements, most, self.itemsize)
        count = max(1, math.ceil(self.elements / size))
        return count, min(size, self.elements) * self.itemsize


@dataclass(frozen=True)
class NodeLayout:
    """Assignment of devices to nodes; device d is in node d // per_node.

    Within a node, each device has its own link. Between nodes, the devices of a node share one
    link. With `per_node` 1, every device has its own network link.
    """

    devices: int
    per_node: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes; the last one may have fewer devices."""
        return math.ceil(self.devices / self.per_node)

    @property
    def near(self) -> int:
        """Number of devices in a full node."""
        return min(self.per_node, self.devices)


@dataclass(frozen=True)
class ReductionPhase:
    """A part of a reduction that begins when the previous part has ended.

    Messages and bytes are counted on the busiest device, where they pass one after another. Near
    ones stay within its node. Far ones use the link of its node. Near and far bytes move at the
    same time. Latencies add up.

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
        """A phase with every field multiplied by a number."""
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


PathOf = Callable[[Tensor, NodeLayout, int], Path]


@dataclass(frozen=True)
class Formula:
    """The cost of one algorithm.

    Attributes:
      path: function of (tensor, layout, shards): the phases of reducing one tensor.
      busy: phases during which one tensor occupies a device, if they are shorter than the path.
      roots: function of (layout, shards): number of devices that successive tensors use in turn.
      or_paths: alternative paths; the algorithm uses the fastest path.
    """

    path: PathOf
    busy: PathOf | None = None
    roots: Callable[[NodeLayout, int], int] = lambda layout, shards: 1
    or_paths: tuple[PathOf, ...] = ()


def ring_lap(layout: NodeLayout, at_once: float, moved: float) -> ReductionPhase:
    """The phase of n - 1 hops along a ring, with `at_once` messages in each hop.

    The number of hops that leave a node is the number of nodes.
    """
    hops = layout.devices - 1
    far = min(layout.nodes, hops) if layout.nodes > 1 else 0
    return ReductionPhase(
        at_once * (hops - far), moved if far < hops else 0, at_once * far, moved if far else 0
    )


def star_of(near: int, far: int, size: float) -> ReductionPhase:
    """One device exchanges `size` bytes with each of `near` and `far` other devices."""
    return ReductionPhase(near, near * size, far, far * size)


# The registry of algorithms. Module algorithms/<name>.py registers <name>, so listing the names
# imports none of them.


def _is_sum(value: Sequence[Any], arguments: Sequence[Any]) -> str:
    tensors, _ = arguments[-2:]
    if len(value) != len(tensors):
        return f"a tensor for each of {len(tensors)} devices, not {len(value)}"
    wrong = [
        tensor
        for tensor in value
        if not plugins.is_tensor(tensor) or plugins.sizes(tensor) != plugins.sizes(tensors[0])
    ]
    return f"sums of {plugins.shown(tensors[0])}, not {plugins.shown(wrong[0])}" if wrong else ""


Sums = Annotated[list[Any], _is_sum]


class Algorithm(Protocol):
    """Sums one tensor over the devices of a context. It may have the attribute `runs_together`."""

    def __call__(self, tensors: Sequence[Any], index: int) -> Sums:
        """Sums the values of one tensor and gives every device the sum, of the same shape.

        Devices that share a result get the same tensor object, so that later operations process it
        only once.

        Args:
          tensors: a dense value per device of the context, of one shape (any rank and
            size, zero elements too) and one float dtype.
          index: position of the tensor in the step, over which to rotate the load.
        """


def runs_together(algorithm: Algorithm) -> bool:
    """Whether the results of all devices must be used, because the devices wait for each other.

    TensorFlow removes operations whose results are unused. In some algorithms, such as collectives,
    the operation on each device waits for the operations on the other devices. No such operation
    may be removed. These algorithms set the attribute `runs_together` to True. With other
    algorithms, callers may leave results unused.
    """
    return bool(getattr(algorithm, "runs_together", False))


# Creates an algorithm for a context. Raises ValueError with a reason if the algorithm does not
# support it.
Factory: TypeAlias = "Callable[[ReduceContext], Algorithm]"
_Factory = TypeVar("_Factory", bound=Factory)

_registered: dict[str, tuple[Factory, Formula | None]] = {}


def register(name: str, cost: Formula | None = None) -> Callable[[_Factory], _Factory]:
    """Decorator that registers an algorithm's constructor under `name`.

    Args:
      cost: formula for ``cnnbench allreduce --predict``. None if there is no prediction, or if
        `cnnbench.lab.predict.predict` defines it.
    """

    def decorate(factory: _Factory) -> _Factory:
        plugins.check_name("an all-reduce algorithm", name)
        is_built_in = factory.__module__ == f"{algorithms.__name__}.{name}"
        known, _ = _registered.get(name, (factory if is_built_in else None, None))
        if name in names() and (known is None or inspect.unwrap(known) is not factory):
            raise UsageError(f"all-reduce algorithm {name!r} is already registered")
        made = Callable[[Sequence[Any], int], Sums]
        _registered[name] = plugins.checked(factory, made, ("context",)), cost
        return factory

    return decorate


def names() -> tuple[str, ...]:
    """Names of all algorithms, sorted; imports none of them."""
    return tuple(sorted({*_registered, *plugins.modules_of(algorithms)}))


def create(name: str, context: ReduceContext) -> Algorithm:
    """Makes the algorithm `name`; raises ValueError if it cannot work with the context."""
    spec.check(name, context)
    factory, _ = _find(name)
    return factory(context)


def costs(but: Container[str] = ()) -> dict[str, Formula]:
    """Cost formulas of all algorithms that have one, by name of the algorithm.

    Imports the modules of all algorithms except those in `but`.
    """
    cost_by_name = {name: _find(name)[1] for name in names() if name not in but}
    return {name: cost for name, cost in cost_by_name.items() if cost is not None}


def _find(name: str) -> tuple[Factory, Formula | None]:
    if name not in _registered and name in names():
        importlib.import_module(f"{algorithms.__name__}.{name}")
    if name not in _registered:
        raise UsageError(f"no module registers an all-reduce algorithm {name!r}")
    return _registered[name]


plugins.add_kind(
    plugins.Kind(
        flag="all_reduce_spec",
        noun="all-reduce algorithm",
        call="cnnbench.variable_mgr.all_reduce.register(name)",
        table=lambda: _registered,
        prepare=lambda: None,  # Built-in algorithms are found by their files.
    )
)
