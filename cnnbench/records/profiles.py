"""Records of where the time of a step goes: profiles, rooflines and explanations.

Every moment of a profiled step is counted once: divided equally among the operations that run
(collectives and copies between devices count only where nothing else runs) or, while none runs, for
one of the parts below.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from cnnbench.base.text import count_text
from cnnbench.records.codec import (
    ABSENT,
    OPTIONAL,
    Document,
    check_amount,
    check_amounts,
    choice_metadata,
    computed,
    is_valid_amount,
)
from cnnbench.records.run import RunRecord

# The profile of a process's steps: the time of each step by layer, kind and direction.

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
"""What a step consists of, apart from layers; see `activity_of_part`.

The last is that nothing runs.
"""


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
    """Consecutive operations of one part on one device.

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
    """The item of `ACTIVITIES` to which a part or a span belongs."""
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
        if not steps or not all(map(is_valid_amount, self.step_seconds)):
            raise ValueError("step_seconds: must contain times, all greater than 0")
        if not self.record.step_seconds:
            raise ValueError("record.step_seconds: no timed step")
        for name in ("allocations", "allocated_bytes"):
            if value := getattr(self, name):
                check_amount(name, value)
        for section in ("rows", "layers", "primitives"):
            for item in getattr(self, section) or ():
                check_amounts(section, item)
        for row in self.rows:
            if len(row.seconds) != steps:
                raise ValueError(f"rows: {len(row.seconds)} values for {steps} steps")
        times = (self.input_wait_seconds, *(row.seconds for row in self.rows))
        for seconds in itertools.chain(*times):
            if seconds != 0 and not is_valid_amount(seconds):
                raise ValueError(f"{seconds} is not a time")
        if len(self.input_wait_seconds) != steps:
            raise ValueError(f"input_wait_seconds: {len(self.input_wait_seconds)} values")


# The document of `cnnbench roofline`, schema 1: a step by layers, and the machine's rates.


@dataclass(frozen=True)
class Machine:
    """Peak rates of all devices of a run together.

    Attributes:
      flops_per_sec: FLOP/s of matrix products in the dtype of the run.
      bytes_per_sec: bytes read and written per second by copying memory.
      flops_source, bytes_source: how flops_per_sec and bytes_per_sec are known.
    """

    flops_per_sec: float
    bytes_per_sec: float
    flops_source: str = ""
    bytes_source: str = ""

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both times are equal."""
        return self.flops_per_sec / self.bytes_per_sec

    def seconds(self, flops: float, moved: float) -> float:
        """The shortest possible time for this number of FLOPs and bytes."""
        return max(flops / self.flops_per_sec, moved / self.bytes_per_sec)


@dataclass(frozen=True)
class RooflineRow:
    """Operations of one kind and direction in one layer, or a sum over layers.

    Attributes:
      layer, kind, direction: as in a step profile; "" where rows are added up over them.
      seconds: share of the wall time of a step, in seconds.
      flops: FLOPs of convolutions and matrix products in a step, of all devices together.
      bytes: bytes read and written in a step.
      bound_seconds: estimated least time, by the rates of the machine; caches may be faster than
        these. For a sum, the sum of its rows.
      share_of_step: `seconds` over the time of a step.
    """

    layer: str
    kind: str
    direction: str
    seconds: float
    flops: int
    bytes: int
    bound_seconds: float
    share_of_step: float

    @property
    @computed()
    def flops_per_byte(self) -> float | None:
        """FLOPs per byte; None without FLOPs."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    @computed()
    def share_of_bound(self) -> float | None:
        """The estimate divided by the measured time. It can be above 1, because caches are
        faster than memory.
        """
        return self.bound_seconds / self.seconds if self.seconds and self.bound_seconds else None

    @property
    @computed()
    def winnable_seconds(self) -> float:
        """Seconds above the estimate; 0 if the row is faster."""
        return max(0.0, self.seconds - self.bound_seconds)


