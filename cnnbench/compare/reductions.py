"""All-reduce measurements as measurements: every row of one is a configuration of its own.

A row is an algorithm, or somebody else's reduction, with its packing, tensors and number of
devices; all devices copying memory at once is one too. A row has one value per process, and
stands for itself: wrong sums of its neighbours, or the end of the process after it, do not
touch it. What a failed process did not get to is known from its like, and failed with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from cnnbench.metrics.comparable_facts import allowed, counts
from cnnbench.metrics.measurement import (
    ALLREDUCE,
    BUILD,
    COPY,
    PEER,
    Measurement,
    Reduction,
    environment_facts,
)
from cnnbench.records.run import ErrorInfo, RunRecord
from cnnbench.stats.descriptive import median

if TYPE_CHECKING:
    from cnnbench.records.allreduce import AllReduceRecord, Point

_OF_ROWS = (
    *("sizes", "model", "data_name", "model_plugin", "dtype", "all_reduce_spec", "peers"),
    *("gradient_repacking", "agg_small_grads_max_bytes", "agg_small_grads_max_group"),
    *("wire_dtype", "compact_gradient_transfer", "allreduce_merge_scope"),
    "variable_consistency",
)
"""Flags that list what is measured; each row says what it is of."""

_SAID_ELSEWHERE = ("iterations", "verbose")
"""Another name of num_batches, and what is only printed."""

OWN = (
    *("all_reduce_spec", "workload", "dtype", "bytes", "tensors", "elements", "devices"),
    *("gradient_repacking", "agg_small_grads_max_bytes", "agg_small_grads_max_group"),
    *("wire_dtype", "allreduce_merge_scope", "variable_consistency"),
)
"""What makes a row another reduction, not the same one under other circumstances."""

_SMALL_GROUP = 10


_Process: TypeAlias = "tuple[AllReduceRecord, list[Reduction]]"


def measurements(
    *sides: Iterable[RunRecord | AllReduceRecord], patterns: tuple[str, ...] = ()
) -> list[list[Measurement]]:
    """What the processes of every side measured, in the order of their records.

    Rows that a failed process lacks, and a process of any side with the same flags has, are
    added as failed: it is them that it failed to measure.

    Args:
      *sides: records.
      patterns: of the flags that may differ, if no process of the very same has any row.
    """
    found: list[list[Measurement]] = []
    processes: list[list[_Process]] = []
    for side in sides:
        listed = tuple(side)
        found.append([one for one in listed if isinstance(one, RunRecord)])
        processes.append([(o, reductions(o)) for o in listed if not isinstance(o, RunRecord)])
    everything = list(chain.from_iterable(processes))
    failed = any(record.status == "failed" for record, _ in everything)
    alike = [_by_flags(everything, may) for may in ((), patterns)] if failed else []
    for measured, of_side in zip(found, processes, strict=True):
        for record, rows in of_side:
            measured += rows
            if record.status == "failed":
                known = (one[_flags_text(record, may)] for one, may in alike)
                measured += lost(record, rows, next(filter(None, known), {}))
    return found


def reductions(record: AllReduceRecord) -> list[Reduction]:
    """The rows of a measurement; nothing is reduced on one device, which is left out."""
    shared = _shared(record)
    in_turn = Counter((point.workload, point.devices) for point in record.rows)
    build_only = bool(record.config.get("build_only"))
    found: dict[str, Reduction] = {}
    for kind, points in ((BUILD if build_only else ALLREDUCE, record.points), (PEER, record.peers)):
        for point in points:
            if point.devices > 1:
                row = _row(kind, point, record, shared, in_turn[point.workload, point.devices])
                # One value per process, also of files that say a thing twice.
                found.setdefault(_text(row), row)
    return [*found.values(), *_copies(record, shared)]


def lost(
    record: AllReduceRecord, rows: Sequence[Reduction], alike: Mapping[str, Reduction]
) -> list[Reduction]:
    """What a failed process did not get to.

    Args:
      record: of the process.
      rows: that it has.
      alike: rows of processes with the same flags, by `_text`.

    Returns:
      Rows without values. If nothing tells which, and none of its own says what failed, one
      that stands for the process.
    """
    had = {_text(row) for row in rows}
    missing = [row for text, row in alike.items() if text not in had and row.kind != COPY]
    shared = _shared(record)
    if not missing and not any(row.error is not None for row in rows):
        asked = {name: record.config[name] for name in _OF_ROWS if name in record.config}
        config = {**shared["config"], **asked}
        return [Reduction(**{**shared, "config": config}, **_failed(record), kind=ALLREDUCE)]
    return [
        Reduction(
            **{**shared, "config": _config_of(record, shared["config"], row)},
            **_failed(record),
            kind=row.kind,
        )
        for row in missing
    ]


def _config_of(
    record: AllReduceRecord, flags: Mapping[str, Any], row: Reduction
) -> Mapping[str, Any]:
    """The configuration of a row, had this process measured it."""
    late = () if record.placement is not None else ("device", "num_gpus")
    return {**row.config, **{name: flags[name] for name in flags if name not in late}}


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, Any]:
    """Defaults of the flags that a row has."""
    from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS
    from cnnbench.records.codec import encode

    flags = {
        spec.name: encode(spec.default)
        for spec in ALLREDUCE_FLAGS
        if spec.name not in (*_OF_ROWS, *_SAID_ELSEWHERE)
    }
    return {
        **flags,
        "model": None,
        "gradient_repacking": 0,
        "agg_small_grads_max_bytes": 0,
        "agg_small_grads_max_group": _SMALL_GROUP,
        "wire_dtype": "same",
        "allreduce_merge_scope": 1,
        "variable_consistency": "strong",
    }


def label(kind: str, flags: Mapping[str, Any]) -> list[str]:
    """A short name of a row, in parts.

    Args:
      kind: any but RUN.
      flags: of its configuration.
    """
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
    from cnnbench.variable_mgr.aggregation.spec import Packing

    wire = flags["wire_dtype"]
    packing = Packing(
        compact_dtype=None if wire == "same" else wire,
        gradient_repacking=flags["gradient_repacking"],
        agg_small_grads_max_bytes=flags["agg_small_grads_max_bytes"],
        agg_small_grads_max_group=flags["agg_small_grads_max_group"],
        allreduce_merge_scope=flags["allreduce_merge_scope"],
        variable_consistency=flags["variable_consistency"],
    )
    return [] if packing == Packing() else [str(packing)]


def _shared(record: AllReduceRecord) -> dict[str, Any]:
    """What all rows of a process have in common."""
    config = {
        name: value
        for name, value in record.config.items()
        if name not in _OF_ROWS and name not in _SAID_ELSEWHERE
    }
    config["num_gpus"] = _most_devices(record)
    if record.placement is not None:
        config["device"] = record.placement.device
    return {
        "run_id": record.run_id,
        "started_at": record.started_at,
        "config": config,
        "explicit_flags": record.explicit_flags,
        "environment": record.environment,
        "facts": environment_facts(record.environment),
    }


def _most_devices(record: AllReduceRecord) -> Any:
    """Devices that the process made: its thread pools are for all of them."""
    if record.placement is not None:
        return len(record.placement.devices)
    asked = record.config.get("num_gpus")
    return max(asked) if isinstance(asked, list) and asked else asked


def _row(
    kind: str, point: Point, record: AllReduceRecord, shared: Mapping[str, Any], in_turn: int
) -> Reduction:
    packing = point.packing
    small = packing.agg_small_grads_max_bytes
    config = {
        **shared["config"],
        "model": point.workload if point.workload == record.config.get("model") else None,
        "all_reduce_spec": point.spec,
        "workload": point.workload,
        "dtype": point.dtype,
        "bytes": point.bytes,
        "tensors": point.tensors,
        "elements": point.elements,
        "devices": point.devices,
        "gradient_repacking": packing.gradient_repacking,
        "agg_small_grads_max_bytes": small,
        "agg_small_grads_max_group": packing.agg_small_grads_max_group if small else _SMALL_GROUP,
        "wire_dtype": packing.compact_dtype or "same",
        "allreduce_merge_scope": packing.allreduce_merge_scope,
        "variable_consistency": packing.variable_consistency,
    }
    error = _error(point)
    calls = record.config.get("num_batches")
    cut = record.status != "ok" and isinstance(calls, int) and 0 < len(point.seconds) < calls
    good = error is None
    return Reduction(
        **{
            **shared,
            "config": config,
            "facts": (*shared["facts"], ("rows_in_turn", str(in_turn))),
        },
        kind=kind,
        status="failed" if not good else "interrupted" if cut else "ok",
        error=error,
        seconds=point.median if good else None,
        bytes_per_sec=point.bus_bandwidth if good else None,
        build_seconds=point.build_seconds if good else None,
    )


def _copies(record: AllReduceRecord, shared: Mapping[str, Any]) -> list[Reduction]:
    """Copies by size; two workloads of as many bytes are copied alike."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for copy in record.copies:
        if copy.devices > 1 and copy.seconds:
            seconds.setdefault((copy.bytes, copy.devices), []).extend(copy.seconds)
    found = []
    for (size, devices), times in seconds.items():
        middle = median(times)
        config = {**shared["config"], "bytes": size, "devices": devices}
        found.append(
            Reduction(
                **{**shared, "config": config},
                kind=COPY,
                status="ok",
                error=None,
                seconds=middle,
                bytes_per_sec=size * devices / middle,
            )
        )
    return found


