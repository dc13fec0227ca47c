"""Reads the table of --result_csv. Each row is a run of cnnbench, and keeps its `run_id`."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Iterator, Mapping

from cnnbench.base.values import parse_labels
from cnnbench.records.metric import ALL
from cnnbench.records.readers import ResultFile, parse_json_object, register_reader
from cnnbench.records.run import Batch, ErrorInfo, Placement, RunRecord
from cnnbench.records.subject import Subject

_NAMES = {
    "final_loss": "last_loss",
    "top_1": "eval_top_1",
    "top_5": "eval_top_5",
    "accuracy": "eval_top_1",
}
"""Columns of metrics, by the name of the metric if it is another."""

_COUNTS = ("logical_cpus", "usable_cpus")
_TEXTS = """
    hostname platform cpu_model gpu_driver python_version tensorflow_version
    cnnbench_version git_commit
""".split()
_NEEDED = ("run_id", "started_at", "status", "flags")


@register_reader("result_csv", rb"\A(?:\xef\xbb\xbf)?run_id,started_at,status,model,")
def read(file: ResultFile) -> Iterator[RunRecord]:
    """Creates the record of each row."""
    columns: list[str] = []
    for number, line in file.lines:
        try:
            cells = next(csv.reader([line], strict=True), [])
        except csv.Error as error:
            file.skip(number, line, f"is not a complete row: {error}")
            continue
        if not columns:
            columns = cells
            missing = [name for name in _NEEDED if name not in columns]
            if missing:
                return file.skip(0, file.path, f"has no column {missing[0]}")
        elif cells and len(cells) != len(columns):
            file.skip(number, line, "is not a complete row")
        elif cells:
            row = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
            # Later rows must not change the records of the rows before them.
            part = ResultFile(file.path, line.encode(), file.labels)
            try:
                yield part.own_run(_run(row), values=_values(row))
            except (KeyError, TypeError, ValueError) as error:
                file.skip(number, line, f"is not a row of --result_csv: {error}")
    return None


def _run(row: Mapping[str, str]) -> RunRecord:
    flags = parse_json_object(row["flags"])
    if flags is None:
        raise ValueError(f"flags are {row['flags']!r}")
    kind, _, message = row.get("error", "").partition(": ")
    labels = row.get("result_label", "")
    environment: dict[str, object] = {name: row[name] for name in _TEXTS if name in row}
    environment |= {name: int(row[name]) for name in _COUNTS if name in row}
    if "gpu_names" in row:
        environment["gpu_names"] = row["gpu_names"].split(";")
    return RunRecord(
        run_id=row["run_id"],
        started_at=row["started_at"],
        status=row["status"],
        error=ErrorInfo(type=kind, message=message) if kind else None,
        command=tuple(shlex.split(row.get("command", ""))),
        config=flags | ({"result_label": labels} if labels else {}),
        batch=_batch(row),
        placement=_placement(row),
        environment=environment,
        subject=_subject(row).with_labels(parse_labels(labels)),
    )


def _batch(row: Mapping[str, str]) -> Batch | None:
    if "batch_global" not in row:
        return None
    asked = row.get("batch_requested_per_device")
    return Batch(
        per_device=int(row["batch_per_device"]),
        global_=int(row["batch_global"]),
        requested_per_device=None if asked is None else int(asked),
    )


def _placement(row: Mapping[str, str]) -> Placement | None:
    if "num_towers" not in row:
        return None
    return Placement(
        device=row["device"],
        devices=(),
        num_towers=int(row["num_towers"]),
        num_workers=int(row["num_workers"]),
        variable_update=row["variable_update"],
        all_reduce=tuple(filter(None, row.get("all_reduce", "").split(";"))),
    )


def _subject(row: Mapping[str, str]) -> Subject:
    dirty = row.get("subject_dirty")
    return Subject(
        repository=row.get("subject_repository"),
        revision=row.get("subject_revision"),
        dirty=None if dirty is None else dirty == "true",
        changes=row.get("subject_changes"),
        side=row.get("subject_side"),
    )


def _values(row: Mapping[str, str]) -> dict[str, float]:
    """Returns the values of all metrics that the row contains, by name of the metric."""
    values = {}
    for name in ALL:
        text = row.get(_NAMES.get(name, name))
        try:
            value = math.nan if text is None else float(text)
        except ValueError:  # A text, as in peak_flops_source.
            continue
        if math.isfinite(value):
            values[name] = value
    return values
