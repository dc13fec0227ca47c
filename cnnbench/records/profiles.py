"""Documents about where the time of a step goes: profiles, rooflines and explanations.

Every moment of a profiled step is counted once. While operations run, the time is divided equally
among them (collectives and copies between devices count only while nothing else runs). The time
while no operation runs is counted as `INPUT_WAIT`, `GAPS` or `PROGRAM`.
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
    JsonKeys,
    check_amount_in_range,
    check_amounts_in_range,
    choice_metadata,
    is_valid_amount,
)
from cnnbench.records.documents import json_document
from cnnbench.records.run import RunRecord

# `StepProfile` contains the step times of a process by layer, kind of operation and direction.

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


# `Roofline` compares the time of a step, by layer, with the peak rates of the machine.


@dataclass(frozen=True)
class Machine:
    """Peak rates of the devices of a run, all devices together.

    Attributes:
      flops_per_sec: FLOP/s of matrix products in the dtype of the run.
      bytes_per_sec: bytes read and written per second by copying memory.
      flops_source, bytes_source: where flops_per_sec and bytes_per_sec come from.
    """

    flops_per_sec: float
    bytes_per_sec: float
    flops_source: str = ""
    bytes_source: str = ""

    @property
    def ridge_flops_per_byte(self) -> float:
        """FLOPs per byte at which computing takes as long as moving the bytes."""
        return self.flops_per_sec / self.bytes_per_sec

    def least_seconds(self, flops: float, moved_bytes: float) -> float:
        """Returns the least possible seconds for a number of FLOPs and a number of moved bytes, at
        the peak rates of the machine.
        """
        return max(flops / self.flops_per_sec, moved_bytes / self.bytes_per_sec)


@dataclass(frozen=True)
class RooflineRow:
    """Time, FLOPs and bytes of the operations with the same layer, kind and direction, or their
    sums over several layers.

    Attributes:
      layer, kind, direction: as in a step profile; "" if the row is a sum over all of them.
      seconds: share of the wall time of a step, in seconds.
      flops: FLOPs of convolutions and matrix products in a step, of all devices together.
      bytes: bytes read and written in a step.
      bound_seconds: estimated least time at the peak rates of the machine; caches may be faster.
        For a sum, the sum of the estimates of its rows.
      share_of_step: `seconds` divided by the time of a step.
    """

    json_keys: ClassVar[JsonKeys] = (..., "flops_per_byte", "share_of_bound", "winnable_seconds")

    layer: str
    kind: str
    direction: str
    seconds: float
    flops: int
    bytes: int
    bound_seconds: float
    share_of_step: float

    @property
    def flops_per_byte(self) -> float | None:
        """FLOPs per byte read or written; None for operations without FLOPs."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    def share_of_bound(self) -> float | None:
        """Estimated least time divided by the measured time. The share can be above 1, because
        caches are faster than memory.
        """
        return self.bound_seconds / self.seconds if self.seconds and self.bound_seconds else None

    @property
    def winnable_seconds(self) -> float:
        """Seconds by which the measured time exceeds the estimated least time; 0 if the operations
        are faster than estimated.
        """
        return max(0.0, self.seconds - self.bound_seconds)


def sort_roofline_rows(rows: Iterable[RooflineRow]) -> tuple[RooflineRow, ...]:
    """Sorts rows by their time above the estimate: where most time can be saved comes first."""
    return tuple(
        sorted(
            rows, key=lambda row: (-row.winnable_seconds, -row.seconds, row.layer, row.direction)
        )
    )


