"""Cost model of all-reduce algorithms, and predictions of reduction and step times with this model.

Each formula returns the path of one tensor with s bytes, which is a sequence of messages, bytes and
additions (see `ReductionPhase`). In Hockney's terms, the cost is messages * alpha + bytes * beta +
added * gamma. In the formulas, there are ``n`` devices and ``k`` shards. All algorithms except
copying split a tensor into chunks of at least 16 KiB, so a small tensor is one chunk. At the end, a
copy joins the chunks.

With several tensors:

* If each tensor is added on one device, the tensors are distributed over the devices. The cost is
  the cost of the busiest device (`Formula.roots`).
* Otherwise, tensors follow each other without gaps. The cost is the path of the slowest tensor,
  plus the time for which all other tensors occupy a device (`Formula.busy`). This time is for the
  messages and bytes of all devices divided by n, because every tensor begins on a different device.

`predict_all` makes predictions for lists of tensors and specs.

A message of m bytes takes ``alpha + beta * m`` seconds, and adding m bytes to m bytes takes ``gamma
* m`` seconds (Hockney's model, Parallel Computing 20, 1994). A device can send one message and
receive one message at the same time.

In presets, alpha is the time of one step of a reduction between GPUs, including software. Beta is
from the usable rate of the link, and gamma from the memory bandwidth of GPUs of the same time.
docs/cost_model.md contains the sources of all numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import ClassVar, NamedTuple

from cnnbench.base.text import nearest_word, parse_number
from cnnbench.errors import FlagError
from cnnbench.records.all_reduce import Prediction, Predictions
from cnnbench.records.codec import choice_metadata
from cnnbench.variable_mgr.all_reduce import spec
from cnnbench.variable_mgr.all_reduce.spec import (
    DTYPE_BYTES,
    LINE_BYTES,
    AlgorithmSpec,
    AllReduceSpec,
    Formula,
    Link,
    NodeLayout,
    Path,
    PathOf,
    ReductionPhase,
    Tensor,
    buffer_sizes,
    group_into_buckets,
    group_small_tensors,
    ring_lap,
    star_of,
)
from cnnbench.variable_mgr.modes import Packing

# Functions with the cost formulas of all-reduce algorithms, for one tensor and n devices.

# NCCL's own model (src/graph/tuning.cc, commit 5067397) has two protocols, "Simple" and "LL".
# In "Simple", for large messages, a call costs at least 8.4 us, with latencies as in the presets.
# In "LL", for small messages, a call costs 6.6 us, and four bytes are sent for each byte.
# In "LL", latencies are about a fifth (NVLink 0.6 us, PCIe 1.0 us, network 2.7 us).
_NCCL_CALL = 8.4e-6
_NCCL_CALL_LL = 6.6e-6
_LL_LATENCY = 0.19
_LL_BYTES = 4


def _copy_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of `copy`: all devices send to a root, which adds the tensors and sends the sum."""
    star = star_of(layout.near - 1, layout.devices - layout.near, tensor.bytes)
    return (star + ReductionPhase(added=(layout.devices - 1) * tensor.bytes), star)


def _hierarchical_copy_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of `hierarchical_copy`: two roots add the tensors of a half each, then swap sums.

    At the end, each root sends the sum to the devices of its half.
    """
    size = tensor.bytes
    half = math.ceil(layout.devices / 2)
    near = min(layout.near, half)
    gather = star_of(near - 1, half - near, size)
    across = _message_phase(layout.nodes > 1, size)
    return (
        gather + ReductionPhase(added=(half - 1) * size),
        across + ReductionPhase(added=size),
        across,
        gather,
    )


def _ring_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of k concurrent rings: n-1 hops that add, and then n-1 hops that distribute the sums.

    In each hop, a device forwards one chunk for each ring. In one lap, the number of hops between
    nodes equals the number of nodes.
    """
    count, size = tensor.chunks(layout.devices * shards)
    at_once = max(1.0, count / layout.devices)
    moved = (layout.devices - 1) * at_once * size
    lap = ring_lap(layout, at_once, moved)
    return _reduce_and_distribute_phases(lap, moved, tensor, count)


