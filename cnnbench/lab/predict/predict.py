"""Predictions of reduction and step times with the cost formulas of all-reduce algorithms.

Each algorithm declares its formula (`Registration.cost`). A formula returns the path of one tensor
with s bytes, which is a sequence of messages, bytes and additions (see `ReductionPhase`). In
Hockney's terms, the cost is messages * alpha + bytes * beta + added * gamma. In the formulas, there
are ``n`` devices and ``k`` shards. All algorithms except copying split a tensor into chunks of at
least 16 KiB, so a small tensor is one chunk. At the end, a copy joins the chunks.

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
from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

from cnnbench.base.text import unknown_name_reason
from cnnbench.base.values import parse_number
from cnnbench.errors import FlagError
from cnnbench.records.all_reduce import Prediction, Predictions
from cnnbench.records.codec import choice_metadata, json_document
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    Link,
    NodeLayout,
    Path,
    ReductionPhase,
    Tensor,
    star_of,
)
from cnnbench.variable_mgr.all_reduce.registry import find
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES, LINE_BYTES
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec
from cnnbench.variable_mgr.packing import (
    Packing,
    buffer_sizes,
    group_into_buckets,
    group_small_tensors,
)

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
    joined = _joined(packing, tensors)
    if packing.compact_dtype is None:
        return joined
    itemsize = DTYPE_BYTES[packing.compact_dtype]
    return [Tensor(tensor.elements, min(tensor.itemsize, itemsize)) for tensor in joined]


def _joined(packing: Packing, tensors: Sequence[Tensor]) -> list[Tensor]:
    result = list(tensors)
    if packing.agg_small_grads_max_bytes:
        small = (t.itemsize == 4 and t.bytes <= packing.agg_small_grads_max_bytes for t in tensors)
        groups = group_small_tensors(small, packing.agg_small_grads_max_group)
        result = [_join_tensors([tensors[index] for index in group]) for group in groups]
    if packing.gradient_bucket_bytes:
        # All gradients have the same dtype, so one size of elements is enough.
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
        most, largest = packing.agg_small_grads_max_group, packing.agg_small_grads_max_bytes
        parts.append(f"up to {most} of at most {largest} bytes joined")
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
        # All devices work at the same time, so the phases of the busiest one determine the total.
        phases: list[ReductionPhase] = []
        if packing.joins_gradients:
            # Joining tensors takes time, because it copies them. Splitting the result takes none,
            # because it only creates views.
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
        declared = find(name)
        if declared is None or declared.cost is None:
            raise NotPredictedError(f"there is no formula for {name}")
        if shards > layout.devices:
            raise NotPredictedError(f"{shards} shards need as many devices")
        return self._all_phases(declared.cost, tensors, layout, shards)

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
                phases += self._all_phases(SPREAD, tensors, inside, 1)
        return phases

    def _all_phases(
        self, formula: Formula, tensors: Sequence[Tensor], layout: NodeLayout, shards: int
    ) -> Path:
        """Lists the phases, one after another, until all tensors are reduced. Their times add up to
        the time of the all-reduce.

        The list contains the phases of the slowest tensor, and phases for which other tensors keep
        the same device busy.
        """
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
        _add_link_load(loads, max(1, per_node))
        load = max(loads, key=self._path_seconds)
        if formula.busy is None:
            return load
        return [*_add_phases(load, [phase.times(-1) for phase in instead]), *longest]

    def _path_seconds(self, path: Path) -> float:
        return sum(phase.seconds(self.link, self.inter_link or self.link) for phase in path)


def _add_phases(load: Path, path: Path) -> list[ReductionPhase]:
    both = itertools.zip_longest(load, path, fillvalue=ReductionPhase())
    return [first + second for first, second in both]


def _add_link_load(loads: list[list[ReductionPhase]], per_node: int) -> None:
    """Adds to the load of each root the bytes of the others in its node: they share a link."""
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


# A link is described by three numbers: its latency, its time per byte, and the time per added byte.

_GIGA = 1e9
_MICRO = 1e-6

_NVLINK_ALPHA = 3.4 * _MICRO
_PCIE_ALPHA = 5.7 * _MICRO
_RDMA_ALPHA = 14.0 * _MICRO
# Between two hosts, a message of 2 KB takes 25.4 us with TCP, and 1.7 us with RDMA.
_TCP_ALPHA = _RDMA_ALPHA + (25.4 - 1.7) * _MICRO

# Share of the line rate that is left for payload, with an MTU of 4096 bytes (RDMA) or 1500 bytes
# (TCP).
_INFINIBAND_PAYLOAD = 4096 / 4122
_ROCE_PAYLOAD = 4096 / 4178
_TCP_PAYLOAD = 1448 / 1538

_V100_MEMORY = 900 * _GIGA
_A100_MEMORY = 1555 * _GIGA
_H100_PCIE_MEMORY = 2000 * _GIGA
_H100_SXM_MEMORY = 3350 * _GIGA

# To add a byte, three bytes move in memory: two are read and one is written.
_TRAFFIC_OF_ADDING = 3

# For each preset: latency (alpha), bandwidth, and memory bandwidth of a GPU from the same time.
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
    link, form = PRESETS.get(first), "alpha=SECONDS,bandwidth=BYTES_PER_SECOND"
    if link is None and "=" not in first:
        reason = unknown_name_reason(first, PRESETS)
        raise FlagError(flag, text, f"there is no link {first!r}; {reason}, or {form}")
    values = _parse_parts(flag, text, [first, *rest] if link is None else rest)
    if link is None:
        missing = [key for key in _KEYS[:2] if key not in values]
        if missing:
            raise FlagError(flag, text, f"lacks {missing[0]}; give {form}")
        link = Link(text, 0.0, 0.0, 0.0)
    if "bandwidth" in values:
        values["beta"] = 1 / values.pop("bandwidth")
    return dataclasses.replace(link, name=text, **values)


def _parse_parts(flag: str, text: str, parts: list[str]) -> dict[str, float]:
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

_SMALLEST, _DOUBLINGS = 1024, 20  # From 1 KiB to 1 GiB (1 KiB * 2 ** 20).
_STEPS_PER_DOUBLING = 4
# Another algorithm counts as faster only if it needs less than this share of the time; otherwise,
# two algorithms with nearly equal times would alternate from size to size.
_CLEARLY = 0.99
# Relative accuracy of the size at which another algorithm becomes the fastest
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


@json_document("cnnbench allreduce --predict --result_json=FILE")
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