def sort_roofline_rows(rows: Iterable[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The rows in the order of `Roofline`."""
    return tuple(
        sorted(
            rows, key=lambda row: (-row.winnable_seconds, -row.seconds, row.layer, row.direction)
        )
    )


@dataclass(frozen=True)
class Roofline(Document):
    """Time and work of a step, compared with the limits of the machine.

    Attributes:
      rows: rows, the one with the most time above its estimate first.
      machine: rates of the machine, which give the estimates.
      step_seconds: mean seconds of the profiled steps, which the rows divide.
      unprofiled_step_seconds: mean seconds of the faster half of the steps without a profiler.
      run: the record of the process; its timed steps are those without a profiler.
    """

    kind: ClassVar[str] = "roofline"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "kinds")

    rows: tuple[RooflineRow, ...]
    machine: Machine
    step_seconds: float
    unprofiled_step_seconds: float
    run: RunRecord

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows: none")
        for index, row in enumerate(self.rows):
            check_amounts(f"rows[{index}]", row)
        for section, of, keys in (
            ("machine.", self.machine, ("flops_per_sec", "bytes_per_sec")),
            ("", self, ("step_seconds", "unprofiled_step_seconds")),
        ):
            for key in keys:
                check_amount(f"{section}{key}", getattr(of, key))
        if self.run.batch is None or self.run.placement is None:
            raise ValueError("run: its batch and placement are unknown")

    @property
    def started_at(self) -> str:
        """Start of the run, ISO 8601."""
        return self.run.started_at

    def with_peak_rate(self, flops_per_sec: float, source: str) -> Roofline:
        """The same step with a different peak rate of matrix products."""
        machine = replace(self.machine, flops_per_sec=flops_per_sec, flops_source=source)
        rows = tuple(
            replace(row, bound_seconds=machine.seconds(row.flops, row.bytes)) for row in self.rows
        )
        return replace(self, machine=machine, rows=sort_roofline_rows(rows))

    @property
    def remark(self) -> str:
        """Why some rows are faster than their estimate; "" if none are."""
        above = [row for row in self.rows if (row.share_of_bound or 0.0) > 1.0]
        by_bytes = sum(row.bytes / self.machine.bytes_per_sec >= row.bound_seconds for row in above)
        reasons = []
        if by_bytes:
            reasons.append(
                f"{by_bytes} by bytes, where values are still in a cache, which is faster than "
                "memory"
            )
        if by_bytes < len(above):
            reasons.append(
                f"{len(above) - by_bytes} by FLOPs, whose kernels need fewer of them, or the rate "
                "of matrix products was measured too low, as under other load"
            )
        rows = count_text(len(above), "row is", "rows are")
        return f"{rows} faster than estimated: {'; '.join(reasons)}." if above else ""

    @property
    @computed()
    def bound_images_per_sec(self) -> float | None:
        """Images/sec if every row took its estimated time; None if no row has an estimate."""
        seconds = self.total.bound_seconds
        return self.run.batch.global_ / seconds if self.run.batch and seconds else None

    @property
    @computed()
    def remainder_seconds(self) -> float:
        """Time of a profiled step in which no operation ran."""
        return self.step_seconds - sum(row.seconds for row in self.rows)

    @property
    @computed()
    def kinds(self) -> tuple[RooflineRow, ...]:
        """The sums by kind of operation and direction, the longest first."""
        return self._sum_rows_by(lambda row: ("", row.kind, row.direction))

    @property
    def layers(self) -> tuple[RooflineRow, ...]:
        """The sums by layer, the longest first."""
        return self._sum_rows_by(lambda row: (row.layer, "", ""))

    @property
    @computed()
    def total(self) -> RooflineRow:
        """The sum of all rows."""
        return self._sum_rows_by(lambda row: ("", "", ""))[0]

    def _sum_rows_by(
        self, key: Callable[[RooflineRow], tuple[str, str, str]]
    ) -> tuple[RooflineRow, ...]:
        groups: defaultdict[tuple[str, str, str], list[RooflineRow]] = defaultdict(list)
        for row in self.rows:
            groups[key(row)].append(row)
        sums = [
            RooflineRow(
                *names,
                sum(row.seconds for row in rows),
                sum(row.flops for row in rows),
                sum(row.bytes for row in rows),
                sum(row.bound_seconds for row in rows),
                sum(row.share_of_step for row in rows),
            )
            for names, rows in groups.items()
        ]
        return tuple(sorted(sums, key=lambda row: -row.seconds))


# The document of ``cnnbench explain``: where the difference between two sides is.

CAUSES = (
    *("threads", "input", "program", "gaps", "precision", "batch norm", "reduction", "copies"),
    *("layers", "work", "operations", "kernel", "everything", "network", "batch", "pauses"),
)
"""Kinds of causes; docs/explain.md has their rules."""


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """Time of one layer, kind and direction on both sides, in seconds per step.

    Attributes:
      layer, kind, direction: key of the row, as in a step profile.
      base, new: seconds in a step of A and of B; see `Explanation`; 0 where a side lacks the row.
      spread: twice the standard error of the difference, in seconds, between processes, or between
        steps where a side has one process.
      share: share of the row in the difference of the step; None where that is not larger than its
        own spread, so that it may be 0.
    """

    layer: str
    kind: str
    direction: str
    base: float
    new: float
    spread: float
    share: float | None

    @property
    @computed()
    def difference(self) -> float:
        """How many seconds longer a step of B takes than a step of A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason for a difference between the sides, with the time that it explains.

    Attributes:
      kind: one of `CAUSES`.
      base, new: seconds of the explained rows in a step of A and of B: the sums of these rows.
      spread: twice the standard error of the difference, in seconds.
      place: place in a few words, such as "conv1, gradient of kernels".
      text: description in a sentence, without times.
      evidence: evidence, a line each.
    """

    kind: str = field(metadata=choice_metadata(CAUSES))
    base: float
    new: float
    spread: float
    place: str
    text: str
    evidence: tuple[str, ...] = ()

    @property
    @computed()
    def difference(self) -> float:
        """How many seconds longer a step of B takes than a step of A."""
        return self.new - self.base

    @property
    def further(self) -> tuple[str, ...]:
        """The evidence that the text does not contain. (The text names the first flag that
        differs.)
        """
        return tuple(line for line in self.evidence if line not in self.text)


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A fact that differs between the sides.

    Attributes:
      fact: description of the fact.
      base, new: its values on A and on B, as text.
    """

    fact: str
    base: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """Why the times of a step of B and of a step of A differ, schema 1.

    All times are means per process over all steps, after rare disturbances are removed as in
    `cnnbench compare`, and means over the processes of a side. So times of parts add up.

    Attributes:
      answer: the answer in one sentence.
      base_label, new_label: descriptions of A and of B.
      base, new: seconds of a timed step of A and of B, without a profiler.
      spread: twice the standard error of the difference, in seconds.
      chance: the largest difference of a timed step, in seconds, that may be chance; NaN if an
        earlier document does not have it.
      profiled_base, profiled_new: seconds of a profiled step of A and of B, the sums of the rows.
      rows: rows, the largest difference first; with `remainder` their differences add up to that
        of `base` and `new`. If there are pauses, their time is a row of its own, and in all other
        rows slow steps count as ordinary ones.
      causes: significant causes, the largest first; if there are none, the work that differs.
      by_work: whether the causes are only differences in work, whose times may be chance.
      facts: facts that differ, flags first.
      base_processes, new_processes: number of profiled processes of A and of B.
      steps: number of profiled steps of each process.
    """

    kind: ClassVar[str] = "explanation"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "causes", "facts")

    answer: str
    base_label: str
    new_label: str
    base: float
    new: float
    spread: float
    chance: float = field(default=math.nan, metadata=OPTIONAL)
    profiled_base: float
    profiled_new: float
    rows: tuple[ExplainedRow, ...]
    causes: tuple[Cause, ...]
    by_work: bool = field(default=False, metadata=OPTIONAL)
    facts: tuple[FactChange, ...]
    base_processes: int
    new_processes: int
    steps: int

    @property
    @computed()
    def difference(self) -> float:
        """How many seconds longer a timed step of B takes than a timed step of A."""
        return self.new - self.base

    @property
    @computed()
    def mean_base(self) -> float:
        """The same as `base`, for readers of earlier documents."""
        return self.base

    @property
    @computed()
    def mean_new(self) -> float:
        """The same as `new`, for readers of earlier documents."""
        return self.new

    @property
    @computed()
    def remainder(self) -> float:
        """Seconds of the difference that profiled steps do not show."""
        return self.not_profiled.difference

    @property
    @computed()
    def not_profiled(self) -> ExplainedRow:
        """A row for the difference that profiled steps do not show; its spread is unknown (NaN)."""
        base, new = self.base - self.profiled_base, self.new - self.profiled_new
        return self.row("not in the profiles", base=base, new=new)

    def row(
        self,
        layer: str,
        kind: str = "",
        direction: str = "",
        *,
        base: float,
        new: float,
        spread: float = math.nan,
    ) -> ExplainedRow:
        """A row of times in seconds, with its share of the difference."""
        # The difference may be 0, because it is smaller than its spread (twice its standard error).
        is_known = abs(self.difference) > self.spread
        return ExplainedRow(
            layer=layer,
            kind=kind,
            direction=direction,
            base=base,
            new=new,
            spread=spread,
            share=(new - base) / self.difference if is_known else None,
        )

    @property
    @computed()
    def unexplained(self) -> float:
        """Seconds of the difference that no significant cause explains."""
        causes = () if self.by_work else self.causes
        return self.difference - sum(cause.difference for cause in causes)
