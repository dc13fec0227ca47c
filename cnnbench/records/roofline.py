"""`Roofline`: the time of a step by layer, compared with the peak rates of the machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cnnbench.base.text import count_text
from cnnbench.records.codec import (
    ABSENT,
    Document,
    JsonKeys,
    check_amount_in_range,
    check_amounts_in_range,
    json_document,
)
from cnnbench.records.run import RunRecord


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
