"""The table, in the manner of nccl-tests: rows of data, everything else behind a #.

Figures are as docs/all_reduce_benchmark.md defines them; GB are 10**9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.records.allreduce import AllReduceRecord, Copying, Point

# No machine moves data twenty times as fast as it copies; such a time was not a reduction's.
IMPLAUSIBLE_SHARE = 20.0

_NONE = "-"
_GIGA = 1e9
_MICRO = 1e-6


@dataclass(frozen=True)
class _Column:
    title: str
    unit: str
    width: int
    cell: Callable[[Point, float | None], str]
    left: bool = False

    def text(self, cell: str) -> str:
        return cell.ljust(self.width) if self.left else cell.rjust(self.width)


class Table:
    """Formats the rows of one run.

    Args:
      ways: the specs and packings that will come, as text, for the widths of columns.
      build_only: whether rows tell how long it took to build instead of to reduce.
    """

    def __init__(self, ways: Sequence[tuple[str, str]], build_only: bool = False) -> None:
        specs = max((len(spec) for spec, _ in ways), default=4)
        packings = max((len(packing) for _, packing in ways), default=7)
        what = (
            _Column("size", "(B)", 12, lambda p, s: str(p.bytes)),
            _Column("count", "(elements)", 12, lambda p, s: str(p.elements)),
            _Column("tensors", "", 7, lambda p, s: str(p.tensors)),
            _Column("dtype", "", 8, lambda p, s: p.dtype),
            _Column("devices", "", 7, lambda p, s: str(p.devices)),
            _Column("spec", "", max(specs, 4), lambda p, s: p.spec, left=True),
            _Column("packing", "", max(packings, 7), lambda p, s: str(p.packing), left=True),
        )
        self._columns = what + (_BUILD if build_only else _TIME)

    def header(self) -> list[str]:
        """Titles and units."""
        titles = "  ".join(column.text(column.title) for column in self._columns)
        units = "  ".join(column.text(column.unit) for column in self._columns)
        return [f"# {titles}".rstrip(), f"# {units}".rstrip()]

    def row(self, point: Point, share: float | None) -> str:
        """One row.

        Args:
          point: what was measured.
          share: of the memory-copy bound; None if unknown.
        """
        cells = "  ".join(column.text(column.cell(point, share)) for column in self._columns)
        return f"  {cells}".rstrip()


def copy_line(copy: Copying) -> str:
    """What bounds the rows of one size."""
    return (
        f"# memory copy: {copy.devices} devices at once write {copy.rate / _GIGA:.2f} GB/s "
        f"({copy.bytes} B each); bound {copy.bound_seconds(copy.bytes, copy.devices) / _MICRO:.1f} "
        "us"
    )


def build_line(point: Point) -> str:
    """How long one row took to build."""
    trace = _NONE if point.trace_seconds is None else f"{point.trace_seconds:.3f}"
    build = _NONE if point.build_seconds is None else f"{point.build_seconds:.3f}"
    return (
        f"# build: {point.spec} {point.packing}: traced in {trace} s, built in {build} s, "
        f"{point.operations or 0} operations"
    )


def error_line(point: Point) -> str:
    """Why a row has no figures."""
    return f"# {point.spec} {point.packing}: {point.error}"


def footer(record: AllReduceRecord) -> list[str]:
    """What all rows come to, and how to read the last column."""
    rows = record.rows
    wrong, checked = sum(p.wrong for p in rows), sum(p.checked for p in rows)
    errors = sum(p.error is not None for p in rows)
    lines = []
    if checked:
        verdict = "FAILED" if wrong else "OK"
        lines.append(f"# Wrong values: {wrong} of {checked} {verdict}")
    if errors:
        lines.append(f"# Rows with errors: {errors} FAILED")
    if record.copies:
        lines += [
            "# of copy bound: the time in which all devices at once copy 2(n-1)/n x size each,",
            "#   as measured in the same run, over the median time. Devices that share a memory",
            "#   may pass 1: they can add and hand out sums with less traffic than such copies.",
        ]
    return lines


def implausible(point: Point, share: float | None) -> str | None:
    """A warning for a time that no reduction takes; None for others."""
    if share is None or share <= IMPLAUSIBLE_SHARE:
        return None
    return (
        f"{point.spec} {point.packing} on {point.bytes} bytes and {point.devices} devices: "
        f"{share:.0f} times the memory-copy bound; not measured?"
    )


def _micro(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds / _MICRO:.1f}"


def _giga(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate / _GIGA:.2f}"


def _seconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds:.3f}"


def _wrong(point: Point) -> str:
    if point.error is not None:
        return "error"
    return str(point.wrong) if point.checked else _NONE


def _pieces(point: Point) -> int:
    return point.devices * point.tensors


def _per_piece(point: Point) -> str:
    return _NONE if point.build_seconds is None else _micro(point.build_seconds / _pieces(point))


_TIME = (
    _Column("time", "(us)", 11, lambda p, s: _micro(p.median)),
    _Column("p99", "(us)", 11, lambda p, s: _micro(p.p99)),
    _Column("algbw", "(GB/s)", 7, lambda p, s: _giga(p.algorithm_bandwidth)),
    _Column("busbw", "(GB/s)", 7, lambda p, s: _giga(p.bus_bandwidth)),
    _Column("#wrong", "", 6, lambda p, s: _wrong(p)),
    _Column("of copy", "bound", 7, lambda p, s: _NONE if s is None else f"{s:.3f}"),
)
_BUILD = (
    _Column("pieces", "(devices x tensors)", 19, lambda p, s: str(_pieces(p))),
    _Column(
        "operations", "", 10, lambda p, s: _NONE if p.operations is None else str(p.operations)
    ),
    _Column("trace", "(s)", 8, lambda p, s: _seconds(p.trace_seconds)),
    _Column("build", "(s)", 8, lambda p, s: _seconds(p.build_seconds)),
    _Column("build/piece", "(us)", 11, lambda p, s: _per_piece(p)),
)
