"""`StepProfile`: the step times of a process by layer, kind of operation and direction.

Every moment of a profiled step is counted once. While operations run, the time is divided equally
among them (collectives and copies between devices count only while nothing else runs). The time
while no operation runs is counted as `INPUT_WAIT`, `GAPS` or `PROGRAM`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from cnnbench.records.codec import (
    ABSENT,
    Document,
    check_amount_in_range,
    check_amounts_in_range,
    is_valid_amount,
    json_document,
)
from cnnbench.records.run import RunRecord

FORWARD, TO_INPUT, TO_KERNEL, OUTSIDE = "forward", "input gradient", "kernel gradient", "step"
"""Directions of operations. "step" is the direction of operations outside of towers."""

INPUT, HOST = "input", "host"
"""Directions of the time in which a step waits: for input, or for the program on the host."""

REST = "reduction and updates"
"""The layer of operations outside of towers."""

REDUCTION, UPDATE, COPIES = "reduction", "update", "copies between devices"
"""Kinds of the operations outside of towers (layer `REST`)."""

_OTHER, _IDLE = "other", "no operation"
ACTIVITIES = (FORWARD, TO_INPUT, TO_KERNEL, UPDATE, REDUCTION, INPUT, COPIES, _OTHER, _IDLE)
"""What a step does at a moment; see `activity_of_part`. In "no operation", nothing runs."""


class StepPartKey(NamedTuple):
    """Key by which the times of operations in a step are added up: layer, kind of operation, and
    direction (such as "forward").

    The layer is a canonical name; for operations outside of any layer, it is the kind of operation.
    An example of a kind is "convolution 3x3"; for directions see `FORWARD` and `INPUT`.
    """

    layer: str
    kind: str
    direction: str


INPUT_OPERATIONS = StepPartKey("input pipeline", "operations", INPUT)
"""Operations of the input pipeline while no operation of the step ran."""

INPUT_WAIT = StepPartKey("input pipeline", "wait", INPUT)
"""Time before the step in which the program waits for a batch."""

GAPS = StepPartKey("between operations", "no operation", HOST)
"""Time between the first and the last operation of the step in which no operation runs."""

PROGRAM = StepPartKey("outside the graph", "program", HOST)
"""Time of a step before its first operation and after its last operation."""


@dataclass(frozen=True, kw_only=True)
class ProfiledPart:
    """Time, FLOPs, bytes and number of the operations of a step that have the same layer, kind and
    direction.

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
    def part(self) -> StepPartKey:
        """Key of this entry: layer, kind and direction."""
        return StepPartKey(self.layer, self.kind, self.direction)


@dataclass(frozen=True, kw_only=True)
class ProfiledSpan:
    """Consecutive operations on one device that have the same layer, kind and direction.

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


def activity_of_part(part: ProfiledPart | ProfiledSpan) -> str:
    """Returns the activity to which operations of a step belong: an item of `ACTIVITIES`, such as
    "forward" or "reduction".
    """
    if part.direction == HOST:
        return _IDLE
    if part.layer == REST:
        return part.kind if part.kind in (REDUCTION, COPIES, UPDATE) else _OTHER
    return part.direction if part.direction in ACTIVITIES else _OTHER


@dataclass(frozen=True, kw_only=True)
class ProfiledLayer:
    """A layer of the profiled network that has trainable variables.

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
    """Number of calls of one oneDNN kernel in a step.

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


@json_document("cnnbench run --profile_json=FILE")
@dataclass(frozen=True, kw_only=True)
class StepProfile(Document):
    """Profile of some steps of one process (schema 1).

    Attributes:
      step_seconds: wall seconds of each profiled step, with the profiler at work.
      input_wait_seconds: seconds of each profiled step in which the program waited for a batch.
      rows: times by layer, kind and direction. The times of a step add up to its wall time.
      graph: number of operations by type in TensorFlow's optimized and partitioned graphs.
      record: record of the whole run, whose timed steps are not profiled.
      layers: layers of the network, in order; absent in documents of earlier versions.
      primitives: calls of oneDNN kernels in a step, from the log of another process with the same
        flags; absent if no log was read.
      allocations, allocated_bytes: number and bytes of allocations from TensorFlow's memory pools
        in the last profiled step; absent if unknown.
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
        if not steps or not all(map(is_valid_amount, self.step_seconds)):
            raise ValueError("step_seconds: must contain times, all greater than 0")
        if not self.record.step_seconds:
            raise ValueError("record.step_seconds: no timed step")
        for name in ("allocations", "allocated_bytes"):
            if value := getattr(self, name):
                check_amount_in_range(name, value)
        for section in ("rows", "layers", "primitives"):
            for item in getattr(self, section) or ():
                check_amounts_in_range(section, item)
        for row in self.rows:
            if len(row.seconds) != steps:
                raise ValueError(f"rows: {len(row.seconds)} values for {steps} steps")
        times = (self.input_wait_seconds, *(row.seconds for row in self.rows))
        for seconds in itertools.chain(*times):
            if seconds != 0 and not is_valid_amount(seconds):
                raise ValueError(f"{seconds} is not a time")
        if len(self.input_wait_seconds) != steps:
            raise ValueError(f"input_wait_seconds: {len(self.input_wait_seconds)} values")
