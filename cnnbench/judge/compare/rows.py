"""Converts the rows of all-reduce records to measurements.

In an all-reduce record, each row is a configuration: an algorithm or a peer (another library's
reduction) with its packing, tensors and number of devices; or all devices copying memory at the
same time. A row has one value per process. Wrong sums in other rows, or a later failure of the
process, do not affect the row. Rows that a failed process did not reach are reported as failed;
other processes with the same flags show which rows are missing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain, product
from typing import Any

from cnnbench.base.stats import median
from cnnbench.flags import RunPart, identity_flags, names_of_flags
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.judge.compare.facts import is_allowed_to_differ
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
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.run import ErrorInfo, RunRecord
from cnnbench.variable_mgr.packing import Packing

_FLAG_OF = {"compact_dtype": "wire_dtype"}
"""Names of flags, by the field of `Packing`, where the two names differ."""

_PACKING = tuple(_FLAG_OF.get(one.name, one.name) for one in fields(Packing))
"""Flags that control how tensors are packed before a reduction."""

_OF_ROWS = (*names_of_flags(ALL_REDUCE_FLAGS, RunPart.ROWS), *_PACKING)
"""Flags that list what is measured. Each row of a record has its own values."""

_REDUNDANT = ("iterations",)
"""Flags that only repeat another flag: `iterations` is an alias of `num_batches`."""

LEFT_OUT = (*_OF_ROWS, *_REDUNDANT)
"""Flags of a process that are not flags of its rows."""

_POINT = ("workload", "dtype", "bytes", "tensors", "elements", "devices")

OWN = ("all_reduce_spec", *_POINT, *_PACKING)
"""Values that identify a row of an all-reduce record."""


def records_to_measurements(
    *sides: Iterable[RunRecord | AllReduceRecord], patterns: tuple[str, ...] = ()
) -> list[list[Measurement]]:
    """Converts each of the given sets of records to measurements: run records are unchanged, and
    each row of an all-reduce record becomes a measurement.

    If a failed process lacks rows that another process with the same flags (except `patterns`)
    measured, failed rows are added.
    """
    listed = [tuple(side) for side in sides]
    reduced = [[one for one in side if not isinstance(one, RunRecord)] for side in listed]
    processes = [[(one, _rows(one)) for one in side] for side in reduced]
    everything = list(chain.from_iterable(processes))
    # A failed process gets the rows that other processes with equal flags have measured. Processes
    # are looked up by two keys: all flags, or only the flags that must be equal (which match no
    # pattern).
    known: defaultdict[object, dict[str, MeasuredReduction]] = defaultdict(dict)
    if any(record.status == "failed" for record, _ in everything):
        for may, (record, rows) in product(((), patterns), everything):
            known[may, _flags_key(record, may)].update((_row_key(row), row) for row in rows)
    measured_sides: list[list[Measurement]] = []
    for side, of_side in zip(listed, processes, strict=True):
        measured: list[Measurement] = [record for record in side if isinstance(record, RunRecord)]
        for record, rows in of_side:
            measured += rows
            if record.status == "failed":
                alike = (known[may, _flags_key(record, may)] for may in ((), patterns))
                measured += _unreached_rows(record, rows, next(filter(None, alike), {}))
        measured_sides.append(measured)
    return measured_sides


def _rows(record: AllReduceRecord) -> list[MeasuredReduction]:
    """Converts the rows of an all-reduce record to measurements. Rows with one device are left out,
    because one device reduces nothing.
    """
    empty = _failed_row(record)
    in_turn = Counter((point.workload, point.devices) for point in record.rows)
    own = BUILD if record.config.get("build_only") else ALL_REDUCE
    by_identity: dict[str, MeasuredReduction] = {}
    for kind, points in ((own, record.points), (PEER, record.peers)):
        for point in points:
            if point.devices > 1:
                alike = in_turn[point.workload, point.devices]
                row = _row(kind, point, record, empty, alike)
                # If a record contains a row twice, only the first of the two is used.
                by_identity.setdefault(_row_key(row), row)
    return [*by_identity.values(), *_copy_rows(record, empty)]


def _unreached_rows(
    record: AllReduceRecord,
    rows: Sequence[MeasuredReduction],
    expected_rows: Mapping[str, MeasuredReduction],
) -> list[MeasuredReduction]:
    """Returns failed rows without values, for the measurements that a failed process did not reach.

    `rows` are the rows that the process reached, and `expected_rows` the rows of other processes
    with the same flags. If no row is missing and no reached row failed, the result is one failed
    row that stands for the process.
    """
    had = {_row_key(row) for row in rows}
    missing = [row for text, row in expected_rows.items() if text not in had and row.kind != COPY]
    empty = _failed_row(record)
    if not missing and not any(row.error is not None for row in rows):
        asked = {name: record.config[name] for name in _OF_ROWS if name in record.config}
        return [replace(empty, config={**empty.config, **asked})]
    # A process that failed early has no final values of `device` and `num_gpus` in its record.
    late = () if record.placement is not None else ("device", "num_gpus")
    flags = {name: value for name, value in empty.config.items() if name not in late}
    return [replace(empty, kind=row.kind, config={**row.config, **flags}) for row in missing]


def name_parts(kind: str, flags: Mapping[str, Any]) -> list[str]:
    """Returns the parts of the name of a row in an all-reduce record, such as ["all-reduce ring",
    "vgg16 gradients", "4 gpu"].
    """
    device = f"{flags.get('devices')} {flags.get('device')}"
    if kind == COPY:
        return ["memory copy", f"{flags.get('bytes')} bytes", device]
    # A process that failed before it measured a row has no workload to name.
    if "workload" not in flags:
        sizes = flags.get("sizes")
        of = ",".join(map(str, sizes)) if isinstance(sizes, list) else flags.get("model")
        return [f"all-reduces of {of}", f"{flags.get('num_gpus')} {flags.get('device')}"]
    name = f"all-reduce {flags['all_reduce_spec']}"
    of = f"{flags['workload']} {'gradients' if flags.get('model') else 'bytes'}"
    parts = [f"building {name}" if kind == BUILD else name, of, *_packing_parts(flags)]
    if flags["dtype"] != "float32":
        parts.append(str(flags["dtype"]))
    return [*parts, device, *(["peer"] if kind == PEER else [])]


def _packing_parts(flags: Mapping[str, Any]) -> list[str]:
    values = {name: flags[name] for name in _PACKING}
    wire = values.pop("wire_dtype")
    packing = Packing(**values, compact_dtype=None if wire == "same" else wire)
    return [] if packing == Packing() else [str(packing)]


def packing_flags(packing: Packing) -> dict[str, Any]:
    """Returns the flags that control how tensors are packed before a reduction. If small gradients
    are not packed, the maximum group size has no effect, so its default is returned.
    """
    flags = asdict(packing)
    flags["wire_dtype"] = flags.pop("compact_dtype") or "same"
    if not packing.agg_small_grads_max_bytes:
        flags["agg_small_grads_max_group"] = type(packing)().agg_small_grads_max_group
    return flags


def _failed_row(record: AllReduceRecord) -> MeasuredReduction:
    """Returns a failed row of an all-reduce record, without values. All other rows of the record
    are copies of it with changed fields.
    """
    config = {name: value for name, value in record.config.items() if name not in LEFT_OUT}
    # The devices of a process share its thread pools, so a time depends on the number of devices.
    # Therefore the flags of a row contain this number.
    if record.placement is not None:
        config["num_gpus"] = len(record.placement.devices)
        config["device"] = record.placement.kind
    else:
        asked = record.config.get("num_gpus")
        config["num_gpus"] = max(asked) if isinstance(asked, list) and asked else asked
    return dataclass_from_sources(
        MeasuredReduction,
        record,
        kind=ALL_REDUCE,
        status="failed",
        config=config,
        facts=process_facts(record),
    )


def _row(
    kind: str, point: Point, record: AllReduceRecord, empty: MeasuredReduction, in_turn: int
) -> MeasuredReduction:
    config = {
        **empty.config,
        "model": point.workload if point.workload == record.config.get("model") else None,
        "all_reduce_spec": point.spec,
        **{name: getattr(point, name) for name in _POINT},
        **packing_flags(point.packing),
    }
    error = _error(point)
    facts = (*empty.facts, ("rows_in_turn", str(in_turn)))
    row = replace(empty, kind=kind, config=config, facts=facts, error=error)
    if error is not None:
        return row
    calls = record.config.get("num_batches")
    cut = record.status != "ok" and isinstance(calls, int) and 0 < len(point.seconds) < calls
    return replace(
        row,
        status="interrupted" if cut else "ok",
        seconds=point.median_seconds,
        bytes_per_sec=point.bus_bandwidth,
        build_seconds=point.build_seconds,
    )


def _copy_rows(record: AllReduceRecord, empty: MeasuredReduction) -> list[MeasuredReduction]:
    """Converts the memory copies in an all-reduce record to measurements, one for each size and
    number of devices. Times of copies with the same size are combined.
    """
    seconds: dict[tuple[int, int], list[float]] = {}
    for copy in record.copies:
        if copy.devices > 1:
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


def _row_key(row: MeasuredReduction) -> str:
    return json.dumps([row.kind, *(row.config.get(name) for name in (*OWN, "model"))])


def _flags_key(record: AllReduceRecord, may_differ: tuple[str, ...]) -> str:
    """Returns text that is equal for equal flags, except file names and flags in `may_differ`."""
    flags = {
        name: value
        for name, value in identity_flags(record.config, of_places=True).items()
        if name not in _REDUNDANT and not is_allowed_to_differ(name, may_differ)
    }
    return json.dumps(flags, sort_keys=True)
