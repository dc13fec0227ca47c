"""The table that `cnnbench allreduce` prints, in the format of nccl-tests, and its sentences.

Lines that are not rows begin with ``#``. Scripts read the rows, so widths are fixed and numbers
have no separators. docs/all_reduce_benchmark.md defines the columns. A GB is 10**9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cnnbench.base.stats import FEWEST_FOR_P99
from cnnbench.base.text import NONE
from cnnbench.flags.groups.all_reduce import AllReduceParams
from cnnbench.records.all_reduce import AllReduceRecord, Copying, Point

# No known machine reduces 20 times as fast as it copies memory, so such a time is wrong.
IMPLAUSIBLE_SHARE = 20.0

_GIGA = 1e9
_MICRO = 1e-6


class _Column(NamedTuple):
    """A column. Texts are left-aligned if the width is negative. `cell` makes a cell from a row and
    its share of the copy estimate.
    """

    title: str
    unit: str
    width: int
    cell: Callable[[Point, float | None], object]


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
            _Column("packing", "", -max(packings, 7), lambda p, s: p.packing),
            *(_BUILD if build_only else _time_columns(calls)),
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
        case = f"{point.spec} {point.packing}:"
        lines = [self._line(" ", [column.cell(point, share) for column in self._columns])]
        if point.error is not None:
            lines.append(f"# {case} {point.error}")
        if verbose:
            lines.append(
                f"# build: {case} traced in {_fixed(point.trace_seconds, 3)} s, built in "
                f"{_fixed(point.build_seconds, 3)} s, {point.operations or 0} operations"
            )
        return lines

    def _line(self, mark: str, cells: Sequence[object]) -> str:
        texts = [
            f"{cell!s:<{-column.width}}" if column.width < 0 else f"{cell!s:>{column.width}}"
            for column, cell in zip(self._columns, cells, strict=True)
        ]
        return f"{mark} {'  '.join(texts)}".rstrip()


def header_lines(record: AllReduceRecord, params: AllReduceParams) -> list[str]:
    """Formats the lines above the table: the program, the devices, and how they are measured."""
    assert record.placement is not None
    version = record.environment.get("tensorflow_version", "unknown")
    how = (
        f"{params.num_batches} calls of {params.iters_per_step} chained reductions after "
        f"{params.num_warmup_batches} warm-up calls, all rows of a size interleaved"
    )
    if params.build_only:
        how = f"{params.iters_per_step} reductions per call"
    return [
        f"# cnnbench allreduce, TensorFlow {version}, {record.started_at}",
        f"# Devices: {' '.join(record.placement.devices)}",
        f"# {how}",
    ]


def copy_line(copy: Copying) -> str:
    """Formats the result of the memory copy, and the estimate for reductions of its size."""
    seconds = copy.equivalent_copy_seconds(copy.bytes, copy.devices)
    return (
        f"# memory copy: {copy.devices} devices at once write "
        f"{_fixed(copy.bytes_per_sec, 2, _GIGA)} GB/s ({copy.bytes} B each); estimate "
        f"{_fixed(seconds, 1, _MICRO)} us"
    )


def footer_lines(record: AllReduceRecord) -> list[str]:
    """Formats the lines below the table: the fastest algorithm for each size, the number of wrong
    values, and an explanation of the last column.
    """
    wrong, checked = (sum(getattr(p, n) for p in record.rows) for n in ("wrong", "checked"))
    errors = sum(p.error is not None for p in record.rows)
    lines = fastest_spec_lines(record)
    if checked:
        lines.append(f"# Wrong values: {wrong} of {checked} {'FAILED' if wrong else 'OK'}")
    if errors:
        lines.append(f"# Rows with errors: {errors} FAILED")
    if record.copies:
        lines += [
            "# of copy estimate: the time in which all devices at once copy 2(n-1)/n x size each,",
            "#   as measured in the same run, over the median time. It is no bound: devices that",
            "#   share a memory may pass 1, as they can add and hand out sums with less traffic.",
        ]
    return lines


def fastest_spec_lines(record: AllReduceRecord) -> list[str]:
    """Formats a line with the fastest algorithm for each size and number of devices for which
    several algorithms were measured.
    """
    return [
        f"# Fastest of {first.bytes} B on {first.devices} devices: {_case_text(first)}, "
        f"{_fixed(first.bus_bandwidth, 2, _GIGA)} GB/s busbw, "
        f"{_fixed(other.median_seconds / first.median_seconds, 2)} times as fast as the next, "
        f"{_case_text(other)}"
        for first, other in record.fastest_points()
        if other is not None and first.median_seconds and other.median_seconds
    ]


def _case_text(point: Point) -> str:
    packing = str(point.packing)
    return point.spec if packing == NONE else f"{point.spec} {packing}"


def implausible_time_warning(point: Point, share: float | None) -> str | None:
    """Returns a warning if a time is too short for a reduction; None if it is plausible."""
    if share is None or share <= IMPLAUSIBLE_SHARE:
        return None
    return (
        f"{point.spec} {point.packing} on {point.bytes} bytes and {point.devices} devices: "
        f"{_fixed(share, 0)} times as fast as the memory-copy estimate; probably an error"
    )


def failure_message(failed: Sequence[Point]) -> str:
    """The message of a run with failed rows: the first one, and how many more there are."""
    first = failed[0]
    where = f"{first.spec} on {first.devices} devices, {first.bytes} bytes"
    what = first.error or f"{first.wrong} of {first.checked} elements are wrong"
    more = f"; {len(failed) - 1} more rows failed" if len(failed) > 1 else ""
    return f"{where}: {what}{more}"


def _fixed(value: float | None, digits: int, unit: float = 1.0) -> str:
    return NONE if value is None else f"{value / unit:.{digits}f}"


def _wrong_cell(point: Point) -> object:
    if point.error is not None:
        return "error"
    return point.wrong if point.checked else NONE


def _count_pieces(point: Point) -> int:
    return point.devices * point.tensors


def _time_columns(calls: int) -> tuple[_Column, ...]:
    slowest = _Column("max", "(us)", 11, lambda p, s: _fixed(p.longest_seconds, 1, _MICRO))
    if calls >= FEWEST_FOR_P99:
        slowest = _Column("p99", "(us)", 11, lambda p, s: _fixed(p.p99_seconds, 1, _MICRO))
    return (
        _Column("time", "(us)", 11, lambda p, s: _fixed(p.median_seconds, 1, _MICRO)),
        slowest,
        _Column("algbw", "(GB/s)", 7, lambda p, s: _fixed(p.algorithm_bandwidth, 2, _GIGA)),
        _Column("busbw", "(GB/s)", 7, lambda p, s: _fixed(p.bus_bandwidth, 2, _GIGA)),
        _Column("#wrong", "", 6, lambda p, s: _wrong_cell(p)),
        _Column("of copy", "estimate", 8, lambda p, s: _fixed(s, 3)),
    )


def _build_per_piece(point: Point) -> float | None:
    seconds = point.build_seconds
    return None if seconds is None else seconds / _count_pieces(point)


_BUILD = (
    _Column("pieces", "(devices x tensors)", 19, lambda p, s: _count_pieces(p)),
    _Column("operations", "", 10, lambda p, s: NONE if p.operations is None else p.operations),
    _Column("trace", "(s)", 8, lambda p, s: _fixed(p.trace_seconds, 3)),
    _Column("build", "(s)", 8, lambda p, s: _fixed(p.build_seconds, 3)),
    _Column("build/piece", "(us)", 11, lambda p, s: _fixed(_build_per_piece(p), 1, _MICRO)),
)
