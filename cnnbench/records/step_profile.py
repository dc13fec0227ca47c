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

from cnnbench.records.codec import ABSENT, Document
from cnnbench.records.parts import is_amount
from cnnbench.records.run import RunRecord

FORWARD, TO_INPUT, TO_KERNEL, OUTSIDE = "forward", "input gradient", "kernel gradient", "step"
"""Directions of operations; the last is for operations outside of towers."""

INPUT, HOST = "input", "host"
"""Directions of time outside of operations: waiting for input, and for the program."""

REST = "reduction and updates"
"""The layer of operations outside of towers."""

REDUCTION, UPDATE, COPIES = "reduction", "update", "copies between devices"
"""Kinds in that layer."""


class Part(NamedTuple):
    """The key by which times are added up.

    The layer is a canonical name; for operations outside of any layer, their kind. Kinds are such
    as "convolution 3x3"; for directions see `FORWARD` and `INPUT`.
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
      layer, kind, direction: see `Part`.
      seconds: of the wall time of each profiled step.
      flops: of convolutions and matrix products in a step, all devices together; 0 for others.
      bytes: read and written in a step, by the shapes of the graph.
      operations: how many ran in the last profiled step, by kernel and type of their results, such
        as "_FusedConv2D bfloat16".
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
        """What it is the time of."""
        return Part(self.layer, self.kind, self.direction)


@dataclass(frozen=True, kw_only=True)
class ProfiledSpan:
    """Operations of one part that followed each other on one device.

    Attributes:
      device: such as "gpu:0"; "" for the input pipeline.
      layer, kind, direction: see `Part`.
      start, end: seconds from the first operation of the profile.
    """

    device: str
    layer: str
    kind: str
    direction: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class ProfiledLayer:
    """A layer with trainable variables.

    Attributes:
      name: canonical.
      kind: of its product, such as "convolution 3x3"; empty where it has none.
      shapes: of its variables, kernels as (height, width, inputs, outputs).
      parameters: trainable ones.
      flops: of the forward pass of a step, all devices together.
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
      name: such as "convolution".
      propagation: such as "backward_weights"; empty where there is none.
      types: of its tensors, in oneDNN's words, such as "bf16, f32".
      implementation: such as "brgconv:avx512_core"; empty where the log does not tell.
      layouts: of its tensors but vectors, such as "src acdb, wei Acdb64a, dst acdb".
      calls: in a step.
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
      step_seconds: wall time of each profiled step, the profiler at work.
      input_wait_seconds: part of it in which the program waited for a batch.
      rows: their times; those of a step add up to its wall time.
      graph: operations by type in the graphs that TensorFlow optimized and divided among devices.
      record: of the whole run, whose timed steps are not profiled.
      layers: of the network, in the order of its body; None, and the key is missing, in documents
        of earlier versions.
      primitives: of oneDNN in a step, by its log of another process with the same flags; None, and
        the key is missing, where no log was read.
      allocations, allocated_bytes: of TensorFlow's pools of memory in the last profiled step; None,
        and the keys are missing, where it does not tell.
      timeline: of the last profiled step, by the start; without spans that are too short to be
        seen. None, and the key is missing, in documents of earlier versions.
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
        for row in self.rows:
            if len(row.seconds) != steps:
                raise ValueError(f"rows: {len(row.seconds)} values for {steps} steps")
        times = (self.input_wait_seconds, *(row.seconds for row in self.rows))
        for seconds in itertools.chain(*times):
            if seconds != 0 and not is_amount(seconds):
                raise ValueError(f"{seconds} is not a time")
        if len(self.input_wait_seconds) != steps:
            raise ValueError(f"input_wait_seconds: {len(self.input_wait_seconds)} values")
