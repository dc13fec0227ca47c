"""The grammar of --all_reduce_spec, and sizes, limits and costs of all-reduce algorithms.

    spec      = algorithm (":" limit ":" algorithm)*
    algorithm = name ["/" name] ["#" shards]
    limit     = integer ["K" | "M" | "G" | "T"]        powers of 1024, in bytes

For example, `pscpu:2K:pscpu#2:64K:xring` reduces tensors of up to 2 KiB with pscpu, tensors of up
to 64 KiB with pscpu and two shards, and larger ones with a ring. A name with a slash has two
levels: the first algorithm works within each group of devices, the second between groups.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeAlias

from cnnbench import arrays
from cnnbench.base import plugins
from cnnbench.base.job import Job
from cnnbench.base.registry import SpecRegistry
from cnnbench.base.suggestions import unknown_name_reason
from cnnbench.base.values import parse_bytes
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr.all_reduce import algorithms

# Sizes of chunks, for reductions and for the cost model.

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes per element, by the name of the format in which gradients are sent."""

LINE_BYTES = 64
"""TensorFlow returns a slice of a buffer as a view if it begins and ends at a multiple of this."""

MIN_CHUNK_BYTES = 16 * 1024
"""Minimum number of bytes in a chunk. Smaller chunks cost more overhead than parallelism saves."""


