"""A prediction as a JSON document, schema 1, and the columns of its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.predict import FastestRange
from cnnbench.records.codec import one_of
from cnnbench.records.prediction import Prediction, Predictions

COLUMNS = (*(one.name for one in fields(Prediction)), "schema")
"""The header of the table, always all of it in this order; unknown values are empty."""


@dataclass(frozen=True, kw_only=True)
class FastestByDevices:
    """Which spec is fastest for which size of one tensor, on a number of devices."""

    devices: int
    ranges: tuple[FastestRange, ...]


@dataclass(frozen=True, kw_only=True)
class HostParameters:
    """Parameters fitted to measurements on CPUs, in documents of versions that had --points.

    Attributes:
      rates: seconds per unit of work.
      cache_bytes: how much of the values and sums of all devices stays in caches.
      group_size: devices per group of two-level algorithms; 0 for one group of all.
      kind: "host".
    """

    rates: Mapping[str, float]
    cache_bytes: float
    group_size: int
    kind: str = field(metadata=one_of(("host",)))


@dataclass(frozen=True, kw_only=True)
class ResidualDocument:
    """A prediction against its measurement, in documents of versions that had --points.

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
class PredictionDocument(Predictions):
    """What ``cnnbench allreduce --predict`` predicted, schema 1.

    Attributes:
      parameters: of the cost model.
      fastest: for each number of devices.
      validation: residuals by what was held out; empty since parameters are no longer fitted.
    """

    item_lines: ClassVar[tuple[str, ...]] = ("rows", "fastest")

    parameters: HostParameters | Interconnect
    fastest: tuple[FastestByDevices, ...]
    validation: Mapping[str, tuple[ResidualDocument, ...]] = field(default_factory=dict)
