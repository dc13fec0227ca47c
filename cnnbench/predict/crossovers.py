"""Which algorithm is fastest for which size of a single tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.predict.fit import CostModel
from cnnbench.predict.network import NotPredictedError
from cnnbench.predict.packing import Packing
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_SMALLEST, _LARGEST = 1024, 1024**3
_STEPS_PER_DOUBLING = 4
# Chunks are whole lines, so times rise in steps; nearly equal ones would take turns.
_CLEARLY = 0.99
# Crossover sizes are found to this relative accuracy.
_ACCURACY = 1.02


@dataclass(frozen=True)
class Range:
    """Sizes for which one spec is the fastest.

    Attributes:
      spec: the fastest.
      up_to: the size in bytes from which on another one is; None for the last range.
    """

    spec: str
    up_to: int | None


def winners(
    model: CostModel, specs: Sequence[AllReduceSpec], devices: int, itemsize: int = 4
) -> tuple[Range, ...]:
    """The fastest spec for one tensor of 1 KiB to 1 GiB, by ranges of its size.

    Args:
      model: predicts.
      specs: the candidates; of equals, the first wins. A spec counts as the fastest until
        another one is so by 1 %.
      devices: at least 2.
      itemsize: bytes per element.

    Returns:
      Rising ranges; none if no spec can be predicted.
    """

    def fastest(size: int, known: str | None) -> str | None:
        return _fastest(model, specs, devices, Tensor(max(1, size // itemsize), itemsize), known)

    ranges: list[Range] = []
    spec, size = fastest(_SMALLEST, None), _SMALLEST
    if spec is None:
        return ()
    for next_size in _sizes():
        following = fastest(next_size, spec)
        if following is not None and following != spec:
            ranges.append(Range(spec, _crossover(fastest, size, next_size, spec)))
            spec = following
        size = next_size
    return (*ranges, Range(spec, None))


def _sizes() -> list[int]:
    steps = round(math.log2(_LARGEST / _SMALLEST) * _STEPS_PER_DOUBLING)
    return [round(_SMALLEST * 2 ** (step / _STEPS_PER_DOUBLING)) for step in range(1, steps + 1)]


def _crossover(
    fastest: Callable[[int, str | None], str | None], low: int, high: int, before: str
) -> int:
    """The smallest size, nearly, at which another spec than `before` is the fastest."""
    while high > low * _ACCURACY and high - low > 1:
        middle = (low + high) // 2
        if fastest(middle, before) == before:
            low = middle
        else:
            high = middle
    return high


def _fastest(
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