@json_document("cnnbench roofline MODEL --json=FILE")
@dataclass(frozen=True)
class Roofline(Document):
    """Time, FLOPs and bytes of a step by layer, compared with the peak rates of the machine (schema
    1).

    Attributes:
      rows: rows, sorted by the time above the estimate, the longest time first.
      machine: peak rates of the machine, from which the estimates are computed.
      step_seconds: mean seconds of the profiled steps.
      unprofiled_step_seconds: mean seconds of the faster half of the steps without a profiler.
      run: the record of the process; its timed steps are those without a profiler.
      kernels: kind of kernels that computed the convolutions on a CPU, such as "onednn-avx512";
        absent on GPUs.
    """

    kind: ClassVar[str] = "roofline"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "kinds")
    json_keys: ClassVar[JsonKeys] = (
        ...,
        "bound_images_per_sec",
        "remainder_seconds",
        "kinds",
        "total",
    )

    rows: tuple[RooflineRow, ...]
    machine: Machine
    step_seconds: float
    unprofiled_step_seconds: float
    run: RunRecord
    kernels: str | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows: none")
        for index, row in enumerate(self.rows):
            check_amounts_in_range(f"rows[{index}]", row)
        for section, of, keys in (
            ("machine.", self.machine, ("flops_per_sec", "bytes_per_sec")),
            ("", self, ("step_seconds", "unprofiled_step_seconds")),
        ):
            for key in keys:
                check_amount_in_range(f"{section}{key}", getattr(of, key))
        if self.run.batch is None or self.run.placement is None:
            raise ValueError("run: its batch and placement are unknown")

    @property
    def started_at(self) -> str:
        """Start time of the run, ISO 8601."""
        return self.run.started_at

    def with_peak_rate(self, flops_per_sec: float, source: str) -> Roofline:
        """Returns the same roofline for a different peak rate (FLOP/s) of matrix products."""
        machine = replace(self.machine, flops_per_sec=flops_per_sec, flops_source=source)
        rows = tuple(
            replace(row, bound_seconds=machine.least_seconds(row.flops, row.bytes))
            for row in self.rows
        )
        return replace(self, machine=machine, rows=sort_roofline_rows(rows))

    @property
    def faster_rows_remark(self) -> str:
        """A sentence that explains why rows are faster than estimated; "" if none is."""
        above = [row for row in self.rows if (row.share_of_bound or 0.0) > 1.0]
        by_bytes = sum(row.bytes / self.machine.bytes_per_sec >= row.bound_seconds for row in above)
        reasons = []
        if by_bytes:
            reasons.append(
                f"{by_bytes} limited by bytes, because values are still in a cache, which is "
                "faster than memory"
            )
        if by_bytes < len(above):
            reasons.append(
                f"{len(above) - by_bytes} limited by FLOPs, because the kernels need fewer FLOPs, "
                "or because the peak rate of matrix products was measured too low, for example "
                "under load"
            )
        rows = count_text(len(above), "row is", "rows are")
        return f"{rows} faster than estimated: {'; '.join(reasons)}." if above else ""

    @property
    def bound_images_per_sec(self) -> float | None:
        """Images/sec if every row took only its estimated least time; None if no row has an
        estimate.
        """
        seconds = self.total.bound_seconds
        return self.run.batch.global_ / seconds if self.run.batch and seconds else None

    @property
    def remainder_seconds(self) -> float:
        """Seconds of a profiled step during which no operation ran."""
        return self.step_seconds - sum(row.seconds for row in self.rows)

    @property
    def kinds(self) -> tuple[RooflineRow, ...]:
        """Sums of rows with the same kind of operation and direction, the longest sum first."""
        return self._sum_rows_by(lambda row: ("", row.kind, row.direction))

    @property
    def layers(self) -> tuple[RooflineRow, ...]:
        """Sums of rows with the same layer, the longest sum first."""
        return self._sum_rows_by(lambda row: (row.layer, "", ""))

    @property
    def total(self) -> RooflineRow:
        """Sum of all rows."""
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


# `Explanation` tells why the step times of A and B in a comparison differ.

CAUSES = (
    *("threads", "input", "program", "gaps", "precision", "batch norm", "reduction", "copies"),
    *("layers", "work", "operations", "kernel", "everything", "network", "batch", "pauses"),
)
"""Kinds of causes; docs/explain.md has their rules."""


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """Seconds per step that operations of one layer, kind and direction take in A and in B of a
    comparison.

    Attributes:
      layer, kind, direction: key of the row, as in a step profile.
      base, new: seconds in a step of A and of B (see `Explanation`); 0 if the profiles have no such
        row.
      spread: twice the standard error of the difference, in seconds, estimated from the variation
        between processes or, if A or B has only one process, between steps.
      share: share of the row in the difference of the step times; None if that difference is within
        its own spread, so that it may be 0.
    """

    json_keys: ClassVar[JsonKeys] = (..., "difference")

    layer: str
    kind: str
    direction: str
    base: float
    new: float
    spread: float
    share: float | None

    @property
    def difference(self) -> float:
        """Seconds per step by which the operations of this row take longer in B than in A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of the difference between the step times of A and B, with the seconds that the cause
    explains.

    Attributes:
      kind: one of `CAUSES`.
      base, new: seconds in a step of A and of B, summed over the rows that the cause explains.
      spread: twice the standard error of the difference, in seconds.
      place: where the time is spent, in a few words, such as "conv1, gradient of kernels".
      text: description of the cause in a sentence, without times.
      evidence: lines of evidence.
    """

    json_keys: ClassVar[JsonKeys] = (..., "difference")

    kind: str = field(metadata=choice_metadata(CAUSES))
    base: float
    new: float
    spread: float
    place: str
    text: str
    evidence: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Seconds per step by which the explained rows take longer in B than in A."""
        return self.new - self.base

    @property
    def evidence_not_in_text(self) -> tuple[str, ...]:
        """Lines of evidence that `text` does not contain yet. For example, `text` may already name
        the first flag that differs.
        """
        return tuple(line for line in self.evidence if line not in self.text)


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A flag, or a recorded property of machine or software, that differs between A and B.

    Attributes:
      fact: description of the flag or property.
      base, new: its values in A and in B, as text.
    """

    fact: str
    base: str
    new: str