def _ring_device_load(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases for which one tensor keeps a device busy in a ring.

    Each chunk makes n-1 hops in each of two laps. The hops are distributed over n devices.
    """
    share = (layout.devices - 1) / layout.devices
    chunks, _ = tensor.chunks(layout.devices * shards)
    lap = _messages_phase(layout.nodes > 1, share * chunks, share * tensor.bytes)
    return _reduce_and_distribute_phases(lap, share * tensor.bytes, tensor, chunks)


def _halving_doubling_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of recursive halving and doubling: devices exchange a half, a quarter, ... of the
    tensor, and then the sums in reverse order.

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
    return (*before, *halving, *reversed(doubling), *after, _join_phase(tensor, count))


def _halving_doubling_device_load(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases for which one tensor keeps a device busy in recursive halving and doubling.

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
        rounds += _mixed_messages_phase(layout, messages, size, leaving)
        added += size
    extra = (layout.devices - power) / layout.devices
    sharing = layout.near if layout.nodes > 1 else 1
    # A tensor with so few chunks that one half would be empty is sent as a whole.
    halves = 2 if chunks > power // 2 else 1
    fetched = max(0, layout.devices - power - power // 2) / layout.devices * (halves - 1)
    fold = _messages_phase(
        layout.nodes > 1,
        halves * extra + fetched,
        (extra + 0.5 * fetched) * tensor.bytes * sharing,
    )
    unfold = _messages_phase(layout.nodes > 1, extra, extra * tensor.bytes * sharing)
    return (
        rounds + fold + ReductionPhase(added=added + extra * tensor.bytes),
        rounds + unfold,
        _join_phase(tensor, chunks),
    )


def _tree_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of two binary trees: each half of a tensor moves up a tree and down, in k chunks."""
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
    return _reduce_and_distribute_phases(climb, (near + far) * size, tensor, count)


def _tree_device_load(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases for which one tensor keeps a device busy in a tree.

    Every chunk moves up and down n-1 edges. The edges are distributed over n devices.

    Half of the edges have distance 1, a quarter has distance 2, and so on. The tree of each tensor
    begins at a different device. Therefore, with m devices per node, an edge of distance d leaves
    the node in d of m cases.
    """
    share = (layout.devices - 1) / layout.devices
    chunks, _ = tensor.chunks(2 * shards)
    leaving = 0.0
    if layout.nodes > 1:
        spans = [2**level for level in range(layout.devices.bit_length())]
        edges = sum(1 / span for span in spans)
        leaving = sum(min(1.0, span / layout.near) / span for span in spans) / edges
    climb = _mixed_messages_phase(layout, share * chunks, share * tensor.bytes, leaving)
    return _reduce_and_distribute_phases(climb, share * tensor.bytes, tensor, chunks)


def _shuffle_phases(tensor: Tensor, layout: NodeLayout, shards: int, on_tower: bool = True) -> Path:
    """Phases of a shuffle: each of k devices (or CPUs of k nodes) gathers the values of one shard
    of the tensor, adds them and returns the sum.
    """
    count, size = tensor.chunks(shards)
    near, far = layout.near - on_tower, layout.devices - layout.near
    # A gathering device receives a shard from every device.
    # A sending device sends to all gathering devices.
    gatherer = star_of(near, far, size)
    sender = _messages_phase(layout.nodes > 1, count, tensor.bytes)
    move = gatherer if near + far >= count else sender
    return _reduce_and_distribute_phases(move, (layout.devices - 1) * size, tensor, count)


def _nccl_ring_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of NCCL's ring, which splits a tensor of any size into n chunks, without a copy to
    join the chunks at the end.
    """
    moved = (layout.devices - 1) * tensor.bytes / layout.devices
    lap = ring_lap(layout, 1, moved)
    return (lap + ReductionPhase(added=moved), lap, ReductionPhase(fixed=_NCCL_CALL))


def _nccl_tree_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of NCCL's pipelined double binary tree between nodes, with chains of devices within
    nodes.

    Both directions are concurrent. Each device sends and receives the tensor twice.
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


def _tf_ring_phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases of TensorFlow's ring, which copies the tensor and splits it into n chunks per
    subdivision.
    """
    moved = (layout.devices - 1) * tensor.bytes / layout.devices
    lap = ring_lap(layout, shards, moved)
    return (ReductionPhase(copied=tensor.bytes), lap + ReductionPhase(added=moved), lap)


def _with_low_latency_protocol(path: PathOf) -> PathOf:
    """Converts the cost formula of an NCCL algorithm from NCCL's protocol "Simple" to "LL", the
    protocol for small messages.
    """

    def low_latency_path(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
        return [
            replace(
                message_counts,
                near_messages=_LL_LATENCY * message_counts.near_messages,
                near_bytes=_LL_BYTES * message_counts.near_bytes,
                far_messages=_LL_LATENCY * message_counts.far_messages,
                far_bytes=_LL_BYTES * message_counts.far_bytes,
                fixed=_NCCL_CALL_LL if message_counts.fixed else 0,
            )
            for message_counts in path(tensor, layout, shards)
        ]

    return low_latency_path


def _mixed_messages_phase(
    layout: NodeLayout, messages: float, size: float, leaving: float
) -> ReductionPhase:
    """Phase of several messages with `size` bytes in total. The share `leaving` of the messages
    goes to other nodes.
    """
    near = 1 - leaving
    return ReductionPhase(
        near * messages, near * size, leaving * messages, leaving * size * layout.near
    )


def _reduce_and_distribute_phases(
    move: ReductionPhase, added: float, tensor: Tensor, chunks: int
) -> Path:
    """Phases of an algorithm that moves and adds chunks, moves the sums back in the same way, and
    joins the chunks.
    """
    return (move + ReductionPhase(added=added), move, _join_phase(tensor, chunks))


def _join_phase(tensor: Tensor, chunks: int) -> ReductionPhase:
    return ReductionPhase(copied=tensor.bytes if chunks > 1 else 0)


def _messages_phase(far: bool, count: float, size: float) -> ReductionPhase:
    return ReductionPhase(0, 0, count, size) if far else ReductionPhase(count, size)


def _message_phase(far: bool, size: float, sharing: int = 1) -> ReductionPhase:
    """Phase of one message with `size` bytes. If `far`, `sharing` devices of a node send such a
    message through the same link at once.
    """
    return _messages_phase(far, 1, sharing * size if far else size)


FORMULAS: dict[str, Formula] = {
    "copy": Formula(_copy_phases, roots=lambda layout, shards: layout.devices),
    "hierarchical_copy": Formula(
        _hierarchical_copy_phases, roots=lambda layout, shards: max(1, layout.devices // 2)
    ),
    "xring": Formula(_ring_phases, busy=_ring_device_load),
    "collective": Formula(_tf_ring_phases),
    "rechd": Formula(_halving_doubling_phases, busy=_halving_doubling_device_load),
    "tree": Formula(_tree_phases, busy=_tree_device_load),
    "psgpu": Formula(
        _shuffle_phases, roots=lambda layout, shards: math.ceil(layout.devices / shards)
    ),
    "pscpu": Formula(
        partial(_shuffle_phases, on_tower=False),
        roots=lambda layout, shards: math.ceil(layout.nodes / shards),
    ),
    "nccl": Formula(
        _nccl_ring_phases,
        or_paths=(
            _nccl_tree_phases,
            _with_low_latency_protocol(_nccl_ring_phases),
            _with_low_latency_protocol(_nccl_tree_phases),
        ),
    ),
}
"""Formulas by the name of the algorithm in a spec. docs/cost_model.md contains the sources."""


def all_cost_formulas() -> dict[str, Formula]:
    """Returns the cost formulas of all algorithms by name: `FORMULAS`, which do not need
    TensorFlow, and the formulas of algorithms from plug-ins.
    """
    return {**FORMULAS, **spec.cost_formulas(FORMULAS)}


SPREAD = Formula(
    lambda tensor, layout, shards: (star_of(layout.devices - 1, 0, tensor.bytes),),
    roots=lambda layout, shards: layout.devices,
)
"""Last step of two levels: (m-1)(alpha + s beta). The m devices of a node send in rotation."""


# Functions that compute the sizes of the tensors that are sent, after gradients are packed.


class NotPredictedError(ValueError):
    """The cost model has no formula for an all-reduce algorithm, or the algorithm does not work
    with the number of devices.
    """


class TrainingStep(NamedTuple):
    """What one device does in a training step: its gradients, and the time of its computation.

    `tensors` are the gradients before packing, `step_seconds` is None if unknown, and `batch_size`
    is the batch size of one device.
    """

    model: str
    tensors: tuple[Tensor, ...]
    packing: Packing
    dtype: str
    step_seconds: float | None
    batch_size: int

    @property
    def bytes(self) -> int:
        """Size in bytes of the gradients of one device."""
        return sum(tensor.bytes for tensor in self.tensors)


def gradient_tensors(shapes: Sequence[Sequence[int]], itemsize: int) -> tuple[Tensor, ...]:
    """Describes gradients: one tensor for each shape, with `itemsize` bytes for each element."""
    return tuple(Tensor(math.prod(shape), itemsize) for shape in shapes)


def pack_tensors(packing: Packing, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Computes which tensors a device sends after its gradients `tensors` are packed: joined, and
    converted to 16 bits.
    """
    joined = _join_small_tensors(packing, tensors)
    if packing.compact_dtype is None:
        return joined
    itemsize = DTYPE_BYTES[packing.compact_dtype]
    return [Tensor(tensor.elements, min(tensor.itemsize, itemsize)) for tensor in joined]


def _join_small_tensors(packing: Packing, tensors: Sequence[Tensor]) -> list[Tensor]:
    result = list(tensors)
    if packing.agg_small_grads_max_bytes:
        small = (t.itemsize == 4 and t.bytes <= packing.agg_small_grads_max_bytes for t in tensors)
        groups = group_small_tensors(small, packing.agg_small_grads_max_group)
        result = [_join_tensors([tensors[index] for index in group]) for group in groups]
    if packing.gradient_bucket_bytes:
        # All gradients have the same dtype, so all elements have the same size.
        sizes_of = [(str(t.itemsize), t.bytes) for t in result]
        groups = group_into_buckets(sizes_of, packing.gradient_bucket_bytes)
        result = [_join_tensors([result[index] for index in group]) for group in groups]
    if packing.gradient_repacking and result:
        whole = _join_tensors(result)
        line = LINE_BYTES // whole.itemsize
        sizes = buffer_sizes(whole.elements, packing.gradient_repacking, line)
        result = [Tensor(size, whole.itemsize) for size in sizes]
    return result


def packing_text(packing: Packing) -> str:
    """Describes in words how gradients are packed, for printed and recorded predictions."""
    parts = []
    if packing.agg_small_grads_max_bytes:
        parts.append(
            f"up to {packing.agg_small_grads_max_group} of at most "
            f"{packing.agg_small_grads_max_bytes} bytes joined"
        )
    if packing.gradient_bucket_bytes:
        parts.append(f"buckets of {packing.gradient_bucket_bytes} bytes")
    if packing.gradient_repacking:
        parts.append(f"{packing.gradient_repacking} packs")
    if packing.compact_dtype:
        parts.append(f"sent as {packing.compact_dtype}")
    return ", ".join(parts) or "unpacked"


def _join_tensors(tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(sum(tensor.elements for tensor in tensors), tensors[0].itemsize)


# The time of an all-reduce depends on the links, the algorithm and the sizes of the tensors.


@dataclass(frozen=True)
class Interconnect:
    """The links between devices: one link per device, or nodes of several devices with one link per
    node.

    Attributes:
      link: link between the devices of a node, or between all devices.
      inter_link: link between nodes; None if every device has its own link to all other devices.
      devices_per_node: number of devices in a node; used with inter_link.
      launch: additional seconds per reduction.
      kind: "network", the only kind so far.
    """

    link: Link
    inter_link: Link | None = None
    devices_per_node: int = 1
    launch: float = 0.0
    kind: str = field(default="network", metadata=choice_metadata(("network",)))

    @property
    def name(self) -> str:
        """The names of the links, such as "hdr" or "8 x nvlink3 + hdr"."""
        if self.inter_link is None:
            return self.link.name
        return f"{self.devices_per_node} x {self.link.name} + {self.inter_link.name}"

    def predict_seconds(
        self, spec: AllReduceSpec, tensors: Sequence[Tensor], devices: int, packing: Packing
    ) -> float:
        """Predicts the time in seconds of an all-reduce of the gradients `tensors` of each device,
        which are packed first.
        """
        if devices == 1:
            return 0.0
        # The phases of the busiest device determine the time.
        phases: list[ReductionPhase] = []
        if packing.joins_gradients:
            # Joining tensors copies them. Splitting the result copies nothing: it creates views.
            phases.append(ReductionPhase(copied=sum(tensor.bytes for tensor in tensors)))
        travelling = pack_tensors(packing, tensors)
        layout = NodeLayout(devices, self.devices_per_node if self.inter_link is not None else 1)
        for index, part in enumerate(spec.ranges):
            mine = [tensor for tensor in travelling if spec.range_index(tensor.bytes) == index]
            if mine:
                phases += self._algorithm_phases(part.algorithm, mine, layout)
        return self.launch + self._path_seconds(phases)

    def _one_level_phases(
        self, name: str, tensors: Sequence[Tensor], layout: NodeLayout, shards: int
    ) -> Path:
        formula = all_cost_formulas().get(name)
        if formula is None:
            raise NotPredictedError(f"there is no formula for {name}")
        if shards > layout.devices:
            raise NotPredictedError(f"{shards} shards need as many devices")
        return self._phases_of_all_tensors(formula, tensors, layout, shards)

    def _algorithm_phases(
        self, algorithm: AlgorithmSpec, tensors: Sequence[Tensor], layout: NodeLayout
    ) -> Path:
        """Lists the phases, one after another, in which an algorithm with one or two levels reduces
        the tensors.

        With two levels, there are three kinds of phases: within nodes, between one device of each
        node, and back within nodes.
        """
        if len(algorithm.levels) == 1:
            return self._one_level_phases(algorithm.levels[0], tensors, layout, algorithm.shards)
        if self.inter_link is None:
            raise NotPredictedError(
                f"{algorithm} has two levels; give --inter_link and --devices_per_node"
            )
        within, between = algorithm.levels
        inside = NodeLayout(layout.near, layout.near)
        phases: list[ReductionPhase] = []
        if inside.devices > 1:
            phases += self._one_level_phases(within, tensors, inside, 1)
        if layout.nodes > 1:
            phases += self._one_level_phases(
                between, tensors, NodeLayout(layout.nodes), algorithm.shards
            )
            if inside.devices > 1:
                phases += self._phases_of_all_tensors(SPREAD, tensors, inside, 1)
        return phases

    def _phases_of_all_tensors(
        self, formula: Formula, tensors: Sequence[Tensor], layout: NodeLayout, shards: int
    ) -> Path:
        """Lists the phases, one after another, until all tensors are reduced. Their times add up to
        the time of the all-reduce.

        The list contains the phases of the slowest tensor, and phases for which other tensors keep
        the same device busy.
        """
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
            loads[index % roots] = _add_phases(loads[index % roots], busy)
            wait = self._path_seconds(path) - self._path_seconds(busy)
            if wait > waiting:
                longest, instead, waiting = path, busy, wait
        per_node = formula.roots(layout, shards) * layout.near // layout.devices
        _add_shared_link_load(loads, max(1, per_node))
        load = max(loads, key=self._path_seconds)
        if formula.busy is None:
            return load
        return [*_add_phases(load, [phase.times(-1) for phase in instead]), *longest]

    def _path_seconds(self, path: Path) -> float:
        return sum(phase.seconds(self.link, self.inter_link or self.link) for phase in path)


def _add_phases(load: Path, path: Path) -> list[ReductionPhase]:
    both = itertools.zip_longest(load, path, fillvalue=ReductionPhase())
    return [first + second for first, second in both]


def _add_shared_link_load(loads: list[list[ReductionPhase]], per_node: int) -> None:
    """Adds to the load of each root the bytes that all other roots in its node send, because they
    share one link.
    """
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


# A link is described by its latency, its time per byte, and the time per added byte.

_GIGA = 1e9
_MICRO = 1e-6

_NVLINK_ALPHA = 3.4 * _MICRO
_PCIE_ALPHA = 5.7 * _MICRO
_RDMA_ALPHA = 14.0 * _MICRO
# A message of 2 KB between two hosts takes 25.4 us with TCP and 1.7 us with RDMA.
_TCP_ALPHA = _RDMA_ALPHA + (25.4 - 1.7) * _MICRO

# Share of the line rate for payload. The MTU is 4096 bytes with RDMA and 1500 bytes with TCP.
_INFINIBAND_PAYLOAD = 4096 / 4122
_ROCE_PAYLOAD = 4096 / 4178
_TCP_PAYLOAD = 1448 / 1538

_V100_MEMORY = 900 * _GIGA
_A100_MEMORY = 1555 * _GIGA
_H100_PCIE_MEMORY = 2000 * _GIGA
_H100_SXM_MEMORY = 3350 * _GIGA

# Adding a byte moves three bytes in memory: two bytes are read and one byte is written.
_TRAFFIC_OF_ADDING = 3

# Maps presets to latency (alpha), bandwidth, and memory bandwidth of a GPU of the same age.
_FIGURES = {
    "pcie3": (_PCIE_ALPHA, 12 * _GIGA, _V100_MEMORY),
    "pcie4": (_PCIE_ALPHA, 24 * _GIGA, _A100_MEMORY),
    "pcie5": (_PCIE_ALPHA, 48 * _GIGA, _H100_PCIE_MEMORY),
    "nvlink2": (_NVLINK_ALPHA, 6 * 20.0 * _GIGA, _V100_MEMORY),
    "nvlink3": (_NVLINK_ALPHA, 12 * 20.0 * _GIGA, _A100_MEMORY),
    "nvlink4": (_NVLINK_ALPHA, 18 * 20.6 * _GIGA, _H100_SXM_MEMORY),
    "tcp25": (_TCP_ALPHA, 25 / 8 * _TCP_PAYLOAD * _GIGA, _V100_MEMORY),
    "tcp100": (_TCP_ALPHA, 100 / 8 * _TCP_PAYLOAD * _GIGA, _V100_MEMORY),
    "tcp200": (_TCP_ALPHA, 200 / 8 * _TCP_PAYLOAD * _GIGA, _A100_MEMORY),
    "tcp400": (_TCP_ALPHA, 400 / 8 * _TCP_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
    "roce25": (_RDMA_ALPHA, 25 / 8 * _ROCE_PAYLOAD * _GIGA, _V100_MEMORY),
    "roce100": (_RDMA_ALPHA, 100 / 8 * _ROCE_PAYLOAD * _GIGA, _V100_MEMORY),
    "roce200": (_RDMA_ALPHA, 200 / 8 * _ROCE_PAYLOAD * _GIGA, _A100_MEMORY),
    "roce400": (_RDMA_ALPHA, 400 / 8 * _ROCE_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
    "edr": (_RDMA_ALPHA, 100 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _V100_MEMORY),
    "hdr": (_RDMA_ALPHA, 200 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _A100_MEMORY),
    "ndr": (_RDMA_ALPHA, 400 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
}

PRESETS = {
    name: Link(name, alpha, 1 / bandwidth, _TRAFFIC_OF_ADDING / memory)
    for name, (alpha, bandwidth, memory) in _FIGURES.items()
}
"""Links by name. NVLink means an NVSwitch, or direct links between all GPUs."""

LARGEST_DOMAIN = {"nvlink2": 16, "nvlink3": 16, "nvlink4": 256}
"""Maximum number of GPUs that a preset connects with NVSwitch.

The machines are DGX-2, HGX A100 with two boards, and DGX H100 with the NVLink Switch System.
Networks have no limit.
"""

_KEYS = ("alpha", "bandwidth", "gamma")


def parse_link(flag: str, text: str) -> Link:
    """Parses the value of --link or --inter_link. If a link has no gamma, the time per added byte,
    additions take no time.

    `text` is a preset, or ``alpha=SECONDS,bandwidth=BYTES_PER_SECOND[,gamma=SECONDS_PER_BYTE]``, or
    a preset followed by parameters that are different, such as ``edr,alpha=5e-6``.
    """
    first, *rest = [part.strip() for part in text.split(",")]
    link = None if "=" in first else _find_preset(flag, text, first)
    values = _parse_link_values(flag, text, rest if link is not None else [first, *rest])
    if link is None:
        missing = [key for key in _KEYS[:2] if key not in values]
        if missing:
            raise FlagError(
                flag, text, f"lacks {missing[0]}; give alpha=SECONDS,bandwidth=BYTES_PER_SECOND"
            )
        link = Link(text, 0.0, 0.0, 0.0)
    changes = dict(values)
    if "bandwidth" in changes:
        changes["beta"] = 1 / changes.pop("bandwidth")
    return dataclasses.replace(link, name=text, **changes)


def _find_preset(flag: str, text: str, name: str) -> Link:
    if name not in PRESETS:
        close = nearest_word(name, PRESETS)
        hint = f"did you mean {close}? " if close else ""
        raise FlagError(
            flag,
            text,
            f"there is no link {name!r}; {hint}must be one of {', '.join(PRESETS)}, or "
            "alpha=SECONDS,bandwidth=BYTES_PER_SECOND",
        )
    return PRESETS[name]


def _parse_link_values(flag: str, text: str, parts: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for part in parts:
        key, equals, number = part.partition("=")
        if not equals or key not in _KEYS or key in values:
            reason = "is given twice" if key in values else f"must be {' or '.join(_KEYS)}=number"
            raise FlagError(flag, text, f"{part!r} {reason}")
        try:
            value = parse_number(number)
        except ValueError:
            value = -1.0
        if value < 0 or (key == "bandwidth" and value == 0):
            least = "above 0" if key == "bandwidth" else "of at least 0"
            raise FlagError(flag, text, f"{key} must be a finite number {least}, not {number!r}")
        values[key] = value
    return values


# Functions that predict the times of a reduction and of a step, and the fastest algorithms.

_SMALLEST, _DOUBLINGS = 1024, 20  # Tensor sizes range from 1 KiB to 1 GiB (1 KiB * 2 ** 20).
_STEPS_PER_DOUBLING = 4
# An algorithm replaces the fastest algorithm only if it needs less than this share of its time.
# Otherwise, two algorithms with nearly equal times would alternate from size to size.
_CLEARLY = 0.99
# Relative accuracy of the size at which a different algorithm becomes the fastest.
_ACCURACY = 1.02
_ITEMSIZE = 4

COLUMNS = (*(column.name for column in fields(Prediction)), "schema")
"""All columns of the CSV table, in order. Unknown values are empty."""


@dataclass(frozen=True)
class FastestRange:
    """A range of tensor sizes for which the same all-reduce algorithm (spec) is the fastest.

    Attributes:
      spec: the fastest spec.
      up_to: size in bytes from which another spec is faster; None for the last range.
    """

    spec: str
    up_to: int | None


@dataclass(frozen=True, kw_only=True)
class FastestByDevices:
    """The fastest all-reduce algorithm (spec) for each size of a single tensor, for a given number
    of devices.

    Attributes:
      devices: number of devices.
      ranges: ranges of sizes, ascending.
    """

    devices: int
    ranges: tuple[FastestRange, ...]


@dataclass(frozen=True, kw_only=True)
class PredictionDocument(Predictions):
    """The result document of ``cnnbench allreduce --predict``, schema 1.

    Attributes:
      parameters: links of the cost model.
      fastest: fastest specs for each number of devices.
      validation: empty; parameters are not fitted to measurements.
    """

    item_lines: ClassVar[tuple[str, ...]] = ("rows", "fastest")

    parameters: Interconnect
    fastest: tuple[FastestByDevices, ...]
    validation: Mapping[str, float] = field(default_factory=dict)


def predict_all(
    interconnect: Interconnect,
    step: TrainingStep,
    specs: Sequence[AllReduceSpec],
    device_counts: Sequence[int],
) -> list[Prediction]:
    """Predicts reduction and step times for all algorithms (specs) and all numbers of devices, in
    the order of `device_counts`.
    """
    pairs = itertools.product(device_counts, specs)
    return [_predict_one(interconnect, step, spec, devices) for devices, spec in pairs]


def fastest_predictions(predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    """Selects the prediction with the shortest reduction time for each number of devices; with
    ties, the first prediction.
    """
    by_devices: dict[int, list[tuple[float, Prediction]]] = {}
    for prediction in predictions:
        if prediction.allreduce_seconds is not None:
            by_devices.setdefault(prediction.devices, []).append(
                (prediction.allreduce_seconds, prediction)
            )
    return {n: min(timed, key=lambda pair: pair[0])[1] for n, timed in by_devices.items()}


def fastest_by_size(
    interconnect: Interconnect, specs: Sequence[AllReduceSpec], devices: int
) -> tuple[FastestRange, ...]:
    """Finds the fastest all-reduce algorithm (spec) for a float32 tensor, as ascending ranges of
    sizes from 1 KiB to 1 GiB.

    With ties, the first algorithm is used. An algorithm remains the fastest until a different
    algorithm is 1 % faster. Empty if there is no prediction for any algorithm.
    """

    def fastest_spec(size: int, known: str | None) -> str | None:
        """Returns the fastest algorithm for a tensor of `size` bytes, or `known` if no other
        algorithm is clearly faster.
        """
        tensor = Tensor(max(1, size // _ITEMSIZE), _ITEMSIZE)
        times: dict[str, float] = {}
        for spec in specs:
            with contextlib.suppress(NotPredictedError):
                times[str(spec)] = interconnect.predict_seconds(spec, (tensor,), devices, Packing())
        best = min(times, key=times.__getitem__, default=None)
        if best is not None and known in times and times[best] > _CLEARLY * times[known]:
            return known
        return best

    spec, low = fastest_spec(_SMALLEST, None), _SMALLEST
    if spec is None:
        return ()
    ranges: list[FastestRange] = []
    for step in range(1, _DOUBLINGS * _STEPS_PER_DOUBLING + 1):
        size = round(_SMALLEST * 2 ** (step / _STEPS_PER_DOUBLING))
        following = fastest_spec(size, spec)
        if following is not None and following != spec:
            high = size
            while high > low * _ACCURACY and high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fastest_spec(middle, spec) == spec else (low, middle)
            ranges.append(FastestRange(spec, high))
            spec = following
        low = size
    return (*ranges, FastestRange(spec, None))


def _predict_one(
    interconnect: Interconnect, step: TrainingStep, spec: AllReduceSpec, devices: int
) -> Prediction:
    """Predicts the times of an all-reduce and of a training step for one algorithm and number of
    devices.

    Without overlap, the step time is the sum of computation time and reduction time. With full
    overlap, it is the longer of the two times.
    """
    seconds: float | None = None
    not_predicted: str | None = None
    try:
        seconds = interconnect.predict_seconds(spec, step.tensors, devices, step.packing)
    except NotPredictedError as error:
        not_predicted = str(error)
    compute = step.step_seconds
    whole = overlapped = None
    if compute is not None and seconds is not None:
        whole, overlapped = compute + seconds, max(compute, seconds)
    images = step.batch_size * devices
    return Prediction(
        model=step.model,
        bytes=step.bytes,
        gradients=len(step.tensors),
        dtype=step.dtype,
        packing=packing_text(step.packing),
        parameters=interconnect.name,
        devices=devices,
        spec=str(spec),
        allreduce_seconds=seconds,
        compute_seconds=compute,
        step_seconds=whole,
        efficiency=_ratio_or_none(compute, whole),
        images_per_sec=_ratio_or_none(images, whole),
        overlapped_step_seconds=overlapped,
        overlapped_efficiency=_ratio_or_none(compute, overlapped),
        overlapped_images_per_sec=_ratio_or_none(images, overlapped),
        not_predicted=not_predicted,
    )


def _ratio_or_none(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
