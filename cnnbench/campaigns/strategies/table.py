"""What was found, as a table, CSV, JSON and a chart; docs/strategies.md defines the columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from cnnbench.base.charts import HIGHER, Axis, Row, Rows
from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import NONE, binary, number, percent
from cnnbench.base.text.table import csv_text, fitted, wrapped
from cnnbench.campaigns.strategies.plan import ONE_TOWER, StrategiesPlan
from cnnbench.campaigns.strategies.session import CaseRuns
from cnnbench.judge.metrics.registry import throughput
from cnnbench.judge.report.results import CONFIDENCE, Values
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord

if TYPE_CHECKING:
    from cnnbench.campaigns.strategies.weights import WeightDistance  # loads TensorFlow

_T = TypeVar("_T")

REFERENCE, EQUAL, DIFFERENT, APART = "reference", "equal", "different", "not compared"
UNKNOWN = ""

_SPARE = ("variables", "build s", "copies", "first step s", "reduction ops", "memory")
"""Columns that a narrow terminal leaves out, the first one first."""


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """One row; None where nothing was measured.

    Attributes:
      mode: name of the case.
      all_reduce: the aggregation in use, as the record names it; "" for none.
      processes: that went well.
      images_per_sec: median over the processes.
      low, high: `CONFIDENCE` interval of that, or the range where there are too few processes.
      overhead: time of a step beyond that of one tower with the same work, as a share of it; the
        median over the rounds, each compared with its own one tower.
      peak_memory_bytes, build_seconds, first_step_seconds: medians.
      variables, variable_copies, reduction_operations: see `Placement` of records.
      weights: REFERENCE, EQUAL, DIFFERENT, APART, or UNKNOWN where there was no other checkpoint.
      weight_distance, weight_variable: see `WeightDistance`.
      problem: why a process failed, or "".
    """

    mode: str
    all_reduce: str = ""
    processes: int = 0
    images_per_sec: float | None = None
    low: float | None = None
    high: float | None = None
    overhead: float | None = None
    peak_memory_bytes: float | None = None
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    variables: int | None = None
    variable_copies: int | None = None
    reduction_operations: int | None = None
    weights: str = UNKNOWN
    weight_distance: float | None = None
    weight_variable: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class StrategiesDocument:
    """What ``cnnbench strategies`` found.

    Attributes:
      rows: a mode each, one tower first.
      weights_tolerance: largest distance of weights that are called equal.
    """

    rows: tuple[StrategyRow, ...]
    weights_tolerance: float


def rows(
    results: Sequence[CaseRuns],
    distances: Mapping[str, WeightDistance],
    tolerance: float,
) -> tuple[StrategyRow, ...]:
    """The rows, one tower first.

    Args:
      results: in the order of the plan.
      distances: of weights, by mode.
      tolerance: largest distance of weights that are called equal.
    """
    alone = {at: throughput(record) for at, record in results[0].records.items()}
    return tuple(_row(one, alone, distances, tolerance) for one in results)


def _row(
    result: CaseRuns,
    alone: Mapping[int, float | None],
    distances: Mapping[str, WeightDistance],
    tolerance: float,
) -> StrategyRow:
    case, records = result.case, list(result.records.values())
    speeds = _values(records, throughput)
    low, high = speeds.interval or speeds.range or (None, None)
    reference = next(iter(distances), None)
    distance = distances.get(case.name)
    weights = UNKNOWN
    if case.apart:
        weights = APART
    elif distance is not None:
        weights = EQUAL if distance.within(tolerance) else DIFFERENT
        weights = REFERENCE if case.name == reference else weights
    placed = [record.placement for record in records if record.placement is not None]
    return StrategyRow(
        mode=case.name,
        all_reduce=", ".join(placed[0].all_reduce) if placed else "",
        processes=len(records),
        images_per_sec=speeds.median,
        low=low,
        high=high,
        overhead=_overhead(result, alone),
        peak_memory_bytes=_values(records, lambda r: r.measured.peak_memory_bytes).median,
        build_seconds=_values(records, lambda r: r.startup_seconds.build).median,
        first_step_seconds=_values(records, lambda r: r.startup_seconds.first_step).median,
        variables=placed[0].variables if placed else None,
        variable_copies=placed[0].variable_copies if placed else None,
        reduction_operations=placed[0].reduction_operations if placed else None,
        weights=weights,
        weight_distance=None if distance is None else distance.value,
        weight_variable="" if distance is None else distance.variable,
        problem=result.problem,
    )


def _overhead(result: CaseRuns, alone: Mapping[int, float | None]) -> float | None:
    if result.case.name == ONE_TOWER:
        return None
    found = []
    for at, record in result.records.items():
        speed, reference, placement = throughput(record), alone.get(at), record.placement
        if speed and reference and placement is not None:
            # Devices on the CPU share its cores: together they can be as fast as one.
            ideal = placement.num_towers if placement.device == "gpu" else 1
            found.append(ideal * reference / speed - 1.0)
    return median(found) if found else None


def _values(records: Sequence[RunRecord], value: Callable[[RunRecord], float | None]) -> Values:
    return Values(tuple(v for v in map(value, records) if v is not None))


def failed(found: Sequence[StrategyRow]) -> bool:
    """Whether a process failed, or modes that should train alike do not."""
    return any(row.problem or row.weights == DIFFERENT for row in found)


def table_text(found: Sequence[StrategyRow], plan: StrategiesPlan, tolerance: float) -> str:
    """The table, and a line on the weights.

    Args:
      found: the rows.
      plan: what was measured.
      tolerance: of the weights.
    """
    enough = any(_has_interval(row) for row in found)
    columns: tuple[tuple[str, Callable[[StrategyRow], str]], ...] = (
        ("mode", lambda row: row.mode),
        ("all-reduce", lambda row: row.all_reduce or NONE),
        ("median images/sec", lambda row: number(row.images_per_sec)),
        (f"{CONFIDENCE:.0%} interval" if enough else "range", _interval),
        ("overhead", lambda row: percent(row.overhead, signed=True)),
        ("memory", lambda row: binary(row.peak_memory_bytes)),
        ("build s", lambda row: number(row.build_seconds)),
        ("first step s", lambda row: number(row.first_step_seconds)),
        ("variables", lambda row: _count(row.variables)),
        ("copies", lambda row: _count(row.variable_copies)),
        ("reduction ops", lambda row: _count(row.reduction_operations)),
        ("weights", lambda row: row.weights or NONE),
    )
    cells = [[title for title, _ in columns]]
    cells += [[text(row) for _, text in columns] for row in found]
    remarks = _weight_lines(found, tolerance)
    remarks += [f"{case.name}: {case.apart}" for case in plan.modes if case.apart]
    remarks += [f"failed: {row.mode}: {row.problem}" for row in found if row.problem]
    lines = fitted(cells, (0, 1, -1), [cells[0].index(name) for name in _SPARE])
    lines += [line for remark in remarks for line in wrapped(remark, more="  ")]
    return "\n".join(lines) + "\n"


def _weight_lines(found: Sequence[StrategyRow], tolerance: float) -> list[str]:
    reference = next((row.mode for row in found if row.weights == REFERENCE), None)
    if reference is None:
        return ["weights were not compared"]
    equal = [row for row in found if row.weights == EQUAL]
    lines = [
        f"weights of {row.mode} differ from those of {reference}: {row.weight_variable} by "
        f"{number(row.weight_distance)} of its largest value, more than {tolerance:g}"
        for row in found
        if row.weights == DIFFERENT
    ]
    if equal:
        largest = max(row.weight_distance or 0.0 for row in equal)
        bits = "all bits" if largest == 0.0 else f"within {number(largest)} of the largest value"
        names = ", ".join(row.mode for row in equal)
        lines.insert(0, f"weights equal those of {reference}, {bits}: {names}")
    return lines


def to_csv(found: Sequence[StrategyRow]) -> str:
    """A line per row, all digits."""
    header = [field.name for field in fields(StrategyRow)]
    return csv_text(header, (asdict(row).values() for row in found))


def json_text(found: Sequence[StrategyRow], tolerance: float) -> str:
    """The rows with all digits, and the tolerance of the weights."""
    document = StrategiesDocument(rows=tuple(found), weights_tolerance=tolerance)
    return json.dumps(encode(document), indent=1, allow_nan=False) + "\n"


def chart(found: Sequence[StrategyRow], results: Sequence[CaseRuns], title: str) -> Rows:
    """Images/sec of every case, a dot per process.

    Args:
      found: the rows.
      results: of the same cases.
      title: what was measured.
    """
    drawn = []
    for row, result in zip(found, results, strict=True):
        speeds = _values(list(result.records.values()), throughput).values
        if not speeds:
            continue
        drawn.append(
            Row(
                label=row.mode,
                values=tuple(
                    (speed, f"{row.mode}, process {index}: {number(speed)} images/sec")
                    for index, speed in enumerate(speeds, start=1)
                ),
                centre=row.images_per_sec,
                low=row.low if _has_interval(row) else None,
                high=row.high if _has_interval(row) else None,
                text=number(row.images_per_sec),
            )
        )
    return Rows(
        title=title,
        x=Axis(label="images/sec at the median step", zero=True, better=HIGHER),
        rows=tuple(drawn),
        note=f"A dot is a process, the stroke the median, the band its {CONFIDENCE:.0%} interval "
        "(from 6 on).",
    )


def _has_interval(row: StrategyRow) -> bool:
    return row.processes >= _FEWEST


# Processes for an interval of the median.
_FEWEST = next(n for n in range(1, 100) if Values(tuple(map(float, range(n)))).interval)


def _interval(row: StrategyRow) -> str:
    if row.low is None or row.high is None:
        return NONE
    return f"{number(row.low)} to {number(row.high)}"


def _count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"
