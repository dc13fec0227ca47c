"""All-reduce records as measurements; every row is a configuration.

A row is an algorithm, or a peer (another library's reduction), with its packing, tensors and number
of devices, or all devices copying memory at once. It has one value per process and does not depend
on other rows: their wrong sums, or a later failure of the process, do not affect it. Rows that a
failed process did not reach have failed; they are known from processes with the same flags.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain, product
from typing import Any

from cnnbench.base.stats.descriptive import median
from cnnbench.flags.declare import named
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.flags.identity import identity
from cnnbench.flags.roles import RunPart
from cnnbench.judge.metrics.comparable_facts import allowed
from cnnbench.judge.metrics.measurement import (
    ALL_REDUCE,
    BUILD,
    COPY,
    PEER,
    MeasuredReduction,
    Measurement,
    process_facts,
)
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import encode
from cnnbench.records.parts import ErrorInfo
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr.aggregation.spec import Packing

_FLAG_OF = {"compact_dtype": "wire_dtype"}
"""Flags with another name than the field of `Packing`."""

_PACKING = tuple(_FLAG_OF.get(one.name, one.name) for one in fields(Packing))
"""Flags that control packing."""

_OF_ROWS = (*named(ALL_REDUCE_FLAGS, RunPart.ROWS), *_PACKING)
"""Flags that list what is measured; each row has its own values."""

_REDUNDANT = ("iterations",)
"""Another name of num_batches."""

_POINT = ("workload", "dtype", "bytes", "tensors", "elements", "devices")

OWN = ("all_reduce_spec", *_POINT, *_PACKING)
"""Values that identify a reduction."""


def measurements(
    *sides: Iterable[RunRecord | AllReduceRecord], patterns: tuple[str, ...] = ()
) -> list[list[Measurement]]:
    """The measurements of the processes of every side, in the order of their records.

    Rows that a failed process lacks are failed if a process with the same flags (except `patterns`)
    has them.
    """
    listed = [tuple(side) for side in sides]
    processes = [
        [(one, reductions(one)) for one in side if not isinstance(one, RunRecord)]
        for side in listed
    ]
    everything = list(chain.from_iterable(processes))
    # Rows of all processes of some flags: of all flags, then of those that must not differ.
    known: defaultdict[object, dict[str, MeasuredReduction]] = defaultdict(dict)
    if any(record.status == "failed" for record, _ in everything):
        for may, (record, rows) in product(((), patterns), everything):
            known[may, _flags_text(record, may)].update((_identity(row), row) for row in rows)
    found: list[list[Measurement]] = []
    for side, of_side in zip(listed, processes, strict=True):
        measured: list[Measurement] = [one for one in side if isinstance(one, RunRecord)]
        for record, rows in of_side:
            measured += rows
            if record.status == "failed":
                alike = (known[may, _flags_text(record, may)] for may in ((), patterns))
                measured += not_reached(record, rows, next(filter(None, alike), {}))
        found.append(measured)
    return found


def reductions(record: AllReduceRecord) -> list[MeasuredReduction]:
    """Rows of a record, except those of one device, which reduce nothing."""
    empty = _empty(record)
    in_turn = Counter((point.workload, point.devices) for point in record.rows)
    own = BUILD if record.config.get("build_only") else ALL_REDUCE
    found: dict[str, MeasuredReduction] = {}
    for kind, points in ((own, record.points), (PEER, record.peers)):
        for point in points:
            if point.devices > 1:
                row = _row(kind, point, record, empty, in_turn[point.workload, point.devices])
                # One value per process, even if a file repeats a row.
                found.setdefault(_identity(row), row)
    return [*found.values(), *_copies(record, empty)]


def not_reached(
    record: AllReduceRecord,
    rows: Sequence[MeasuredReduction],
    alike: Mapping[str, MeasuredReduction],
) -> list[MeasuredReduction]:
    """The rows that a failed process did not reach, without values.

    If none are known, and no row of the process has failed, one that stands for the process.
    """
    had = {_identity(row) for row in rows}
    missing = [row for text, row in alike.items() if text not in had and row.kind != COPY]
    empty = _empty(record)
    if not missing and not any(row.error is not None for row in rows):
        asked = {name: record.config[name] for name in _OF_ROWS if name in record.config}
        return [replace(empty, config={**empty.config, **asked})]
    # The process may have failed before these were resolved.
    late = () if record.placement is not None else ("device", "num_gpus")
    flags = {name: value for name, value in empty.config.items() if name not in late}
    return [replace(empty, kind=row.kind, config={**row.config, **flags}) for row in missing]


def defaults() -> Mapping[str, Any]:
    """Defaults of the flags that a row has."""
    flags = {
        spec.name: encode(spec.default)
        for spec in ALL_REDUCE_FLAGS
        if spec.name not in (*_OF_ROWS, *_REDUNDANT)
    }
    return {**flags, "model": None, **_packing_flags(Packing())}


def label(kind: str, flags: Mapping[str, Any]) -> list[str]:
    """A short name of a row, in parts."""
    device = f"{flags.get('devices')} {flags.get('device')}"
    if kind == COPY:
        return ["memory copy", f"{flags.get('bytes')} bytes", device]
    if "workload" not in flags:  # a process that failed before its first row
        sizes = flags.get("sizes")
        of = ",".join(map(str, sizes)) if isinstance(sizes, list) else flags.get("model")
        return [f"all-reduces of {of}", f"{flags.get('num_gpus')} {flags.get('device')}"]
    name = f"all-reduce {flags['all_reduce_spec']}"
    of = f"{flags['workload']} {'gradients' if flags.get('model') else 'bytes'}"
    parts = [f"building {name}" if kind == BUILD else name, of, *_packing(flags)]
    if flags["dtype"] != "float32":
        parts.append(str(flags["dtype"]))
    return [*parts, device, *(["peer"] if kind == PEER else [])]


def _packing(flags: Mapping[str, Any]) -> list[str]:
    values = {name: flags[name] for name in _PACKING}
    wire = values.pop("wire_dtype")
    packing = Packing(**values, compact_dtype=None if wire == "same" else wire)
    return [] if packing == Packing() else [str(packing)]


def _packing_flags(packing: Packing) -> dict[str, Any]:
    """The flags of a packing; the group, unused without a limit, has its default."""
    flags = asdict(packing)
    flags["wire_dtype"] = flags.pop("compact_dtype") or "same"
    if not packing.agg_small_grads_max_bytes:
        flags["agg_small_grads_max_group"] = type(packing)().agg_small_grads_max_group
    return flags


def _empty(record: AllReduceRecord) -> MeasuredReduction:
    """A row without values, failed like its process; the template of other rows."""
    config = {
        name: value
        for name, value in record.config.items()
        if name not in _OF_ROWS and name not in _REDUNDANT
    }
    # Thread pools are for all devices that the process made.
    if record.placement is not None:
        config["num_gpus"] = len(record.placement.devices)
        config["device"] = record.placement.kind
    else:
        asked = record.config.get("num_gpus")
        config["num_gpus"] = max(asked) if isinstance(asked, list) and asked else asked
    return MeasuredReduction(
        kind=ALL_REDUCE,
        run_id=record.run_id,
        started_at=record.started_at,
        status="failed",
        error=record.error,
        config=config,
        explicit_flags=record.explicit_flags,
        environment=record.environment,
        facts=process_facts(record),
        subject=record.subject,
    )


def _row(
    kind: str, point: Point, record: AllReduceRecord, empty: MeasuredReduction, in_turn: int
) -> MeasuredReduction:
    config = {
        **empty.config,
        "model": point.workload if point.workload == record.config.get("model") else None,
        "all_reduce_spec": point.spec,
        **{name: getattr(point, name) for name in _POINT},
        **_packing_flags(point.packing),
    }
    error = _error(point)
    calls = record.config.get("num_batches")
    cut = record.status != "ok" and isinstance(calls, int) and 0 < len(point.seconds) < calls
    good = error is None
    return replace(
        empty,
        kind=kind,
        config=config,
        facts=(*empty.facts, ("rows_in_turn", str(in_turn))),
        status="failed" if not good else "interrupted" if cut else "ok",
        error=error,
        seconds=point.median if good else None,
        bytes_per_sec=point.bus_bandwidth if good else None,
        build_seconds=point.build_seconds if good else None,
    )


def _copies(record: AllReduceRecord, empty: MeasuredReduction) -> list[MeasuredReduction]:
    """Memory copies by size and devices; the times of workloads of equal size are joined."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for copy in record.copies:
        if copy.devices > 1 and copy.seconds:
            seconds.setdefault((copy.bytes, copy.devices), []).extend(copy.seconds)
    return [
        replace(
            empty,
            kind=COPY,
            status="ok",
            error=None,
            config={**empty.config, "bytes": size, "devices": devices},
            seconds=median(times),
            bytes_per_sec=size * devices / median(times),
        )
        for (size, devices), times in seconds.items()
    ]


def _error(point: Point) -> ErrorInfo | None:
    kind, colon, message = (point.error or "").partition(": ")
    if colon and kind.isidentifier():
        return ErrorInfo(type=kind, message=message)
    if point.error is not None:
        return ErrorInfo(type="Error", message=point.error)
    wrong = f"{point.wrong} of {point.checked} elements are wrong"
    return ErrorInfo(type="WrongSums", message=wrong) if point.wrong else None


def _identity(row: MeasuredReduction) -> str:
    return json.dumps([row.kind, *(row.config.get(name) for name in (*OWN, "model"))])


def _flags_text(record: AllReduceRecord, may_differ: tuple[str, ...]) -> str:
    """Text that identifies processes with equal flags, except flags such as files."""
    flags = {
        name: value
        for name, value in identity(record.config, of_places=True).items()
        if name not in _REDUNDANT and not allowed(name, may_differ)
    }
    return json.dumps(flags, sort_keys=True)
