"""The document of `cnnbench roofline`, schema 1: a step by layers, and the machine's rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from cnnbench.base.text.numbers import count
from cnnbench.records.amounts import check_amount, check_amounts
from cnnbench.records.codec import Document, computed
from cnnbench.records.run import RunRecord


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
        """The least time for this number of FLOPs and bytes."""
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
    @computed
    def flops_per_byte(self) -> float | None:
        """FLOPs per byte; None without FLOPs."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    @computed
    def share_of_bound(self) -> float | None:
        """The estimate over the measured time; above 1 where caches are faster than memory."""
        return self.bound_seconds / self.seconds if self.seconds and self.bound_seconds else None

    @property
    @computed
    def winnable_seconds(self) -> float:
        """Seconds above the estimate; 0 if the row is faster."""
        return max(0.0, self.seconds - self.bound_seconds)


def in_order(rows: Iterable[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The rows in the order of `Roofline`."""
    return tuple(
        sorted(
            rows, key=lambda row: (-row.winnable_seconds, -row.seconds, row.layer, row.direction)
        )
    )


@dataclass(frozen=True)
class Roofline(Document):
    """Time and work of a step, against the limits of the machine.

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

    def at_peak(self, flops_per_sec: float, source: str) -> Roofline:
        """The same step with another peak rate of matrix products."""
        machine = replace(self.machine, flops_per_sec=flops_per_sec, flops_source=source)
        rows = tuple(
            replace(row, bound_seconds=machine.seconds(row.flops, row.bytes)) for row in self.rows
        )
        return replace(self, machine=machine, rows=in_order(rows))

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
        rows = count(len(above), "row is", "rows are")
        return f"{rows} faster than estimated: {'; '.join(reasons)}." if above else ""

    @property
    @computed
    def bound_images_per_sec(self) -> float | None:
        """Images/sec if every row took its estimated time; None where no row has one."""
        seconds = self.total.bound_seconds
        return self.run.batch.global_ / seconds if self.run.batch and seconds else None

    @property
    @computed
    def remainder_seconds(self) -> float:
        """Time of a profiled step in which no operation ran."""
        return self.step_seconds - sum(row.seconds for row in self.rows)

    @property
    @computed
    def kinds(self) -> tuple[RooflineRow, ...]:
        """The sums by kind of operation and direction, the longest first."""
        return self._sums(lambda row: ("", row.kind, row.direction))

    @property
    def layers(self) -> tuple[RooflineRow, ...]:
        """The sums by layer, the longest first."""
        return self._sums(lambda row: (row.layer, "", ""))

    @property
    @computed
    def total(self) -> RooflineRow:
        """The sum of all rows."""
        return self._sums(lambda row: ("", "", ""))[0]

    def _sums(self, key: Callable[[RooflineRow], tuple[str, str, str]]) -> tuple[RooflineRow, ...]:
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