def elements_per_chunk(elements: int, max_chunks: int, itemsize: int) -> int:
    """Returns the number of elements in each chunk of a tensor; the last chunk may be shorter.

    There are at most `max_chunks` chunks of at least `MIN_CHUNK_BYTES`. Elements have `itemsize`
    bytes.
    """
    unit = LINE_BYTES // itemsize
    count = max(1, min(max_chunks, elements * itemsize // MIN_CHUNK_BYTES))
    return max(1, -(-elements // (count * unit))) * unit


# The grammar of --all_reduce_spec, which is the same as in tf_cnn_benchmarks.

FLAG = "all_reduce_spec"
_FORM = "algorithm[:limit:algorithm]..., as in pscpu:32K:xring#2"


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm of --all_reduce_spec, which splits each tensor into `shards`.

    `levels` is one name, or two names: the algorithm within groups and the algorithm between
    groups.
    """

    levels: tuple[str, ...]
    shards: int = 1

    def __str__(self) -> str:
        name = "/".join(self.levels)
        return name if self.shards == 1 else f"{name}#{self.shards}"


@dataclass(frozen=True)
class SizeRange:
    """An algorithm, and the largest size in bytes of tensors that it reduces (None: any size)."""

    algorithm: AlgorithmSpec
    limit: int | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f":{_size_text(self.limit)}"
        return f"{self.algorithm}{limit}"


@dataclass(frozen=True)
class AllReduceSpec:
    """A parsed --all_reduce_spec: size ranges with increasing limits, the last without a limit.

    `parse_all_reduce_spec(str(spec)) == spec`. `source` is the original text, which may be longer
    than the shortest text for the same spec. Error messages point to a character in `source`, and
    records contain it.
    """

    ranges: tuple[SizeRange, ...]
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", str(self))

    def __str__(self) -> str:
        return ":".join(map(str, self.ranges))

    @property
    def algorithm_names(self) -> frozenset[str]:
        """Names of all algorithms that the spec uses, at all levels."""
        return frozenset(name for part in self.ranges for name in part.algorithm.levels)

    @property
    def names_across_steps(self) -> list[str]:
        """Sorted names of the algorithms in the spec that declare `across_steps`."""
        found = {name: find(name) for name in self.algorithm_names}
        return sorted(name for name, one in found.items() if one is not None and one.across_steps)

    @property
    def has_two_levels(self) -> bool:
        """Whether any algorithm of the spec has two levels: within and between device groups."""
        return any(len(part.algorithm.levels) > 1 for part in self.ranges)

    def reads(self, flag: str) -> bool:
        """Whether an algorithm of the spec declares that it reads a flag (`Registration.reads`)."""
        found = map(find, self.algorithm_names)
        return any(one is not None and flag in one.reads for one in found)

    def error(self, index: int, reason: str) -> FlagError:
        """Creates an error that points to the algorithm of size range `index` in the spec."""
        # In the text of a spec, algorithms and size limits alternate.
        return _spec_error(self.source, 2 * index, reason)

    def check_algorithm_names(self, known: Collection[str]) -> None:
        """Raises FlagError if the spec names an algorithm that is not in `known`."""
        for index, part in enumerate(self.ranges):
            for name in part.algorithm.levels:
                if name not in known:
                    reason = unknown_name_reason(name, sorted(known))
                    raise self.error(index, f"there is no algorithm {name!r}; {reason}")

    def without_needless_levels(self, groups: Sequence[Sequence[str]]) -> AllReduceSpec:
        """Returns the spec without levels that have nothing to do for these groups of devices."""
        parts = (SizeRange(_needed_levels(p.algorithm, groups), p.limit) for p in self.ranges)
        return AllReduceSpec(tuple(parts))

    def range_index(self, num_bytes: int) -> int:
        """Returns the index of the size range for a tensor with `num_bytes` bytes."""
        for index, part in enumerate(self.ranges[:-1]):
            assert part.limit is not None
            if num_bytes <= part.limit:
                return index
        return len(self.ranges) - 1


def single(name: str) -> AllReduceSpec:
    """Creates a spec that uses one algorithm for tensors of all sizes."""
    return AllReduceSpec((SizeRange(AlgorithmSpec((name,))),))


def parse_all_reduce_spec(text: str, known: Collection[str] | None = None) -> AllReduceSpec:
    """Parses a value of --all_reduce_spec.

    Args:
      known: names of the existing algorithms; None accepts any name.

    Raises:
      FlagError: the text is no valid spec. The message contains the wrong piece of the text and the
        position of its first character.
    """
    pieces = text.split(":")
    ranges: list[SizeRange] = []
    for number in range(0, len(pieces), 2):
        algorithm = _parse_algorithm(text, number)
        if number + 1 == len(pieces):
            ranges.append(SizeRange(algorithm))
            continue
        limit = _parse_limit(text, number + 1)
        if ranges and limit <= (ranges[-1].limit or 0):
            previous = _size_text(ranges[-1].limit)
            reason = f"limits must increase, but the previous limit is {previous}"
            raise _spec_error(text, number + 1, reason)
        if number + 2 == len(pieces):
            raise _spec_error(
                text, number + 1, "a limit must be followed by the algorithm for larger tensors"
            )
        ranges.append(SizeRange(algorithm, limit))
    spec = AllReduceSpec(tuple(ranges), text)
    if known is not None:
        spec.check_algorithm_names(known)
    return spec


def _spec_error(text: str, number: int, reason: str) -> FlagError:
    """Creates an error that points to one of the pieces that colons separate in a spec."""
    pieces = text.split(":")
    start = 1 + sum(len(piece) + 1 for piece in pieces[:number])
    return FlagError(FLAG, text, f"character {start}, {pieces[number]!r}: {reason}")


def _parse_algorithm(text: str, number: int) -> AlgorithmSpec:
    match = re.fullmatch(r"(\w+)(?:/(\w+))?(?:#(.*))?", text.split(":")[number])
    if match is None:
        raise _spec_error(text, number, f"must be an algorithm; a spec is {_FORM}")
    levels = tuple(name for name in match.group(1, 2) if name)
    shards = match.group(3)
    if shards is None:
        return AlgorithmSpec(levels)
    if not re.fullmatch(r"[0-9]{1,9}", shards) or int(shards) < 1:
        raise _spec_error(text, number, "after # write the number of shards, at least 1")
    return AlgorithmSpec(levels, int(shards))


def _needed_levels(algorithm: AlgorithmSpec, groups: Sequence[Sequence[str]]) -> AlgorithmSpec:
    if len(algorithm.levels) == 2 and len(groups) == 1:
        return AlgorithmSpec(algorithm.levels[:1])
    if len(algorithm.levels) == 2 and all(len(group) == 1 for group in groups):
        return AlgorithmSpec(algorithm.levels[1:], algorithm.shards)
    return algorithm


def _parse_limit(text: str, number: int) -> int:
    limit = parse_bytes(text.split(":")[number])
    if not limit:
        raise _spec_error(
            text, number, "must be a limit in bytes, 1 or more, with an optional K, M, G or T"
        )
    return limit


def _size_text(limit: int | None) -> str:
    """Returns a limit in bytes as text with the largest unit that divides it, such as 64K."""
    value, unit = limit or 0, ""
    for larger in "KMGT":
        if value == 0 or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"


# Devices and parameters of one all-reduce, and groups of devices, without importing TensorFlow.

COMMUNICATION_HINTS = ("auto", "ring", "nccl")
"""Values of the communication hint of TensorFlow's collectives."""


@dataclass(frozen=True, kw_only=True)
class ReduceContext:
    """The devices between which an all-reduce algorithm reduces, and the algorithm's parameters.

    Attributes:
      devices: full device string (job, replica, task, device) of each value, in the
        order of a ring; at least two, all different.
      cpu_devices: CPU devices on which values may be added: one of each process, and
        those of `devices` that are CPUs themselves.
      shards: the number after "#" in a spec.
      cpu_device: the CPU on which `copy` adds; None to add tensor i on device i mod N.
      network_topology: "dgx1" or "gcp_v100", for hierarchical copies.
      share_memory: whether CPU devices of one process pass tensors by reference, so that algorithms
        need no copies between them. If False, every device has its own memory, like a GPU.
      own: the devices whose values are in this process, in the same order; None for all. Other
        processes run their own steps, which reduce the other values.
      communication_hint: one of `COMMUNICATION_HINTS`, for TensorFlow's collectives.
      shared_cards: whether several devices are parts of one GPU, which NCCL refuses.
    """

    devices: tuple[str, ...]
    cpu_devices: tuple[str, ...] = ()
    shards: int = 1
    cpu_device: str | None = None
    network_topology: str = "dgx1"
    share_memory: bool = True
    own: tuple[str, ...] | None = None
    communication_hint: str = "auto"
    shared_cards: bool = False

    @property
    def own_devices(self) -> tuple[str, ...]:
        """The devices of this process, whose values are the input of an algorithm."""
        if self.own is None:
            return self.devices
        return tuple(device for device in self.devices if device in self.own)

    @property
    def all_devices_are_own(self) -> bool:
        """Whether the values of all devices are in this process."""
        return len(self.own_devices) == len(self.devices)

    @property
    def collective_hint(self) -> str:
        """Value of the attribute `communication_hint` of a collective operation.

        TensorFlow's "auto" uses the ring, which goes through the hosts, even between GPUs. Here,
        "auto" means NCCL between GPUs. It means the ring between parts of one GPU, and if there are
        `shards`, which NCCL does not support.
        """
        on_gpus = all(is_gpu(device) for device in self.devices) and not self.shared_cards
        auto = self.communication_hint == "auto"
        return "nccl" if auto and on_gpus and self.shards == 1 else self.communication_hint

    def memory_of(self, device: str) -> str:
        """Returns the name of a device's memory, which CPU devices of one process may share."""
        shared = self.share_memory and ":CPU:" in device.upper()
        return process_of_device(device) if shared else device

    @functools.cached_property
    def num_memories(self) -> int:
        """Number of separate memories of the devices.

        More chunks than memories would use no further links.
        """
        return len(set(map(self.memory_of, self.devices)))

    def refuse_shards(self, name: str) -> None:
        """Raises ValueError if there are shards, for the algorithm `name`, which takes none."""
        if self.shards != 1:
            raise ValueError(f"{name} takes no shards")

    def with_devices(self, devices: Sequence[str], shards: int = 1) -> ReduceContext:
        """Returns a context with the same parameters for other devices and another `shards`."""
        return dataclasses.replace(self, devices=tuple(devices), shards=shards)

    def for_members(self, members: Sequence[str], shards: int = 1) -> ReduceContext:
        """Returns a context for some of the devices, such as one group.

        Values may be added on the CPUs of the members' processes, except CPUs that are devices of
        this context but not members.
        """
        processes = set(map(process_of_device, members))
        others = {*self.devices} - {*members}
        own = (cpu for cpu in self.cpu_devices if process_of_device(cpu) in processes)
        cpus = tuple(cpu for cpu in own if cpu not in others)
        cpu_device = self.cpu_device
        if cpu_device is not None and cpus and cpu_device not in cpus:
            cpu_device = cpus[0]
        context = self.with_devices(members, shards)
        return dataclasses.replace(context, cpu_devices=cpus, cpu_device=cpu_device)


def cpus_for_additions(devices: Sequence[str], cpus: Sequence[str], cpu: str) -> tuple[str, ...]:
    """Returns the CPUs on which the towers' gradients may be added.

    If there are towers on CPUs, the result contains these CPUs. Otherwise, it contains `cpus`, one
    CPU of every process. If `cpus` is empty, it contains `cpu`, the host's CPU.
    """
    towers = [device for device in devices if "/device:CPU:" in device]
    return tuple(dict.fromkeys(towers or cpus or [cpu]))


@functools.cache
def process_of_device(device: str) -> str:
    """Returns job, replica and task from a full device string, as a name of the process."""
    return device.rpartition("/device:")[0]


def is_gpu(device: str) -> bool:
    """Whether a full device string names a GPU."""
    return "/device:GPU:" in device


def group_devices(devices: Sequence[str], group_size: int = 0) -> tuple[tuple[str, ...], ...]:
    """Groups devices by process, or into smaller groups within each process.

    With a `group_size` above 0, a group contains that many consecutive devices of a process; the
    last group may be smaller. Use it for GPUs on one PCIe switch or NUMA node, or to emulate
    several hosts in one process. Groups are ordered by their first device.
    """
    processes: dict[str, list[str]] = {}
    for device in devices:
        processes.setdefault(process_of_device(device), []).append(device)
    return tuple(
        tuple(members[begin : begin + (group_size or len(members))])
        for members in processes.values()
        for begin in range(0, len(members), group_size or len(members))
    )


def leaders_by_rotation(groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns the leaders of all groups for each tensor of a rotation.

    Leaders are the devices that reduce between groups. They rotate: in a whole rotation, every
    device is a leader at least once.
    """
    count = max(map(len, groups))
    return [tuple(group[index % len(group)] for group in groups) for index in range(count)]


# Checks, without importing TensorFlow, whether an algorithm supports devices and parameters.


def check_context(name: str, context: ReduceContext) -> None:
    """Raises ValueError if the algorithm `name` does not support the devices or parameters.

    A name that no algorithm has is accepted: `AllReduceSpec.check_algorithm_names` refuses it.
    """
    declared = find(name)
    if declared is not None:
        (declared.check or declared.factory)(context)


def check_spec(
    spec: AllReduceSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    """Raises FlagError if an algorithm of the spec does not support the devices.

    The message points to a character in the spec.
    """
    if len(context.devices) < 2:
        return
    for index, part in enumerate(spec.ranges):
        try:
            _check_algorithm(part.algorithm, context, groups)
        except ValueError as error:
            raise spec.error(index, str(error)) from error


def check_all_reduce(
    spec: AllReduceSpec,
    job: Job,
    device: str,
    *,
    network_topology: str,
    group_size: int,
    communication_hint: str = "auto",
    shared_cards: bool = False,
) -> None:
    """Raises FlagError if an all-reduce cannot work on the devices of a job (see `check_spec`).

    With device "auto", an all-reduce is refused if it works neither on CPUs nor on GPUs.
    `group_size` is the number of devices per group of two-level algorithms; with 0, a group
    contains the devices of one process.
    """
    refusals = []
    for kind in ("cpu", "gpu") if device == "auto" else (device,):
        on_kind = job.with_devices(kind)
        context = ReduceContext(
            devices=on_kind.tower_devices,
            cpu_devices=cpus_for_additions(on_kind.tower_devices, job.cpu_devices, job.cpu_device),
            network_topology=network_topology,
            own=on_kind.own_tower_devices if job.client_per_worker else None,
            communication_hint=communication_hint,
            shared_cards=shared_cards,
        )
        try:
            check_spec(spec, context, group_devices(context.devices, group_size))
        except FlagError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _check_algorithm(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    *first, between = algorithm.levels
    declared = find(between)
    if declared is None:
        return
    if not context.all_devices_are_own and not declared.across_steps:
        able = [name for name, other in declarations().items() if other.across_steps]
        raise ValueError(
            f"{between} needs the values of all processes in one process; if each worker runs its "
            f"own step, use {' or '.join(able)}, alone or as in copy/{able[0]}"
        )
    if not first:
        check_context(between, context.with_devices(context.devices, algorithm.shards))
        return
    if declared.within_process:
        raise ValueError(f"{between} reduces within one process, so it can only be the first level")
    if algorithm.shards > len(groups):
        raise ValueError(
            f"{algorithm.shards} shards between {len(groups)} group(s) of devices; there can be at "
            "most as many shards as groups"
        )
    for group in groups:
        if len(group) > 1:
            check_context(first[0], context.for_members(group))
    if len(groups) > 1:
        for leaders in leaders_by_rotation(groups):
            check_context(between, context.for_members(leaders, algorithm.shards))


# Cost of an all-reduce algorithm for one tensor and any number of devices.
#
# A formula counts messages, bytes and additions of an algorithm, as in Hockney's model.
# docs/cost_model.md lists all formulas. `cnnbench.lab.predict` applies formulas to tensor lists.

# For each byte, an addition moves three bytes (two reads, one write), and a copy moves two bytes.
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
        *(messages_per_hop * (hops - far), bytes_sent if far < hops else 0),
        *(messages_per_hop * far, bytes_sent if far else 0),
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
    """Returns the phases of an algorithm that moves and adds chunks, moves the sums back in the
    same way, and joins the chunks.
    """
    return (move + ReductionPhase(added=added), move, join_phase(tensor, chunks))


# The registry of algorithms. Module algorithms/<name>.py registers the algorithm <name>.
# Names of built-in algorithms are names of files, so listing the names imports no algorithm.
# The modules import TensorFlow only in functions, so what they declare is known without it.


def _wrong_sums_message(value: Sequence[Any], arguments: Sequence[Any]) -> str:
    tensors, _ = arguments[-2:]
    if len(value) != len(tensors):
        return f"a tensor for each of {len(tensors)} devices, not {len(value)}"
    sizes = plugins.tensor_sizes(tensors[0])
    for tensor in value:
        if not plugins.is_tensor(tensor) or plugins.tensor_sizes(tensor) != sizes:
            return f"sums of {plugins.value_text(tensors[0])}, not {plugins.value_text(tensor)}"
    return ""


Sums = Annotated[list[arrays.Tensor], _wrong_sums_message]


class Algorithm(Protocol):
    """An all-reduce algorithm, which sums one tensor over the devices of a `ReduceContext`.

    An algorithm may have the attribute `runs_together`.
    """

    def __call__(self, tensors: Sequence[arrays.Tensor], index: int) -> Sums:
        """Sums the values of one tensor over all devices; returns the sum for every device.

        Devices that share a result get the same tensor object, so that later operations process it
        only once.

        Args:
          tensors: a dense value per device of the context, of one shape (any rank and
            size, zero elements too) and one float dtype.
          index: position of the tensor in the step, over which to rotate the load.
        """


def must_use_all_results(algorithm: Algorithm) -> bool:
    """Whether an algorithm's results must be used on all devices, which wait for each other.

    TensorFlow removes operations whose results are unused. In some algorithms, such as collectives,
    the operation on each device waits for the operations on the other devices. No such operation
    may be removed. These algorithms set the attribute `runs_together` to True. With other
    algorithms, callers may leave results unused.
    """
    return bool(getattr(algorithm, "runs_together", False))


Factory: TypeAlias = "Callable[[ReduceContext], Algorithm]"
"""Function that creates an algorithm; raises ValueError if it does not support the context."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """An algorithm, and what it declares about itself.

    Attributes:
      name: its name in specs.
      factory: its constructor.
      cost: formula for ``cnnbench allreduce --predict``; None if there is no prediction.
      check: function that raises ValueError if the algorithm does not support the context. It is
        called before a run starts. If it is None, `factory` is called instead, so only algorithms
        whose constructor needs TensorFlow need it.
      reads: flags whose values in the context change what the algorithm does, such as
        "network_topology". For other algorithms, a notice says that these flags have no effect.
      tuned_on: kinds of devices, "cpu" and "gpu", on which ``cnnbench tune`` tries the algorithm.
      lossy: whether sums have larger rounding errors than additions in the dtype of the tensors.
        ``cnnbench tune`` then tries the algorithm only with --allow=precision.
      across_steps: whether the algorithm works if every process of a job runs its own step, and
        not if one process runs the steps of all processes.
      within_process: whether the algorithm can only be the first one of two levels.
      second_levels: algorithms between groups with which ``cnnbench allreduce --predict`` combines
        it by default.
    """

    name: str
    factory: Factory
    cost: Formula | None = None
    check: Callable[[ReduceContext], object] | None = None
    reads: tuple[str, ...] = ()
    tuned_on: tuple[str, ...] = ("cpu", "gpu")
    lossy: bool = False
    across_steps: bool = False
    within_process: bool = False
    second_levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plugins.check_name("an all-reduce algorithm", self.name)
        results = {"factory": Callable[[Sequence[arrays.Tensor], int], Sums], "check": object}
        for attribute, result in results.items():
            function = getattr(self, attribute)
            if function is not None:
                checked = plugins.with_checked_results(function, result, ("context",))
                object.__setattr__(self, attribute, checked)


ALGORITHMS = SpecRegistry(
    Registration,
    "factory",
    kind="all-reduce algorithm",
    call="cnnbench.variable_mgr.all_reduce.register(name)",
    flag=FLAG,
    group="cnnbench.all_reduce",
    own=algorithms.__name__,
)
"""The algorithms whose modules have been imported, by name."""

register = ALGORITHMS.register


def names(used: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the sorted names of all all-reduce algorithms, without importing the algorithms.

    Algorithms of installed packages are loaded only if one of the names in `used` is unknown.
    """
    own = plugins.submodule_names(algorithms)
    if not {*used} <= {*ALGORITHMS, *own}:
        ALGORITHMS.load_packages()
    return tuple(sorted({*ALGORITHMS, *own}))


def find(name: str) -> Registration | None:
    """Returns the algorithm `name`; None if there is none. Its module imports TensorFlow only when
    the algorithm is created or called.
    """
    if name not in ALGORITHMS and name in plugins.submodule_names(algorithms):
        importlib.import_module(f"{algorithms.__name__}.{name}")
    if name not in ALGORITHMS:
        ALGORITHMS.load_packages()
    return ALGORITHMS.get(name)


def declarations() -> dict[str, Registration]:
    """Returns all algorithms by name, sorted; see `find`."""
    found = {name: find(name) for name in names()}
    return {name: declared for name, declared in found.items() if declared is not None}


def readers_of(flag: str) -> frozenset[str]:
    """Returns the names of the algorithms that use the value of a flag (`Registration.reads`)."""
    return frozenset(name for name, declared in declarations().items() if flag in declared.reads)


def create(name: str, context: ReduceContext) -> Algorithm:
    """Creates the algorithm `name`; raises ValueError if it does not support the context."""
    declared = find(name)
    if declared is None:
        raise UsageError(f"no module registers an all-reduce algorithm {name!r}")
    if declared.check is not None:
        declared.check(context)
    return declared.factory(context)


def cost_formulas() -> dict[str, Formula]:
    """Returns the cost formulas of all algorithms with a formula, by name of the algorithm."""
    costs = {name: declared.cost for name, declared in declarations().items()}
    return {name: cost for name, cost in costs.items() if cost is not None}
