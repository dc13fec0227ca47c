"""A prediction as a JSON document, schema 1, and the columns of its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from cnnbench.lab.predict.host import Host
from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.predict import FastestRange
from cnnbench.records.codec import Document, one_of


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """One spec on one number of devices; its fields are the columns of the table.

    Attributes:
      model: whose gradients are reduced.
      bytes: of the gradients of one device.
      gradients: their number.
      dtype: of the gradients.
      packing: of the gradients.
      parameters: "fitted", or the links.
      devices: how many.
      spec: the algorithms.
      allreduce_seconds: of the reduction; None if there is no prediction.
      compute_seconds: of the step without reduction, None if unknown.
      step_seconds, efficiency, images_per_sec: without overlap of computing and reducing.
      overlapped_step_seconds, overlapped_efficiency, overlapped_images_per_sec: bounds of any
        overlap.
      not_predicted: why there is no prediction.
    """

    model: str
    bytes: int
    gradients: int
    dtype: str
    packing: str
    parameters: str
    devices: int
    spec: str
    allreduce_seconds: float | None
    compute_seconds: float | None
    step_seconds: float | None
    efficiency: float | None
    images_per_sec: float | None
    overlapped_step_seconds: float | None
    overlapped_efficiency: float | None
    overlapped_images_per_sec: float | None
    not_predicted: str | None


COLUMNS = (*(one.name for one in fields(PredictionRow)), "schema")
"""The header of the table, always all of it in this order; unknown values are empty."""


@dataclass(frozen=True, kw_only=True)
class HostParameters(Host):
    """Parameters fitted to this machine."""

    kind: str = field(default="host", metadata=one_of(("host",)))


@dataclass(frozen=True, kw_only=True)
class NetworkParameters:
    """Parameters of links.

    Attributes:
      kind: "network".
      link: between the devices of a node, or between all devices.
      inter_link: between nodes; None where every device has its own link to all others.
      devices_per_node: with inter_link.
      launch: further seconds per reduction.
    """

    kind: str = field(default="network", metadata=one_of(("network",)))
    link: Link
    inter_link: Link | None
    devices_per_node: int
    launch: float


@dataclass(frozen=True, kw_only=True)
class FastestByDevices:
    """Which spec is fastest for which size of one tensor, on a number of devices."""

    devices: int
    ranges: tuple[FastestRange, ...]


@dataclass(frozen=True, kw_only=True)
class ResidualDocument:
    """A prediction against its measurement.

    Attributes:
      spec: the algorithms.
      packing: of the tensors.
      bytes, tensors, devices: what was reduced, on how many devices.
      measured_seconds, predicted_seconds: of the reduction.
      relative_error: share of the measured time; positive if too much was predicted.
    """

    spec: str
    packing: str
    bytes: int
    tensors: int
    devices: int
    measured_seconds: float
    predicted_seconds: float
    relative_error: float


@dataclass(frozen=True, kw_only=True)
class PredictionDocument(Document):
    """What ``cnnbench allreduce --predict`` predicted, schema 1.

    Attributes:
      model: whose gradients are reduced.
      parameters: of the cost model.
      rows: a spec on a number of devices each.
      fastest: for each number of devices.
      validation: residuals by what was held out.
    """

    kind: ClassVar[str] = "allreduce_prediction"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "fastest")

    model: str
    parameters: HostParameters | NetworkParameters
    rows: tuple[PredictionRow, ...]
    fastest: tuple[FastestByDevices, ...]
    validation: Mapping[str, tuple[ResidualDocument, ...]]
