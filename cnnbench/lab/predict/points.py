"""Measured all-reduce times, from files that `cnnbench allreduce --result_json` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.base.reading import read_file
from cnnbench.errors import FlagError
from cnnbench.flags.groups.allreduce import model_gradients
from cnnbench.lab.predict.workload import Tensor, gradient_tensors, packing_text, total_bytes
from cnnbench.records.allreduce import AllReduceRecord, Point
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.sizes import DTYPE_BYTES

_FLAG = "points"


@dataclass(frozen=True)
class MeasuredReduction:
    """One row of a record, as the cost model needs it.

    Attributes:
      spec: the algorithms.
      packing: of the tensors.
      tensors: before packing.
      devices: how many reduced.
      seconds: median of the measured times.
      kind: "cpu" where logical devices shared the cores of one machine, else "gpu".
      group_size: devices per group of two-level algorithms, 0 for one group.
      unusual: why no formula covers it, although its algorithm has one; None if one does.
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
        return total_bytes(self.tensors)

    def __str__(self) -> str:
        packed = f", {packing_text(self.packing)}" if self.packing.joins else ""
        return (
            f"{self.spec}: {self.bytes} bytes in {len(self.tensors)} on {self.devices} "
            f"devices{packed}"
        )


def read_points(paths: Sequence[str]) -> tuple[MeasuredReduction, ...]:
    """The correct measurements on two or more devices.

    Args:
      paths: files of records.

    Raises:
      FlagError: a file that cannot be read, is no record, or holds no usable point; or
        files from both CPU and GPU devices.
    """
    points: list[MeasuredReduction] = []
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


def _read(path: str) -> list[MeasuredReduction]:
    try:
        record = AllReduceRecord.from_json(read_file(path))
        kind = "cpu" if record.placement is None else record.placement.device
        return [
            _measured(point, record.config, kind, point.median)
            for point in record.points
            if point.devices > 1 and point.median is not None and not point.failed
        ]
    except OSError as error:
        raise FlagError(_FLAG, path, f"cannot be read: {error.strerror or error}") from error
    except (KeyError, ValueError, RecursionError) as error:
        raise FlagError(
            _FLAG, path, f"is no file of cnnbench allreduce --result_json: {error}"
        ) from error


def _measured(
    point: Point, config: Mapping[str, Any], kind: str, seconds: float
) -> MeasuredReduction:
    return MeasuredReduction(
        spec=parse_all_reduce_spec(point.spec),
        packing=point.packing,
        tensors=_tensors(point, config),
        devices=point.devices,
        seconds=seconds,
        kind=kind,
        group_size=int(config.get("all_reduce_group_size") or 0),
        unusual=_unusual(point.packing, config),
    )


def _unusual(packing: Packing, config: Mapping[str, Any]) -> str | None:
    if packing.relaxed:
        return "measured with --variable_consistency=relaxed"
    if config.get("all_reduce_share_memory") is False:
        return "measured with --noall_reduce_share_memory, which copies what need not be"
    if config.get("local_parameter_device") == "cpu":
        return "measured with --local_parameter_device=cpu"
    return None


def _tensors(point: Point, config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The model's gradients if those were reduced, else tensors of one size."""
    itemsize = DTYPE_BYTES[point.dtype]
    if config.get("model"):
        _, shapes = model_gradients(str(config["model"]), config.get("data_name"))
        found = gradient_tensors(shapes, itemsize)
        if (len(found), total_bytes(found)) == (point.tensors, point.elements * itemsize):
            return found
    each, rest = divmod(point.elements, point.tensors)
    return tuple(Tensor(each + (index < rest), itemsize) for index in range(point.tensors))
