"""The printed table in the format of nccl-tests: rows of data, all other lines behind ``#``.

docs/all_reduce_benchmark.md defines the columns; GB are 10**9 bytes. Rows are printed when measured
and read by scripts: widths are fixed, and numbers have no separators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cnnbench.base.stats.descriptive import FEWEST_FOR_P99
from cnnbench.base.text.numbers import NONE
from cnnbench.records.all_reduce import AllReduceRecord, Copying, Point

# No machine moves data twenty times as fast as it copies: such a time is not a reduction's.
IMPLAUSIBLE_SHARE = 20.0

_GIGA = 1e9
_MICRO = 1e-6


Column: TypeAlias = tuple[str, str, str, Callable[[Point, "float | None"], object]]
"""Title, unit, alignment and width as in format strings, and the cell of a row and its share."""


class RowFormat:
    """Formats the rows of one run.

    Args:
      cases: the specs and packings to come, as text, for the widths of columns.
      build_only: whether rows show the time to build instead of that to reduce.
      calls: number of timed calls per row; if too few for a 99th percentile, the column is "max".
    """

    def __init__(
        self,
        cases: Sequence[tuple[str, str]],
        build_only: bool = False,
        calls: int = FEWEST_FOR_P99,
    ) -> None:
        specs = max((len(spec) for spec, _ in cases), default=4)
        packings = max((len(packing) for _, packing in cases), default=7)
        self._columns: tuple[Column, ...] = (
            ("size", "(B)", ">12", lambda p, s: p.bytes),
            ("count", "(elements)", ">12", lambda p, s: p.elements),
            ("tensors", "", ">7", lambda p, s: p.tensors),
            ("dtype", "", ">8", lambda p, s: p.dtype),
            ("devices", "", ">7", lambda p, s: p.devices),
            ("spec", "", f"<{max(specs, 4)}", lambda p, s: p.spec),
            ("packing", "", f"<{max(packings, 7)}", lambda p, s: p.packing),
            *(_BUILD if build_only else _times(calls)),
        )

    def header(self) -> list[str]:
        """Titles and units."""
        return [
            self._line("#", [title for title, *_ in self._columns]),
            self._line("#", [unit for _, unit, *_ in self._columns]),
        ]

    def lines(self, point: Point, share: float | None, verbose: bool = False) -> list[str]:
        """A row, and below it the error of one without times; with `verbose`, its build time."""
        case = f"{point.spec} {point.packing}:"
        lines = [self._line(" ", [str(cell(point, share)) for *_, cell in self._columns])]
        if point.error is not None:
            lines.append(f"# {case} {point.error}")
        if verbose:
            lines.append(
                f"# build: {case} traced in {_fixed(point.trace_seconds, 3)} s, "
                f"built in {_fixed(point.build_seconds, 3)} s, {point.operations or 0} operations"
            )
        return lines

    def _line(self, mark: str, cells: Sequence[str]) -> str:
        pairs = zip(self._columns, cells, strict=True)
        texts = (format(cell, alignment) for (*_, alignment, _), cell in pairs)
        return f"{mark} {'  '.join(texts)}".rstrip()


def copy_line(copy: Copying) -> str:
    """The memory copy from which the rows of one size are estimated."""
    return (
        f"# memory copy: {copy.devices} devices at once write {copy.rate / _GIGA:.2f} GB/s "
        f"({copy.bytes} B each); estimate "
        f"{copy.estimated_seconds(copy.bytes, copy.devices) / _MICRO:.1f} us"
    )


def footer(record: AllReduceRecord) -> list[str]:
    """The fastest of each size, totals of all rows, and an explanation of the last column."""
    wrong, checked = (sum(getattr(p, n) for p in record.rows) for n in ("wrong", "checked"))
    errors = sum(p.error is not None for p in record.rows)
    lines = fastest(record)
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


def fastest(record: AllReduceRecord) -> list[str]:
    """A line per size and number of devices of which several rows were timed."""
    alike: dict[tuple[object, ...], list[tuple[float, Point]]] = {}
    for point in record.rows:
        if point.median is not None and not point.failed:
            place = (point.workload, point.bytes, point.dtype, point.devices)
            alike.setdefault(place, []).append((point.median, point))
    lines = []
    for (_, size, _, devices), timed in alike.items():
        if len(timed) < 2:
            continue
        (best, first), (second, next_one), *_ = sorted(timed, key=lambda one: one[0])
        lines.append(
            f"# Fastest of {size} B on {devices} devices: {_case(first)}, "
            f"{_fixed(first.bus_bandwidth, 2, _GIGA)} GB/s busbw, {second / best:.2f} times as "
            f"fast as the next, {_case(next_one)}"
        )
    return lines


def _case(point: Point) -> str:
    packing = str(point.packing)
    return point.spec if packing == NONE else f"{point.spec} {packing}"


def implausible(point: Point, share: float | None) -> str | None:
    """A warning if the time is too short for a reduction."""
    if share is None or share <= IMPLAUSIBLE_SHARE:
        return None
    return (
        f"{point.spec} {point.packing} on {point.bytes} bytes and {point.devices} devices: "
        f"{share:.0f} times as fast as the memory-copy estimate; not measured?"
    )


def _fixed(value: float | None, digits: int, unit: float = 1.0) -> str:
    return NONE if value is None else f"{value / unit:.{digits}f}"


def _wrong(point: Point) -> object:
    if point.error is not None:
        return "error"
    return point.wrong if point.checked else NONE


def _pieces(point: Point) -> int:
    return point.devices * point.tensors


def _times(calls: int) -> tuple[Column, ...]:
    return (
        ("time", "(us)", ">11", lambda p, s: _fixed(p.median, 1, _MICRO)),
        (
            ("p99", "(us)", ">11", lambda p, s: _fixed(p.p99, 1, _MICRO))
            if calls >= FEWEST_FOR_P99
            else ("max", "(us)", ">11", lambda p, s: _fixed(p.longest, 1, _MICRO))
        ),
        ("algbw", "(GB/s)", ">7", lambda p, s: _fixed(p.algorithm_bandwidth, 2, _GIGA)),
        ("busbw", "(GB/s)", ">7", lambda p, s: _fixed(p.bus_bandwidth, 2, _GIGA)),
        ("#wrong", "", ">6", lambda p, s: _wrong(p)),
        ("of copy", "estimate", ">8", lambda p, s: _fixed(s, 3)),
    )


_BUILD: tuple[Column, ...] = (
    ("pieces", "(devices x tensors)", ">19", lambda p, s: _pieces(p)),
    ("operations", "", ">10", lambda p, s: NONE if p.operations is None else p.operations),
    ("trace", "(s)", ">8", lambda p, s: _fixed(p.trace_seconds, 3)),
    ("build", "(s)", ">8", lambda p, s: _fixed(p.build_seconds, 3)),
    ("build/piece", "(us)", ">11", lambda p, s: _fixed(p.build_seconds, 1, _pieces(p) * _MICRO)),
)
