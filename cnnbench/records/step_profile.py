"""The profile of a process's steps: the time of each step by layer, kind and direction.

Every moment of a profiled step is counted once: divided equally among the operations that run
(collectives and copies between devices count only where nothing else runs) or, while none runs, for
one of the parts below.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from cnnbench.records.amounts import check_amount, check_amounts, is_amount
from cnnbench.records.codec import ABSENT, Document
from cnnbench.records.run import RunRecord

FORWARD, TO_INPUT, TO_KERNEL, OUTSIDE = "forward", "input gradient", "kernel gradient", "step"
"""Directions of operations; the last is for operations outside of towers."""

INPUT, HOST = "input", "host"
"""Directions of time outside of operations: waiting for input, and for the program."""

REST = "reduction and updates"
"""The layer of operations outside of towers."""

REDUCTION, UPDATE, COPIES = "reduction", "update", "copies between devices"
"""Kinds in that layer."""

_OTHER, _IDLE = "other", "no operation"
ACTIVITIES = (FORWARD, TO_INPUT, TO_KERNEL, UPDATE, REDUCTION, INPUT, COPIES, _OTHER, _IDLE)
"""What a step consists of, apart from layers; see `activity`. The last is that nothing runs."""


class Part(NamedTuple):
    """The key by which times are added up.

    The layer is a canonical name; for operations outside of any layer, their kind. An example of a
    kind is "convolution 3x3"; for directions see `FORWARD` and `INPUT`.
    """

    layer: str
    kind: str
    direction: str


INPUT_OPERATIONS = Part("input pipeline", "operations", INPUT)
"""Operations of the input pipeline while no operation of the step ran."""

INPUT_WAIT = Part("input pipeline", "wait", INPUT)
"""Waiting for a batch before the step."""

GAPS = Part("between operations", "no operation", HOST)
"""Time without operations between the first and the last one of the step."""

PROGRAM = Part("outside the graph", "program", HOST)
"""Time of a step before its first operation and after its last."""


@dataclass(frozen=True, kw_only=True)
class ProfiledPart:
    """One layer, kind and direction.

    Attributes:
      layer, kind, direction: layer (canonical name, or kind of operation outside of layers), kind
        such as "convolution 3x3", and direction such as "forward" or "kernel gradient".
      seconds: share of the wall time of each profiled step, in seconds.
      flops: FLOPs of convolutions and matrix products in a step, of all devices together.
      bytes: bytes read and written in a step, by the shapes of the graph.
      operations: number of operations in the last profiled step, by kernel and type of result,
        such as "_FusedConv2D bfloat16".
    """

    layer: str
    kind: str
    direction: str
    seconds: tuple[float, ...]
    flops: int
    bytes: int
    operations: Mapping[str, int]

    @property
    def part(self) -> Part:
        """The key of these operations or this waiting."""
        return Part(self.layer, self.kind, self.direction)


@dataclass(frozen=True, kw_only=True)
class ProfiledSpan:
    """Operations of one part that followed each other on one device.

    Attributes:
      device: name such as "gpu:0"; "" for the input pipeline.
      layer, kind, direction: key of the part, as in `rows`.
      start, end: seconds since the start of the profile's first operation.
    """

    device: str
    layer: str
    kind: str
    direction: str
    start: float
    end: float


def activity(part: ProfiledPart | ProfiledSpan) -> str:
    """The one of `ACTIVITIES` that a part or a span belongs to."""
    if part.direction == HOST:
        return _IDLE
    if part.layer == REST:
        return part.kind if part.kind in (REDUCTION, COPIES, UPDATE) else _OTHER
    return part.direction if part.direction in ACTIVITIES else _OTHER


@dataclass(frozen=True, kw_only=True)
class ProfiledLayer:
    """A layer with trainable variables.

    Attributes:
      name: canonical name.
      kind: kind of its product, such as "convolution 3x3"; empty without one.
      shapes: shapes of its variables, kernels as (height, width, inputs, outputs).
      parameters: number of trainable parameters.
      flops: FLOPs of the forward pass in a step, of all devices together.
    """

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    flops: int


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """Calls of one kernel of oneDNN in a step.

    Attributes:
      name: kind of primitive, such as "convolution".
      propagation: propagation, such as "backward_weights"; empty if it has none.
      types: types of its tensors in oneDNN's notation, such as "bf16, f32".
      implementation: implementation, such as "brgconv:avx512_core"; empty if unknown.
      layouts: layouts of its tensors except vectors, such as "src acdb, wei Acdb64a, dst acdb".
      calls: number of calls in a step.
    """

    name: str
    propagation: str
    types: str
    implementation: str
    layouts: str
    calls: int


@dataclass(frozen=True, kw_only=True)
class StepProfile(Document):
    """Profiled steps of one process, schema 1.

    Attributes:
      step_seconds: wall seconds of each profiled step, with the profiler at work.
      input_wait_seconds: seconds of each profiled step in which the program waited for a batch.
      rows: times by layer, kind and direction; those of a step add up to its wall time.
      graph: number of operations by type in TensorFlow's optimized and partitioned graphs.
      record: record of the whole run, whose timed steps are not profiled.
      layers: layers of the network, in order; absent in documents of earlier versions.
      primitives: calls of oneDNN in a step, from its log of another process with the same flags;
        absent where no log was read.
      allocations, allocated_bytes: number and bytes of allocations from TensorFlow's memory pools
        in the last profiled step; absent where unknown.
      timeline: spans of the last profiled step by their start, without very short ones; absent in
        documents of earlier versions.
    """

    kind: ClassVar[str] = "step_profile"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "layers", "primitives", "timeline")

    step_seconds: tuple[float, ...]
    input_wait_seconds: tuple[float, ...]
    rows: tuple[ProfiledPart, ...]
    graph: Mapping[str, int]
    record: RunRecord
    layers: tuple[ProfiledLayer, ...] | None = field(default=None, metadata=ABSENT)
    primitives: tuple[Primitive, ...] | None = field(default=None, metadata=ABSENT)
    allocations: int | None = field(default=None, metadata=ABSENT)
    allocated_bytes: int | None = field(default=None, metadata=ABSENT)
    timeline: tuple[ProfiledSpan, ...] | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        steps = len(self.step_seconds)
        if not steps or not all(map(is_amount, self.step_seconds)):
            raise ValueError("step_seconds: there must be times, all greater than 0")
        if not self.record.step_seconds:
            raise ValueError("record.step_seconds: no timed step")
        for name in ("allocations", "allocated_bytes"):
            if value := getattr(self, name):
                check_amount(name, value)
        for section in ("rows", "layers", "primitives"):
            for one in getattr(self, section) or ():
                check_amounts(section, one)
        for row in self.rows:
            if len(row.seconds) != steps:
                raise ValueError(f"rows: {len(row.seconds)} values for {steps} steps")
        times = (self.input_wait_seconds, *(row.seconds for row in self.rows))
        for seconds in itertools.chain(*times):
            if seconds != 0 and not is_amount(seconds):
                raise ValueError(f"{seconds} is not a time")
        if len(self.input_wait_seconds) != steps:
            raise ValueError(f"input_wait_seconds: {len(self.input_wait_seconds)} values")