@json_document("cnnbench explain --format=json, cnnbench ab --format=json")
@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """Result of ``cnnbench explain``: why a step of B takes more or less time than a step of A
    (schema 1).

    All times are means over all steps of a process, after rare disturbances are removed as in
    `cnnbench compare`, and then means over the processes of A or of B. Therefore the times of the
    rows add up to the step time.

    Attributes:
      answer: the answer in one sentence.
      base_label, new_label: descriptions of A and of B.
      base, new: seconds of a timed step of A and of B, without a profiler.
      spread: twice the standard error of the difference, in seconds.
      chance: the largest difference of a timed step, in seconds, that may be chance; NaN if an
        earlier document does not have it.
      profiled_base, profiled_new: seconds of a profiled step of A and of B, the sums of the rows.
      rows: rows, the largest difference first. The differences of all rows and `remainder` add up
        to the difference of `base` and `new`. If there are pauses, a row contains their time, and
        all other rows contain the time of ordinary steps.
      causes: significant causes, the largest first; if there are none, the work that differs.
      by_work: whether the causes are only differences in work, which may not change the time.
      facts: flags and recorded properties that differ between A and B; flags come first.
      base_processes, new_processes: number of profiled processes of A and of B.
      steps: number of profiled steps of each process.
    """

    kind: ClassVar[str] = "explanation"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "causes", "facts")
    json_keys: ClassVar[JsonKeys] = (
        ...,
        "difference",
        "mean_base",
        "mean_new",
        "remainder",
        "not_profiled",
        "unexplained",
    )

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
    def difference(self) -> float:
        """Seconds by which a timed step of B takes longer than a timed step of A."""
        return self.new - self.base

    @property
    def differs_significantly(self) -> bool:
        """Whether the step times of A and B differ significantly."""
        known = bool(self.causes) and not self.by_work
        return abs(self.difference) > (self.spread if known else self.chance)

    @property
    def mean_base(self) -> float:
        """The value of `base` under an older name, for programs that read earlier versions of the
        document.
        """
        return self.base

    @property
    def mean_new(self) -> float:
        """The value of `new` under an older name, for programs that read earlier versions of the
        document.
        """
        return self.new

    @property
    def remainder(self) -> float:
        """Seconds of the difference between the step times of A and B that the profiled steps do
        not show.
        """
        return self.not_profiled.difference

    @property
    def not_profiled(self) -> ExplainedRow:
        """A row with the seconds of the difference between A and B that the profiled steps do not
        show. Its spread is unknown (NaN).
        """
        base, new = self.base - self.profiled_base, self.new - self.profiled_new
        return self.make_row("not in the profiles", base=base, new=new)

    def make_row(
        self,
        layer: str,
        kind: str = "",
        direction: str = "",
        *,
        base: float,
        new: float,
        spread: float = math.nan,
    ) -> ExplainedRow:
        """Creates a row from the seconds per step in A (`base`) and in B (`new`), and computes the
        share of the row in the difference.
        """
        # If the difference of the step times is within its spread, it may be 0: no share is known.
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
    def unexplained(self) -> float:
        """Seconds of the difference between the step times of A and B that the significant causes
        do not explain.
        """
        causes = () if self.by_work else self.causes
        return self.difference - sum(cause.difference for cause in causes)
