"""Predictions for one model: time of the reduction and of the step, fastest algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.lab.predict.fit import CostModel
from cnnbench.lab.predict.host import Host
from cnnbench.lab.predict.workload import NotPredictedError, Tensor, TrainingStep
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
class Prediction:
    """One spec on one number of devices; fields and properties are columns of the files.

    Attributes:
      devices: how many.
      spec: the algorithms.
      allreduce_seconds: of the reduction; None if there is no prediction.
      not_predicted: why there is none.
      compute_seconds: of the step without reduction, None if unknown.
      batch_size: images per device and step.
    """

    devices: int
    spec: str
    allreduce_seconds: float | None
    not_predicted: str | None
    compute_seconds: float | None
    batch_size: int

    @property
    def step_seconds(self) -> float | None:
        """Step whose reduction begins when the gradients are complete."""
        return self._step(sum)

    @property
    def overlapped_step_seconds(self) -> float | None:
        """Bound of any overlap: the longer of computing and reducing."""
        return self._step(max)

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

    def _step(self, together: Callable[[tuple[float, float]], float]) -> float | None:
        if self.compute_seconds is None or self.allreduce_seconds is None:
            return None
        return together((self.compute_seconds, self.allreduce_seconds))


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
    model: CostModel,
    step: TrainingStep,
    specs: Sequence[AllReduceSpec],
    device_counts: Sequence[int],
) -> list[Prediction]:
    """All specs on all numbers of devices, device counts outermost.

    On a machine that its devices share, the computation of n devices takes n times as long
    as that of one.

    Args:
      model: predicts.
      step: what every device computes and sends.
      specs: algorithms.
      device_counts: each at least 1.
    """
    return [_predict(model, step, spec, devices) for devices in device_counts for spec in specs]


def fastest(predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    """The fastest prediction for each number of devices, the first of equals."""
    found: dict[int, list[tuple[float, Prediction]]] = {}
    for one in predictions:
        if one.allreduce_seconds is not None:
            found.setdefault(one.devices, []).append((one.allreduce_seconds, one))
    return {n: min(timed, key=lambda pair: pair[0])[1] for n, timed in found.items()}


def fastest_by_size(
    model: CostModel, specs: Sequence[AllReduceSpec], devices: int
) -> tuple[FastestRange, ...]:
    """The fastest spec for one float32 tensor of 1 KiB to 1 GiB, by ranges of its size.

    Args:
      model: predicts.
      specs: the candidates; of equals, the first wins. A spec counts as the fastest until
        another one is faster by 1 %.
      devices: at least 2.

    Returns:
      Rising ranges; none if no spec can be predicted.
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
    model: CostModel,
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


def _predict(model: CostModel, step: TrainingStep, spec: AllReduceSpec, devices: int) -> Prediction:
    seconds: float | None = None
    reason: str | None = None
    try:
        seconds = model.seconds(spec, step.tensors, devices, step.packing)
    except NotPredictedError as error:
        reason = str(error)
    compute = step.step_seconds
    if compute is not None and isinstance(model, Host):
        compute *= devices
    return Prediction(devices, str(spec), seconds, reason, compute, step.batch_size)


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
