"""Predicted speeds on other numbers of devices, as ``cnnbench allreduce --predict`` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cnnbench.records.codec import Document


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One spec on one number of devices; its fields are the columns of the table.

    Attributes:
      model: the model whose gradients are reduced.
      bytes: bytes of the gradients of one device.
      gradients: number of gradients.
      dtype: dtype of the gradients.
      packing: packing of the gradients.
      parameters: names of the links; "fitted" in documents of versions that had --points.
      devices: number of devices.
      spec: all-reduce spec.
      allreduce_seconds: seconds of the reduction; None without a prediction.
      compute_seconds: seconds of the step without reduction; None if unknown.
      step_seconds, efficiency, images_per_sec: figures of a step in which computing and reducing
        do not overlap; None if unknown.
      overlapped_step_seconds, overlapped_efficiency, overlapped_images_per_sec: the same for full
        overlap.
      not_predicted: why there is no prediction; None if there is one.
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


@dataclass(frozen=True, kw_only=True)
class Predictions(Document):
    """The part of a prediction that reports read, schema 1.

    Attributes:
      model: the model whose gradients are reduced.
      rows: predictions, for each spec on each number of devices.
    """

    kind: ClassVar[str] = "allreduce_prediction"
    schema: ClassVar[int] = 1

    model: str
    rows: tuple[Prediction, ...]
