"""--result_json and --result_csv of `cnnbench allreduce`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.allreduce import SCHEMA, AllReduceRecord, Point
from cnnbench.records.csv import ENVIRONMENT, CsvTable
from cnnbench.records.files import resolve_output, write_whole

_JSON, _CSV = "result_json", "result_csv"

_PACKING = (
    "gradient_repacking",
    "agg_small_grads_max_bytes",
    "agg_small_grads_max_group",
    "compact_dtype",
    "allreduce_merge_scope",
    "variable_consistency",
)

COLUMNS = (
    "run_id",
    "started_at",
    "workload",
    "bytes",
    "elements",
    "tensors",
    "dtype",
    "device",
    "devices",
    "spec",
    "peer",
    *_PACKING,
    "calls",
    "iters_per_step",
    "median_seconds",
    "p99_seconds",
    "algorithm_bytes_per_sec",
    "bus_bytes_per_sec",
    "share_of_copy_bound",
    "wrong",
    "checked",
    "trace_seconds",
    "build_seconds",
    "operations",
    *ENVIRONMENT,
    "error",
    "command",
    "schema",
)
"""The header, always all of it in this order; unknown values are empty cells."""

_TABLE = CsvTable(_CSV, COLUMNS, SCHEMA)


class Results:
    """The files of one run, brought up to date after every size.

    Args:
      json_path: document of the whole run, or None.
      csv_path: table to append to, or None.
    """

    def __init__(self, json_path: str | None, csv_path: str | None) -> None:
        self._json = json_path
        self._csv = csv_path

    def prepare(self) -> None:
        """Proves that the files can be written.

        Raises:
          FlagError: names the flag of a path that cannot.
        """
        if self._json is not None:
            resolve_output(_JSON, self._json)
        if self._csv is not None:
            _TABLE.prepare(self._csv)
            if self._json and os.path.realpath(self._json) == os.path.realpath(self._csv):
                raise FlagError(_CSV, self._csv, f"is the file of --{_JSON} too")

    def update(self, record: AllReduceRecord, new: Sequence[Point] = ()) -> None:
        """Writes the document anew and appends rows for the new points.

        Raises:
          BenchmarkError: names the files that could not be written.
        """
        failures = []
        writers: list[tuple[str | None, Callable[[str], None]]] = [
            (self._json, lambda path: _write_json(path, record)),
            (self._csv, lambda path: _TABLE.append(path, [row(record, p) for p in new])),
        ]
        for path, write in writers:
            if path is not None:
                try:
                    write(path)
                except OSError as error:
                    failures.append(f"{path}: {error.strerror or error}")
        if failures:
            raise BenchmarkError(f"the results could not be written: {'; '.join(failures)}")


def row(record: AllReduceRecord, point: Point) -> dict[str, object]:
    """The values of a point by column."""
    return {
        "run_id": record.run_id,
        "started_at": record.started_at,
        "workload": point.workload,
        "bytes": point.bytes,
        "elements": point.elements,
        "tensors": point.tensors,
        "dtype": point.dtype,
        "device": None if record.placement is None else record.placement.device,
        "devices": point.devices,
        "spec": point.spec,
        "peer": point in record.peers,
        **{name: getattr(point.packing, name) for name in _PACKING},
        "calls": len(point.seconds),
        "iters_per_step": record.config.get("iters_per_step"),
        "median_seconds": point.median,
        "p99_seconds": point.p99,
        "algorithm_bytes_per_sec": point.algorithm_bandwidth,
        "bus_bytes_per_sec": point.bus_bandwidth,
        "share_of_copy_bound": record.share_of_bound(point),
        "wrong": point.wrong,
        "checked": point.checked,
        "trace_seconds": point.trace_seconds,
        "build_seconds": point.build_seconds,
        "operations": point.operations,
        **{name: record.environment.get(name) for name in ENVIRONMENT},
        "error": point.error,
        "command": shlex.join(record.command),
    }


def _write_json(path: str, record: AllReduceRecord) -> None:
    write_whole(resolve_output(_JSON, path), record.to_json().encode("ascii"))