def _error(point: Point) -> ErrorInfo | None:
    if point.error is not None:
        kind, colon, message = point.error.partition(": ")
        if colon and kind.isidentifier():
            return ErrorInfo(type=kind, message=message)
        return ErrorInfo(type="Error", message=point.error)
    if point.wrong:
        message = f"{point.wrong} of {point.checked} elements are wrong"
        return ErrorInfo(type="WrongSums", message=message)
    return None


def _failed(record: AllReduceRecord) -> dict[str, Any]:
    return {"status": "failed", "error": record.error}


def _text(row: Reduction) -> str:
    """What a row is of."""
    return json.dumps([row.kind, *(row.config.get(name) for name in (*OWN, "model"))])


def _by_flags(
    processes: Iterable[_Process], may_differ: tuple[str, ...]
) -> tuple[dict[str, dict[str, Reduction]], tuple[str, ...]]:
    """The rows of processes by their flags, and which flags do not count."""
    found: dict[str, dict[str, Reduction]] = {}
    for record, rows in processes:
        known = found.setdefault(_flags_text(record, may_differ), {})
        known.update((_text(row), row) for row in rows)
    return found, may_differ


def _flags_text(record: AllReduceRecord, may_differ: tuple[str, ...]) -> str:
    """What processes that do the same have in common; files and the like do not count."""
    told = {
        name: value
        for name, value in record.config.items()
        if counts(name) and name not in _SAID_ELSEWHERE and not allowed(name, may_differ)
    }
    return json.dumps(told, sort_keys=True)
