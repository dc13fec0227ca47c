"""The results of a comparison of modes as a table and a document (docs/strategies.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import ValuesByProcess, median
from cnnbench.base.text import item_count
from cnnbench.base.values import labels_from_config
from cnnbench.campaigns.strategies.plan import StrategiesSession, StrategyCase
from cnnbench.judge.report.sections.strategies import strategies_sections
from cnnbench.machine import repository
from cnnbench.records.campaigns import (
    APART,
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    UNKNOWN,
    StrategiesDocument,
    StrategyProcess,
    StrategyRow,
    images_per_sec_of_mode,
)
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord


def _strategy_row(
    case: StrategyCase,
    session: StrategiesSession,
    processes: Sequence[StrategyProcess],
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
) -> StrategyRow:
    records = list(session.records[case.name].values())
    speeds = images_per_sec_of_mode(processes, case.name)
    low, high = speeds.interval or speeds.range or (None, None)
    distance, variable = distances.get(case.name, (None, ""))
    weights = UNKNOWN
    if case.apart:
        weights = APART
    elif distance is not None:
        weights = EQUAL if distance <= tolerance else DIFFERENT  # NaN counts as DIFFERENT.
        weights = REFERENCE if case.name == next(iter(distances)) else weights
    placed = [record.placement for record in records if record.placement is not None]
    return StrategyRow(
        mode=case.name,
        all_reduce=", ".join(placed[0].all_reduce) if placed else "",
        processes=len(records),
        images_per_sec=speeds.median,
        low=low,
        high=high,
        overhead=_median_overhead(case.name, session.records),
        peak_memory_bytes=_process_values(records, lambda r: r.measured.peak_memory_bytes).median,
        build_seconds=_process_values(records, lambda r: r.startup_seconds.build).median,
        first_step_seconds=_process_values(records, lambda r: r.startup_seconds.first_step).median,
        variables=placed[0].variables if placed else None,
        variable_copies=placed[0].variable_copies if placed else None,
        reduction_operations=placed[0].reduction_operations if placed else None,
        weights=weights,
        weight_distance=distance,
        weight_variable=variable,
        problem=session.problems.get(case.name, ""),
    )


def _median_overhead(mode: str, records: Mapping[str, Mapping[int, RunRecord]]) -> float | None:
    """Median overhead of a mode against a single tower, over the rounds that measured both."""
    if mode == ONE_TOWER:
        return None
    overheads = []
    alone = {at: throughput(record) for at, record in records[ONE_TOWER].items()}
    for at, record in records[mode].items():
        speed, reference, placement = throughput(record), alone.get(at), record.placement
        if speed and reference and placement is not None:
            # CPU devices share the cores, so several devices are at most as fast as one.
            ideal = placement.num_towers if placement.kind == "gpu" else 1
            overheads.append(ideal * reference / speed - 1.0)
    return median(overheads) if overheads else None


def _process_values(
    records: Sequence[RunRecord], value: Callable[[RunRecord], float | None]
) -> ValuesByProcess:
    return ValuesByProcess(tuple(v for v in map(value, records) if v is not None))


def has_failures(rows: Sequence[StrategyRow]) -> bool:
    """Whether a process failed, or the weights that a mode trained are not as expected."""
    return any(row.problem or row.weights == DIFFERENT for row in rows)


def table_text(document: StrategiesDocument, cases: Sequence[StrategyCase]) -> str:
    """The results of all modes as text: the answer, remarks, and tables."""
    apart = {case.name: case.apart for case in cases[1:] if case.apart}
    return sections_to_text(strategies_sections(document, apart))


def strategies_document(
    session: StrategiesSession,
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
    *,
    command: Sequence[str],
    started_at: datetime,
    facts: Mapping[str, Any],
    end: str | None = None,
    planned: int = 0,
) -> StrategiesDocument:
    """Collects the results of a comparison of modes in a document, with unrounded numbers.

    `started_at` must have a time zone.

    Weights whose distance (`weight_distances`) is at most `tolerance` are called equal. `end` is
    the reason for an early end, before all `planned` processes were measured.
    """
    first = session.cases[1].resolved.config
    processes = tuple(
        StrategyProcess(mode=mode, round=at, run_id=record.run_id, images_per_sec=speed)
        for mode, records in session.records.items()
        # `throughputs` gets all processes of a mode, so that it can remove rare disturbances.
        for (at, record), speed in zip(
            records.items(), throughputs([*records.values()]), strict=True
        )
    )
    document = StrategiesDocument(
        run_id=uuid.uuid4().hex,
        started_at=started_at.isoformat(timespec="seconds"),
        command=tuple(command),
        config=first,
        rows=tuple(
            _strategy_row(case, session, processes, distances, tolerance) for case in session.cases
        ),
        processes=processes,
        weights_tolerance=tolerance,
        environment=facts,
        subject=repository.measured_code(first).with_labels(labels_from_config(first)),
        planned=None if end is None else planned,
    )
    if end is None:
        return document
    measured = f"{item_count(document.processes)} of {document.planned} processes measured"
    return replace(document, incomplete=f"{end}; {measured}")
