"""Predictions for one model: time of the reduction, of the step, efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.predict.fit import CostModel
from cnnbench.predict.host import Host
from cnnbench.predict.network import NotPredictedError
from cnnbench.predict.packing import Packing
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec


@dataclass(frozen=True)
class Workload:
    """What every device computes and sends in a step.

    Attributes:
      name: of the model.
      tensors: its gradients, before packing.
      packing: of the gradients.
      dtype: in which they are sent.
      step_seconds: of a step on one device, None if unknown.
      batch_size: images per device and step.
    """

    name: str
    tensors: tuple[Tensor, ...]
    packing: Packing
    dtype: str
    step_seconds: float | None
    batch_size: int

    @property
    def bytes(self) -> int:
        """Of the gradients of one device."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True)
class Prediction:
    """One spec on one number of devices.

    Attributes:
      devices: how many.
      spec: the algorithms.
      seconds: of the reduction; None if there is no prediction.
      reason: why there is none.
      compute_seconds: of the step without reduction, None if unknown.
      batch_size: images per device and step.
    """

    devices: int
    spec: str
    seconds: float | None
    reason: str | None
    compute_seconds: float | None
    batch_size: int

    @property
    def step_seconds(self) -> float | None:
        """Step whose reduction begins when the gradients are complete."""
        if self.compute_seconds is None or self.seconds is None:
            return None
        return self.compute_seconds + self.seconds

    @property
    def overlapped_step_seconds(self) -> float | None:
        """Bound of any overlap: the longer of computing and reducing."""
        if self.compute_seconds is None or self.seconds is None:
            return None
        return max(self.compute_seconds, self.seconds)

    @property
    def efficiency(self) -> float | None:
        """Computing time over step time, without overlap."""
        return _ratio(self.compute_seconds, self.step_seconds)

    @property
    def overlapped_efficiency(self) -> float | None:
        """Bound of the efficiency with any overlap."""
        return _ratio(self.compute_seconds, self.overlapped_step_seconds)

    @property
    def images_per_sec(self) -> float | None:
        """Of all devices, without overlap."""
        return _ratio(self.batch_size * self.devices, self.step_seconds)

    @property
    def overlapped_images_per_sec(self) -> float | None:
        """Bound of the images per second with any overlap."""
        return _ratio(self.batch_size * self.devices, self.overlapped_step_seconds)


def predict(
    model: CostModel,
    workload: Workload,
    specs: Sequence[AllReduceSpec],
    device_counts: Sequence[int],
) -> list[Prediction]:
    """All specs on all numbers of devices, device counts outermost.

    On a machine that its devices share, the computation of n devices takes n times as long
    as that of one.
    """
    return [
        _predict_one(model, workload, spec, devices) for devices in device_counts for spec in specs
    ]


def best(predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    """The fastest prediction for each number of devices, the first of equals."""
    found: dict[int, Prediction] = {}
    for prediction in predictions:
        if prediction.seconds is None:
            continue
        known = found.get(prediction.devices)
        if known is None or known.seconds is None or prediction.seconds < known.seconds:
            found[prediction.devices] = prediction
    return found


def _predict_one(
    model: CostModel, workload: Workload, spec: AllReduceSpec, devices: int
) -> Prediction:
    seconds: float | None = None
    reason: str | None = None
    try:
        seconds = model.seconds(spec, workload.tensors, devices, workload.packing)
    except NotPredictedError as error:
        reason = str(error)
    compute = workload.step_seconds
    if compute is not None and isinstance(model, Host):
        compute *= devices
    return Prediction(devices, str(spec), seconds, reason, compute, workload.batch_size)


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
