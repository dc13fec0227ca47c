"""Predictions for one model: time of the reduction and of the step, fastest algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.workload import NotPredictedError, Tensor, TrainingStep, packing_text
from cnnbench.records.prediction import Prediction
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_SMALLEST, _DOUBLINGS = 1024, 20  # 1 KiB to 1 GiB
_STEPS_PER_DOUBLING = 4
# Chunks are whole lines, so times rise in steps; nearly equal ones would take turns.
_CLEARLY = 0.99
# Crossover sizes are found to this relative accuracy.
_ACCURACY = 1.02
_ITEMSIZE = 4


@dataclass(frozen=True)
class FastestRange:
    """Sizes for which one spec is the fastest.

    Attributes:
      spec: the fastest.
      up_to: the size in bytes from which on another one is; None for the last range.
    """

    spec: str
    up_to: int | None


def predict(
    model: Interconnect,
    step: TrainingStep,
    specs: Sequence[AllReduceSpec],
    device_counts: Sequence[int],
) -> list[Prediction]:
    """All specs on all numbers of devices, device counts outermost."""
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
        tensor = Tensor(max(1, size // _ITEMSIZE), _ITEMSIZE)
        return _fastest_for(model, specs, devices, tensor, known)

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


def _fastest_for(
    model: Interconnect,
    specs: Sequence[AllReduceSpec],
    devices: int,
    tensor: Tensor,
    known: str | None,
) -> str | None:
    """The fastest spec; `known` if no other is clearly faster."""
    times: dict[str, float] = {}
    for spec in specs:
        try:
            times[str(spec)] = model.seconds(spec, (tensor,), devices, Packing())
        except NotPredictedError:
            continue
    if not times:
        return None
    best = min(times, key=lambda name: times[name])
    if known in times and times[best] > _CLEARLY * times[known]:
        return known
    return best


def _predict(
    model: Interconnect, step: TrainingStep, spec: AllReduceSpec, devices: int
) -> Prediction:
    seconds: float | None = None
    reason: str | None = None
    try:
        seconds = model.seconds(spec, step.tensors, devices, step.packing)
    except NotPredictedError as error:
        reason = str(error)
    return prediction(model.name, step, spec, devices, seconds, reason)


def prediction(
    parameters: str,
    step: TrainingStep,
    spec: AllReduceSpec,
    devices: int,
    seconds: float | None,
    not_predicted: str | None = None,
) -> Prediction:
    """The step that follows from a time of the reduction.

    A step is computing followed by reducing; the longer of the two bounds any overlap.
    """
    compute = step.step_seconds
    whole = bound = None
    if compute is not None and seconds is not None:
        whole, bound = compute + seconds, max(compute, seconds)
    images = step.batch_size * devices
    return Prediction(
        model=step.model,
        bytes=step.bytes,
        gradients=len(step.tensors),
        dtype=step.dtype,
        packing=packing_text(step.packing),
        parameters=parameters,
        devices=devices,
        spec=str(spec),
        allreduce_seconds=seconds,
        compute_seconds=compute,
        step_seconds=whole,
        efficiency=_ratio(compute, whole),
        images_per_sec=_ratio(images, whole),
        overlapped_step_seconds=bound,
        overlapped_efficiency=_ratio(compute, bound),
        overlapped_images_per_sec=_ratio(images, bound),
        not_predicted=not_predicted,
    )


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
