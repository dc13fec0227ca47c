"""Results as a table, CSV and JSON; docs/strategies.md defines the columns."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from cnnbench.base.document import Text, table, terminal
from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.numbers import number_of
from cnnbench.campaigns.strategies.session import StrategiesSession, StrategyCase
from cnnbench.judge.report.results import ProcessValues
from cnnbench.judge.report.sections.campaigns import mode_row
from cnnbench.machine import repository
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord
from cnnbench.records.strategies import (
    APART,
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    UNKNOWN,
    StrategiesDocument,
    StrategyProcess,
    StrategyRow,
    speeds_of,
    weight_remarks,
)

_SPARE = ("variables", "build, s", "copies", "first step, s", "reduction ops", "memory")
"""Columns that a narrow terminal omits, the first one first."""


def _row(
    case: StrategyCase,
    session: StrategiesSession,
    processes: Sequence[StrategyProcess],
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
) -> StrategyRow:
    records = list(session.records[case.name].values())
    speeds = ProcessValues(speeds_of(processes, case.name))
    low, high = speeds.interval or speeds.range or (None, None)
    distance, variable = distances.get(case.name, (None, ""))
    weights = UNKNOWN
    if case.apart:
        weights = APART
    elif distance is not None:
        weights = EQUAL if distance <= tolerance else DIFFERENT  # also for NaN
        weights = REFERENCE if case.name == next(iter(distances)) else weights
    placed = [record.placement for record in records if record.placement is not None]
    return StrategyRow(
        mode=case.name,
        all_reduce=", ".join(placed[0].all_reduce) if placed else "",
        processes=len(records),
        images_per_sec=speeds.median,
        low=low,
        high=high,
        overhead=_overhead(case.name, session.records),
        peak_memory_bytes=_values(records, lambda r: r.measured.peak_memory_bytes).median,
        build_seconds=_values(records, lambda r: r.startup_seconds.build).median,
        first_step_seconds=_values(records, lambda r: r.startup_seconds.first_step).median,
        variables=placed[0].variables if placed else None,
        variable_copies=placed[0].variable_copies if placed else None,
        reduction_operations=placed[0].reduction_operations if placed else None,
        weights=weights,
        weight_distance=distance,
        weight_variable=variable,
        problem=session.problems.get(case.name, ""),
    )


def _overhead(mode: str, records: Mapping[str, Mapping[int, RunRecord]]) -> float | None:
    """The median over the rounds in which one tower was measured, too."""
    if mode == ONE_TOWER:
        return None
    found = []
    alone = {at: throughput(record) for at, record in records[ONE_TOWER].items()}
    for at, record in records[mode].items():
        speed, reference, placement = throughput(record), alone.get(at), record.placement
        if speed and reference and placement is not None:
            # Devices on the CPU share its cores: together they can be as fast as one.
            ideal = placement.num_towers if placement.kind == "gpu" else 1
            found.append(ideal * reference / speed - 1.0)
    return median(found) if found else None


def _values(
    records: Sequence[RunRecord], value: Callable[[RunRecord], float | None]
) -> ProcessValues:
    return ProcessValues(tuple(v for v in map(value, records) if v is not None))


def failed(found: Sequence[StrategyRow]) -> bool:
    """Whether a process failed, or modes that should train alike differ."""
    return any(row.problem or row.weights == DIFFERENT for row in found)


def table_text(found: StrategiesDocument, cases: Sequence[StrategyCase]) -> str:
    """The table, and remarks: on the weights, failures, an early end."""
    rows, tolerance = found.rows, found.weights_tolerance
    is_interval = any(row.processes >= ProcessValues.FEWEST for row in rows)
    spread = ProcessValues.INTERVAL if is_interval else "range"
    remarks = [text for text, _ in weight_remarks(rows, tolerance)]
    remarks += [f"{case.name}: {case.apart}" for case in cases[1:] if case.apart]
    remarks += [f"failed: {row.mode}: {row.problem}" for row in rows if row.problem]
    remarks += [f"incomplete: {found.incomplete}"] if found.incomplete else []
    shown = table((mode_row(row, spread) for row in rows), spare=_SPARE, whole=True)
    return terminal.text_of([[shown, *(Text(remark, hanging=2) for remark in remarks)]])


def document(
    session: StrategiesSession,
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
    *,
    command: Sequence[str],
    begun: datetime,
    facts: Mapping[str, Any],
    end: str | None = None,
    planned: int = 0,
) -> StrategiesDocument:
    """The rows with unrounded numbers, their processes and the subject; `begun` has a time zone.

    Weights within `tolerance` are called equal; see `cnnbench.campaigns.strategies.weights` for the
    distances. `end` is the reason of an early end, before `planned` processes were measured.
    """
    first = session.cases[1].resolved.config
    processes = tuple(
        StrategyProcess(mode=mode, round=at, run_id=record.run_id, images_per_sec=speed)
        for mode, records in session.records.items()
        # Together, so that a disturbance of few processes counts for none.
        for (at, record), speed in zip(
            records.items(), throughputs([*records.values()]), strict=True
        )
    )
    found = StrategiesDocument(
        run_id=uuid.uuid4().hex,
        started_at=begun.isoformat(timespec="seconds"),
        command=tuple(command),
        config=first,
        rows=tuple(_row(one, session, processes, distances, tolerance) for one in session.cases),
        processes=processes,
        weights_tolerance=tolerance,
        environment=facts,
        subject=repository.of_work(first).labelled(labels_of(first)),
        planned=None if end is None else planned,
    )
    if end is None:
        return found
    measured = f"{number_of(found.processes)} of {found.planned} processes measured"
    return replace(found, incomplete=f"{end}; {measured}")
