"""--result_json and --result_csv of predictions: plain rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cnnbench.predict.crossovers import Range
from cnnbench.predict.host import Host
from cnnbench.predict.network import Network
from cnnbench.predict.predict import Prediction, Workload
from cnnbench.predict.validate import Error
from cnnbench.records.csv import CsvTable
from cnnbench.records.files import resolve_output, write_whole

SCHEMA = 1
KIND = "allreduce_prediction"

COLUMNS = (
    "model",
    "bytes",
    "gradients",
    "dtype",
    "packing",
    "parameters",
    "devices",
    "spec",
    "allreduce_seconds",
    "compute_seconds",
    "step_seconds",
    "efficiency",
    "images_per_sec",
    "overlapped_step_seconds",
    "overlapped_efficiency",
    "overlapped_images_per_sec",
    "not_predicted",
    "schema",
)
"""The header of the table, always all of it in this order; unknown values are empty."""

_TABLE = CsvTable("result_csv", COLUMNS, SCHEMA)


def prepare(json_path: str | None, csv_path: str | None) -> None:
    """Proves that the files can be written.

    Raises:
      FlagError: names the flag of a path that cannot.
    """
    if json_path is not None:
        resolve_output("result_json", json_path)
    if csv_path is not None:
        _TABLE.prepare(csv_path)


def write_csv(
    path: str, model: Host | Network, workload: Workload, predictions: Sequence[Prediction]
) -> None:
    """Appends a row per prediction.

    Raises:
      FlagError: another table.
      OSError: such as a full disk; the file is as it was.
    """
    _TABLE.append(path, [_row(model, workload, prediction) for prediction in predictions])


def write_json(
    path: str,
    model: Host | Network,
    workload: Workload,
    predictions: Sequence[Prediction],
    by_devices: Mapping[int, Sequence[Range]],
    validation: Mapping[str, Sequence[Error]],
) -> None:
    """Writes all predictions, the parameters and the errors of held-out points.

    Raises:
      OSError: such as a full disk; an older file is unchanged.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": KIND,
        "model": workload.name,
        "parameters": _parameters(model),
        "rows": [_row(model, workload, prediction) for prediction in predictions],
        "fastest": [
            {"devices": devices, "ranges": [asdict(part) for part in ranges]}
            for devices, ranges in by_devices.items()
        ],
        "validation": {name: [_error(e) for e in errors] for name, errors in validation.items()},
    }
    text = "{\n" + ",\n".join(f"{json.dumps(k)}: {_lines(v)}" for k, v in document.items())
    write_whole(resolve_output("result_json", path), f"{text}\n}}\n".encode("ascii"))


def _row(model: Host | Network, workload: Workload, prediction: Prediction) -> dict[str, Any]:
    return {
        "model": workload.name,
        "bytes": workload.bytes,
        "gradients": len(workload.tensors),
        "dtype": workload.dtype,
        "packing": str(workload.packing),
        "parameters": "fitted" if isinstance(model, Host) else _link_names(model),
        "devices": prediction.devices,
        "spec": prediction.spec,
        "allreduce_seconds": prediction.seconds,
        "compute_seconds": prediction.compute_seconds,
        "step_seconds": prediction.step_seconds,
        "efficiency": prediction.efficiency,
        "images_per_sec": prediction.images_per_sec,
        "overlapped_step_seconds": prediction.overlapped_step_seconds,
        "overlapped_efficiency": prediction.overlapped_efficiency,
        "overlapped_images_per_sec": prediction.overlapped_images_per_sec,
        "not_predicted": prediction.reason,
    }


def _link_names(network: Network) -> str:
    if network.far_link is None:
        return network.link.name
    return f"{network.per_node} x {network.link.name} + {network.far_link.name}"


def _parameters(model: Host | Network) -> dict[str, Any]:
    if isinstance(model, Host):
        return {
            "kind": "host",
            "rates": dict(model.rates),
            "cache_bytes": model.cache_bytes,
            "group_size": model.group_size,
        }
    return {
        "kind": "network",
        "link": asdict(model.link),
        "inter_link": None if model.far_link is None else asdict(model.far_link),
        "devices_per_node": model.per_node,
        "launch": model.launch,
    }


def _error(error: Error) -> dict[str, Any]:
    point = error.point
    return {
        "spec": str(point.spec),
        "packing": str(point.packing),
        "bytes": point.bytes,
        "tensors": len(point.tensors),
        "devices": point.devices,
        "measured_seconds": point.seconds,
        "predicted_seconds": error.predicted,
        "relative_error": error.relative,
    }


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
    return json.dumps(value, allow_nan=False)
