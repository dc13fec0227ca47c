"""Measured all-reduce times, as `cnnbench allreduce --result_json` writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.predict.packing import Packing, item_bytes
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec

_FLAG = "points"
_KIND = "allreduce"
_SCHEMA = 1


@dataclass(frozen=True)
class Point:
    """One measured reduction.

    Attributes:
      spec: the algorithms.
      packing: how the tensors were packed.
      tensors: before packing.
      devices: how many reduced.
      seconds: median of the measured times.
      group_size: devices per group of two-level algorithms, 0 for one group.
      unusual: why no formula covers it, although its algorithm has one; None if one does.
      kind: "cpu" where logical devices shared the cores of one machine, else "gpu".
    """

    spec: AllReduceSpec
    packing: Packing
    tensors: tuple[Tensor, ...]
    devices: int
    seconds: float
    kind: str
    group_size: int = 0
    unusual: str | None = None

    @property
    def bytes(self) -> int:
        """Of all tensors of one device."""
        return sum(tensor.bytes for tensor in self.tensors)

    def __str__(self) -> str:
        packed = f", {self.packing}" if self.packing.packs else ""
        return (
            f"{self.spec}: {self.bytes} bytes in {len(self.tensors)} on {self.devices} "
            f"devices{packed}"
        )


def read_points(paths: Sequence[str]) -> tuple[Point, ...]:
    """The points of measurement files; those with an error or wrong sums are left out.

    Points of one device and points without time are left out too: nothing was reduced.

    Args:
      paths: files.

    Raises:
      FlagError: a file that cannot be read, is no measurement, or holds no usable point;
        or files from both CPU and GPU devices.
    """
    points: list[Point] = []
    for path in paths:
        found = _read(path)
        if not found:
            raise FlagError(_FLAG, path, "holds no correct measurement on two or more devices")
        points += found
    kinds = sorted({point.kind for point in points})
    if len(kinds) > 1:
        raise FlagError(
            _FLAG, ",".join(paths), f"mixes measurements on {' and '.join(kinds)}; give one kind"
        )
    return tuple(points)


def _read(path: str) -> list[Point]:
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise FlagError(_FLAG, path, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise FlagError(_FLAG, path, f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise FlagError(_FLAG, path, "is not a file of cnnbench allreduce --result_json")
    if document.get("schema") != _SCHEMA:
        raise FlagError(
            _FLAG, path, f"has schema {document.get('schema')!r}, this version reads {_SCHEMA}"
        )
    try:
        kind = str(document["placement"]["device"])
        config = document.get("config") or {}
        return [_point(point, config, kind) for point in document["points"] if _is_usable(point)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FlagError(_FLAG, path, f"has a malformed point: {reason}") from error


def _is_usable(point: Mapping[str, Any]) -> bool:
    """Not of one device, timed, and right: otherwise the time means nothing."""
    failed = bool(point.get("error")) or bool(point.get("wrong"))
    return point["devices"] > 1 and bool(point["seconds"]) and not failed


def _point(fields: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> Point:
    seconds = median(fields["seconds"])
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds {fields['seconds']}")
    packing = fields.get("packing") or {}
    return Point(
        spec=parse_all_reduce_spec(fields["spec"]),
        packing=Packing.of(packing),
        tensors=_tensors(fields, config),
        devices=int(fields["devices"]),
        seconds=seconds,
        kind=kind,
        group_size=int(config.get("all_reduce_group_size") or 0),
        unusual=_unusual(packing, config),
    )


def _unusual(packing: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    if packing.get("variable_consistency") == "relaxed":
        return "measured with --variable_consistency=relaxed"
    if config.get("all_reduce_share_memory") is False:
        return "measured with --noall_reduce_share_memory, which copies what need not be"
    if config.get("local_parameter_device") == "cpu":
        return "measured with --local_parameter_device=cpu"
    return None


def _tensors(fields: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The model's gradients if that is what was reduced, else tensors of one size."""
    itemsize = item_bytes(fields["dtype"])
    elements, count = int(fields["elements"]), int(fields["tensors"])
    if config.get("model"):
        from cnnbench.predict.gradients import model_gradients

        found = model_gradients(str(config["model"]), config.get("data_name"), itemsize)
        if len(found) == count and sum(tensor.elements for tensor in found) == elements:
            return found
    each, rest = divmod(elements, count)
    return tuple(Tensor(each + (index < rest), itemsize) for index in range(count))


def median(values: Iterable[float]) -> float:
    """Median of a few values.

    Raises:
      ValueError: there are none.
    """
    ordered = sorted(float(value) for value in values)
    if not ordered:
        raise ValueError("no values")
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
