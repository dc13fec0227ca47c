"""Predictions for one model: time of the reduction and of the step, fastest algorithms."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.workload import NotPredictedError, TrainingStep, packing_text
from cnnbench.records.prediction import Prediction, Predictions
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.cost import Tensor
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_SMALLEST, _DOUBLINGS = 1024, 20  # 1 KiB to 1 GiB
_STEPS_PER_DOUBLING = 4
# Chunks are whole lines, so times rise in steps; nearly equal ones would take turns.
_CLEARLY = 0.99
# Crossover sizes are found to this relative accuracy.
_ACCURACY = 1.02
_ITEMSIZE = 4

COLUMNS = (*(one.name for one in fields(Prediction)), "schema")
"""The header of the table, always all of it in this order; unknown values are empty."""


@dataclass(frozen=True)
class FastestRange:
    """Sizes for which one spec is the fastest.

    Attributes:
      spec: the fastest spec.
      up_to: size in bytes from which another spec is faster; None for the last range.
    """

    spec: str
    up_to: int | None


@dataclass(frozen=True, kw_only=True)
class FastestByDevices:
    """The fastest specs on one number of devices, by size of a single tensor.

    Attributes:
      devices: number of devices.
      ranges: ranges of sizes, ascending.
    """

    devices: int
    ranges: tuple[FastestRange, ...]


@dataclass(frozen=True, kw_only=True)
class PredictionDocument(Predictions):
    """Result of ``cnnbench allreduce --predict``, schema 1.

    Attributes:
      parameters: links of the cost model.
      fastest: fastest specs for each number of devices.
      validation: empty; parameters are not fitted to measurements.
    """

    item_lines: ClassVar[tuple[str, ...]] = ("rows", "fastest")

    parameters: Interconnect
    fastest: tuple[FastestByDevices, ...]
    validation: Mapping[str, float] = field(default_factory=dict)


def predict(
    model: Interconnect,
    step: TrainingStep,
    specs: Sequence[AllReduceSpec],
    device_counts: Sequence[int],
) -> list[Prediction]:
    """Predictions for all specs on all numbers of devices, ordered by number of devices."""
    return [_predict(model, step, spec, devices) for devices in device_counts for spec in specs]


def fastest(predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    """The fastest prediction for each number of devices, the first of equals."""
    found: dict[int, list[tuple[float, Prediction]]] = {}
    for one in predictions:
        if one.allreduce_seconds is not None:
            found.setdefault(one.devices, []).append((one.allreduce_seconds, one))
    return {n: min(timed, key=lambda pair: pair[0])[1] for n, timed in found.items()}


def fastest_by_size(
    model: Interconnect, specs: Sequence[AllReduceSpec], devices: int
) -> tuple[FastestRange, ...]:
    """The fastest spec for one float32 tensor of 1 KiB to 1 GiB, by ascending ranges of its size.

    Of equals, the first wins. A spec counts as the fastest until another one is faster by 1 %.
    Empty if no spec can be predicted.
    """

    def winner(size: int, known: str | None) -> str | None:
        """The fastest spec; `known` if no other is clearly faster."""
        tensor = Tensor(max(1, size // _ITEMSIZE), _ITEMSIZE)
        times: dict[str, float] = {}
        for spec in specs:
            with contextlib.suppress(NotPredictedError):
                times[str(spec)] = model.seconds(spec, (tensor,), devices, Packing())
        best = min(times, key=times.__getitem__, default=None)
        if best is not None and known in times and times[best] > _CLEARLY * times[known]:
            return known
        return best

    spec, low = winner(_SMALLEST, None), _SMALLEST
    if spec is None:
        return ()
    ranges: list[FastestRange] = []
    for step in range(1, _DOUBLINGS * _STEPS_PER_DOUBLING + 1):
        size = round(_SMALLEST * 2 ** (step / _STEPS_PER_DOUBLING))
        following = winner(size, spec)
        if following is not None and following != spec:
            high = size
            while high > low * _ACCURACY and high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if winner(middle, spec) == spec else (low, middle)
            ranges.append(FastestRange(spec, high))
            spec = following
        low = size
    return (*ranges, FastestRange(spec, None))


def _predict(
    model: Interconnect, step: TrainingStep, spec: AllReduceSpec, devices: int
) -> Prediction:
    """The step that follows from the time of the reduction.

    A step is computing followed by reducing; with full overlap it is the longer of the two.
    """
    seconds: float | None = None
    not_predicted: str | None = None
    try:
        seconds = model.seconds(spec, step.tensors, devices, step.packing)
    except NotPredictedError as error:
        not_predicted = str(error)
    compute = step.step_seconds
    whole = overlapped = None
    if compute is not None and seconds is not None:
        whole, overlapped = compute + seconds, max(compute, seconds)
    images = step.batch_size * devices
    return Prediction(
        model=step.model,
        bytes=step.bytes,
        gradients=len(step.tensors),
        dtype=step.dtype,
        packing=packing_text(step.packing),
        parameters=model.name,
        devices=devices,
        spec=str(spec),
        allreduce_seconds=seconds,
        compute_seconds=compute,
        step_seconds=whole,
        efficiency=_ratio(compute, whole),
        images_per_sec=_ratio(images, whole),
        overlapped_step_seconds=overlapped,
        overlapped_efficiency=_ratio(compute, overlapped),
        overlapped_images_per_sec=_ratio(images, overlapped),
        not_predicted=not_predicted,
    )


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
