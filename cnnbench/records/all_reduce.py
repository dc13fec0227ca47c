"""Records of `cnnbench allreduce`: measured all-reduce times.

Bandwidths are defined as in nccl-tests. With S bytes in all tensors of one device, n devices and t
seconds per reduction, the algorithm bandwidth is S / t. The bus bandwidth is S / t * 2(n-1)/n: any
algorithm must send 2(n-1)/n times S per device, so it is comparable across numbers of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from cnnbench.base.stats import median, p99
from cnnbench.records.codec import (
    ABSENT,
    OPTIONAL,
    TIME,
    Document,
    JsonKeys,
    choice_metadata,
    is_valid_amount,
    json_document,
    parse_start_time,
)
from cnnbench.records.run import (
    STATUSES,
    Conditions,
    ErrorInfo,
    RingDevices,
    SweepPlace,
    check_status,
)
from cnnbench.records.subject import Subject
from cnnbench.variable_mgr.packing import Packing

# `AllReduceRecord` stores only raw times; all statistics are computed from them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row of the table of `cnnbench allreduce`: measurement of one all-reduce algorithm with one
    data size on one number of devices.

    Attributes:
      spec: all-reduce spec, or the name of the reduction of another library (--peers).
      packing: packing of the tensors around the reduction.
      workload: the requested size, or the model whose gradients were reduced.
      dtype: dtype of the tensors.
      bytes: size of all tensors of one device together.
      tensors: number of tensors of one device.
      elements: number of elements of all tensors of one device together.
      devices: number of devices.
      seconds: raw seconds per reduction, one value per timed call.
      wrong: number of elements with a wrong sum, over all devices and both data sets.
      checked: number of elements whose sums were checked.
      error: why the algorithm could not be measured; None if it was measured.
      trace_seconds: seconds to trace the call; None if it was not traced.
      build_seconds: seconds to trace the call and to run it for the first time; None if it was not
        run.
      operations: number of operations in the traced graph, before TensorFlow rewrites it.
    """

    spec: str
    packing: Packing
    workload: str
    dtype: str
    bytes: int
    tensors: int
    elements: int
    devices: int
    seconds: tuple[float, ...] = ()
    wrong: int = 0
    checked: int = 0
    error: str | None = None
    trace_seconds: float | None = field(default=None, metadata=OPTIONAL)
    build_seconds: float | None = field(default=None, metadata=OPTIONAL)
    operations: int | None = field(default=None, metadata=OPTIONAL)

    @property
    def median_seconds(self) -> float | None:
        """Median of the seconds per reduction; None if no reduction was timed."""
        return median(self.seconds) if self.seconds else None

    @property
    def p99_seconds(self) -> float | None:
        """99th percentile of the seconds per reduction (nearest rank); None if there are too few
        times.
        """
        return p99(self.seconds)

    @property
    def longest_seconds(self) -> float | None:
        """Seconds of the slowest reduction; None if no reduction was timed."""
        return max(self.seconds, default=None)

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes per second as in nccl-tests: S / t, with S bytes in the tensors of one device and t
        seconds per reduction.
        """
        return None if self.median_seconds is None else self.bytes / self.median_seconds

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second as in nccl-tests: S / t * 2(n-1)/n, with S bytes in the tensors of one
        device, t seconds per reduction and n devices.
        """
        algorithm = self.algorithm_bandwidth
        return None if algorithm is None else algorithm * 2 * (self.devices - 1) / self.devices

    @property
    def failed(self) -> bool:
        """Whether the reduction raised an error or returned wrong sums."""
        return self.error is not None or self.wrong > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Measurement of memory copies on all devices at the same time, to compare them with
    all-reduces of the same size.

    Attributes:
      bytes: bytes copied by each device, in one tensor.
      devices: number of devices.
      seconds: raw seconds of a copy, one value per timed call.
    """

    bytes: int
    devices: int
    seconds: tuple[float, ...]

    @property
    def bytes_per_sec(self) -> float:
        """Bytes per second that all devices together write, computed from the median time of a
        copy.
        """
        return self.bytes * self.devices / median(self.seconds)

    def equivalent_copy_seconds(self, num_bytes: int, devices: int) -> float:
        """Seconds to copy as many bytes as an all-reduce of S bytes on n devices moves: n x
        2(n-1)/n x S.

        An all-reduce can be faster than this estimate if devices share a memory.
        """
        return 2 * (devices - 1) * num_bytes / self.bytes_per_sec


@json_document("cnnbench allreduce --result_json=FILE")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRecord(Document):
    """Record of one run of `cnnbench allreduce`.

    Attributes:
      run_id: unique name of the measurement.
      started_at: start of the process, ISO 8601 with offset, UTC.
      status: "ok", "failed" (wrong sums or errors) or "interrupted".
      error: why the measurement failed; None if it did not fail.
      command: argv.
      config: values of all flags, given or by default.
      explicit_flags: names of the flags that were given.
      placement: the devices; None if the run ended before they were known.
      copies: memory copies, one per size and number of devices.
      points: measurements, in the order of the table.
      peers: reductions of other libraries.
      environment: properties of machine and software by name; unknown properties are absent.
      conditions: disturbances on the machine; absent in older records.
      subject: the measured code; absent if unknown.
      sweep: position in a sweep; absent in other runs.
    """

    kind: ClassVar[str] = "allreduce"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("copies", "points", "peers")
    json_keys: ClassVar[JsonKeys] = (..., "copy_bytes_per_sec")

    run_id: str
    started_at: str = field(metadata=TIME)
    status: str = field(metadata=choice_metadata(STATUSES))
    error: ErrorInfo | None = None
    command: tuple[str, ...]
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...] = ()
    placement: RingDevices | None = None
    copies: tuple[Copying, ...] = ()
    points: tuple[Point, ...] = ()
    peers: tuple[Point, ...] = field(default=(), metadata=OPTIONAL)
    environment: Mapping[str, Any] = field(default_factory=dict)
    conditions: Conditions | None = field(default=None, metadata=ABSENT)
    subject: Subject | None = field(default=None, metadata=ABSENT)
    sweep: Annotated[Mapping[str, Any], SweepPlace] | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        check_status(self.status, self.error)
        parse_start_time(self.started_at)
        for key in ("copies", "points", "peers"):
            for index, row in enumerate(getattr(self, key)):
                for name in ("bytes", "devices"):
                    if (number := getattr(row, name)) < 1:
                        raise ValueError(f"{key}[{index}].{name}: {number} is less than 1")
                if not all(map(is_valid_amount, row.seconds)):
                    raise ValueError(f"{key}[{index}].seconds: all times must be positive")
        for index, copy in enumerate(self.copies):
            if not copy.seconds:
                raise ValueError(f"copies[{index}].seconds: none")

    @property
    def rows(self) -> tuple[Point, ...]:
        """All rows of the table. The reductions of other libraries come last."""
        return (*self.points, *self.peers)

    @property
    def copy_bytes_per_sec(self) -> float | None:
        """Bytes per second that all devices together write while they copy the largest measured
        size; None if no copies were measured.
        """
        largest = max(self.copies, key=lambda copy: copy.bytes * copy.devices, default=None)
        return None if largest is None else largest.bytes_per_sec

    def fastest_points(self) -> list[tuple[Point, Point | None]]:
        """Returns the fastest successful reduction of each workload, number format and number of
        devices, and the next fastest, which is None if only one was measured.
        """
        alike: dict[tuple[object, ...], list[Point]] = {}
        for point in self.rows:
            if point.median_seconds is not None and not point.failed:
                place = (point.workload, point.bytes, point.dtype, point.devices)
                alike.setdefault(place, []).append(point)
        fastest: list[tuple[Point, Point | None]] = []
        for points in alike.values():
            first, *others = sorted(points, key=lambda point: point.median_seconds or 0.0)
            fastest.append((first, others[0] if others else None))
        return fastest

    def copy_time_share(self, point: Point) -> float | None:
        """Compares a reduction with plain memory copies: returns the estimated time of copying as
        many bytes, divided by the median time of the reduction. None if one of the two times is
        unknown.
        """
        if point.median_seconds is None:
            return None
        for copy in self.copies:
            if (copy.bytes, copy.devices) == (point.bytes, point.devices):
                return (
                    copy.equivalent_copy_seconds(point.bytes, point.devices) / point.median_seconds
                )
        return None
