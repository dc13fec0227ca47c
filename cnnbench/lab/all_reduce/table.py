"""The table that `cnnbench allreduce` prints, in the format of nccl-tests, and its sentences.

Each row is printed when it has been measured, and lines that are no rows begin with ``#``. Scripts
read the rows, so widths are fixed and numbers have no separators. docs/all_reduce_benchmark.md
defines the columns. A GB is 10**9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cnnbench.base.stats import FEWEST_FOR_P99
from cnnbench.base.text import NONE
from cnnbench.flags.groups.all_reduce import AllReduceParams
from cnnbench.records.all_reduce import AllReduceRecord, Copying, Point

IMPLAUSIBLE_SHARE = 20.0
"""A reduction so many times as fast as the estimate from a memory copy is impossible on any known
machine.
"""

_PROGRAM = "# cnnbench allreduce, TensorFlow {version}, {started}"
_DEVICES = "# Devices: {devices}"
_BUILD_ONLY = "# {params.iters_per_step} reductions per call"
_MEASURED = (
    "# {params.num_batches} calls of {params.iters_per_step} chained reductions after "
    "{params.num_warmup_batches} warm-up calls, all rows of a size interleaved"
)
_COPY = "# memory copy: {devices} devices at once write {rate} GB/s ({bytes} B each); estimate {us} us"
COPY_FAILED = "# memory copy: {error}"
_BUILT = (
    "# build: {case}: traced in {traced} s, built in {built} s, {operations} operations"
)
_ERROR = "# {case}: {error}"
_FASTEST = (
    "# Fastest of {bytes} B on {devices} devices: {case}, {rate} GB/s busbw, {times} times as fast "
    "as the next, {next}"
)
_RIGHT = "# Wrong values: {wrong} of {checked} OK"
_WRONG = "# Wrong values: {wrong} of {checked} FAILED"
_ERRORS = "# Rows with errors: {errors} FAILED"
_OF_COPY = (
    "# of copy estimate: the time in which all devices at once copy 2(n-1)/n x size each,",
    "#   as measured in the same run, over the median time. It is no bound: devices that",
    "#   share a memory may pass 1, as they can add and hand out sums with less traffic.",
)
_IMPLAUSIBLE = (
    "{case} on {bytes} bytes and {devices} devices: {share} times as fast as the memory-copy "
    "estimate; probably an error"
)
_FAILED = "{spec} on {devices} devices, {bytes} bytes: {what}"
_FAILED_AND_MORE = "{spec} on {devices} devices, {bytes} bytes: {what}; {more} more rows failed"
_WRONG_ELEMENTS = "{wrong} of {checked} elements are wrong"

_GIGA = 1e9
_MICRO = 1e-6


class _Column(NamedTuple):
    """A column of the table. Positive widths align to the right, negative ones to the left. The
    function makes a cell from a row and its share of the copy estimate.
    """

    title: str
    unit: str
    width: int
    cell: Callable[[Point, float | None], object]

    def aligned(self, text: object) -> str:
        """The text, filled up with spaces to the width of the column."""
        return f"{text!s:<{-self.width}}" if self.width < 0 else f"{text!s:>{self.width}}"


class ResultRowFormatter:
    """Formats the rows of the table.

    Args:
      cases: texts of all specs and packings, which determine the widths of columns.
      build_only: whether rows show the build time instead of the time of a reduction.
      calls: number of timed calls per row. If it is too small for a 99th percentile, the column is
        "max".
    """

    def __init__(
        self,
        cases: Sequence[tuple[str, str]],
        build_only: bool = False,
        calls: int = FEWEST_FOR_P99,
    ) -> None:
        specs = max((len(spec) for spec, _ in cases), default=4)
        packings = max((len(packing) for _, packing in cases), default=7)
        self._columns = (
            _Column("size", "(B)", 12, lambda p, s: p.bytes),
            _Column("count", "(elements)", 12, lambda p, s: p.elements),
            _Column("tensors", "", 7, lambda p, s: p.tensors),
            _Column("dtype", "", 8, lambda p, s: p.dtype),
            _Column("devices", "", 7, lambda p, s: p.devices),
            _Column("spec", "", -max(specs, 4), lambda p, s: p.spec),
            _Column("packing", "", -max(packings, 7), lambda p, s: str(p.packing)),
            *(_BUILD if build_only else _measurement_columns(calls)),
        )

    def header(self) -> list[str]:
        """Formats the two lines of the table head: the titles and the units of the columns."""
        return [
            self._line("#", [column.title for column in self._columns]),
            self._line("#", [column.unit for column in self._columns]),
        ]

    def row_lines(self, point: Point, share: float | None, verbose: bool = False) -> list[str]:
        """Formats a row as a line. Adds a line with the error if the reduction failed, and with
        `verbose` a line with the build time.

        `share` is the estimate from the memory copy divided by the median time; None if unknown.
        """
        case = f"{point.spec} {point.packing}"
        lines = [self._line(" ", [column.cell(point, share) for column in self._columns])]
        if point.error is not None:
            lines.append(_ERROR.format(case=case, error=point.error))
        if verbose:
            traced, built = (_fixed(s, 3) for s in (point.trace_seconds, point.build_seconds))
            lines.append(
                _BUILT.format(
                    case=case, traced=traced, built=built, operations=point.operations or 0
                )
            )
        return lines

    def _line(self, mark: str, cells: Sequence[object]) -> str:
        texts = (column.aligned(cell) for column, cell in zip(self._columns, cells, strict=True))
        return f"{mark} {'  '.join(texts)}".rstrip()


def header_lines(record: AllReduceRecord, params: AllReduceParams) -> list[str]:
    """Formats the lines above the table: the program, the devices, and how they are measured."""
    assert record.placement is not None
    version = record.environment.get("tensorflow_version", "unknown")
    how = _BUILD_ONLY if params.build_only else _MEASURED
    return [
        _PROGRAM.format(version=version, started=record.started_at),
        _DEVICES.format(devices=" ".join(record.placement.devices)),
        how.format(params=params),
    ]


def copy_line(copy: Copying) -> str:
    """Formats the result of the memory copy, from which the time of reductions of the same size is
    estimated.
    """
    seconds = copy.equivalent_copy_seconds(copy.bytes, copy.devices)
    return _COPY.format(
        devices=copy.devices,
        rate=_fixed(copy.bytes_per_sec, 2, _GIGA),
        bytes=copy.bytes,
        us=_fixed(seconds, 1, _MICRO),
    )


def footer_lines(record: AllReduceRecord) -> list[str]:
    """Formats the lines below the table: the fastest algorithm for each size, the number of wrong
    values, and an explanation of the last column.
    """
    wrong, checked = (sum(getattr(p, n) for p in record.rows) for n in ("wrong", "checked"))
    errors = sum(p.error is not None for p in record.rows)
    lines = fastest_spec_lines(record)
    if checked:
        lines.append((_WRONG if wrong else _RIGHT).format(wrong=wrong, checked=checked))
    if errors:
        lines.append(_ERRORS.format(errors=errors))
    return [*lines, *_OF_COPY] if record.copies else lines


def fastest_spec_lines(record: AllReduceRecord) -> list[str]:
    """Formats a line with the fastest algorithm for each size and number of devices for which
    several algorithms were measured.
    """
    return [
        _FASTEST.format(
            bytes=first.bytes,
            devices=first.devices,
            case=_case_text(first),
            rate=_fixed(first.bus_bandwidth, 2, _GIGA),
            times=_fixed(other.median_seconds / first.median_seconds, 2),
            next=_case_text(other),
        )
        for first, other in record.fastest_points()
        if other is not None and first.median_seconds and other.median_seconds
    ]


def _case_text(point: Point) -> str:
    packing = str(point.packing)
    return point.spec if packing == NONE else f"{point.spec} {packing}"


def implausible_time_warning(point: Point, share: float | None) -> str | None:
    """Returns a warning if the measured time is too short for a reduction, or None if the time is
    plausible.
    """
    if share is None or share <= IMPLAUSIBLE_SHARE:
        return None
    return _IMPLAUSIBLE.format(
        case=f"{point.spec} {point.packing}",
        bytes=point.bytes,
        devices=point.devices,
        share=_fixed(share, 0),
    )


def failure_message(failed: Sequence[Point]) -> str:
    """The message of a run with failed rows: the first one, and how many more there are."""
    first, *others = failed
    wrong = _WRONG_ELEMENTS.format(wrong=first.wrong, checked=first.checked)
    return (_FAILED_AND_MORE if others else _FAILED).format(
        spec=first.spec,
        devices=first.devices,
        bytes=first.bytes,
        what=first.error or wrong,
        more=len(others),
    )


def _fixed(value: float | None, digits: int, unit: float = 1.0) -> str:
    return NONE if value is None else f"{value / unit:.{digits}f}"


def _wrong_elements_cell(point: Point) -> object:
    if point.error is not None:
        return "error"
    return point.wrong if point.checked else NONE


def _tensors_on_all_devices(point: Point) -> int:
    return point.devices * point.tensors


def _measurement_columns(calls: int) -> tuple[_Column, ...]:
    slowest = _Column("max", "(us)", 11, lambda p, s: _fixed(p.longest_seconds, 1, _MICRO))
    if calls >= FEWEST_FOR_P99:
        slowest = _Column("p99", "(us)", 11, lambda p, s: _fixed(p.p99_seconds, 1, _MICRO))
    return (
        _Column("time", "(us)", 11, lambda p, s: _fixed(p.median_seconds, 1, _MICRO)),
        slowest,
        _Column("algbw", "(GB/s)", 7, lambda p, s: _fixed(p.algorithm_bandwidth, 2, _GIGA)),
        _Column("busbw", "(GB/s)", 7, lambda p, s: _fixed(p.bus_bandwidth, 2, _GIGA)),
        _Column("#wrong", "", 6, lambda p, s: _wrong_elements_cell(p)),
        _Column("of copy", "estimate", 8, lambda p, s: _fixed(s, 3)),
    )


_BUILD = (
    _Column("pieces", "(devices x tensors)", 19, lambda p, s: _tensors_on_all_devices(p)),
    _Column(
        "operations", "", 10, lambda p, s: NONE if p.operations is None else p.operations
    ),
    _Column("trace", "(s)", 8, lambda p, s: _fixed(p.trace_seconds, 3)),
    _Column("build", "(s)", 8, lambda p, s: _fixed(p.build_seconds, 3)),
    _Column(
        "build/piece",
        "(us)",
        11,
        lambda p, s: _fixed(p.build_seconds, 1, _tensors_on_all_devices(p) * _MICRO),
    ),
)
