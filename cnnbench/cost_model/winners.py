"""Which algorithm is fastest for which size of a single tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.cost_model.fit import CostModel
from cnnbench.cost_model.network import NotPredictedError
from cnnbench.cost_model.packing import Packing
from cnnbench.cost_model.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_SMALLEST, _LARGEST = 1024, 1024**3
_STEPS_PER_DOUBLING = 4
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
      specs: the candidates; of equals, the first wins.
      devices: at least 2.
      itemsize: bytes per element.

    Returns:
      Rising ranges; none if no spec can be predicted.
    """
    sizes = _sizes()
    first = _fastest(model, specs, devices, itemsize, sizes[0])
    if first is None:
        return ()
    ranges: list[Range] = []
    spec, size = first, sizes[0]
    for next_size in sizes[1:]:
        following = _fastest(model, specs, devices, itemsize, next_size)
        if following is not None and following != spec:
            ranges.append(
                Range(spec, _crossover(model, specs, devices, itemsize, (size, next_size), spec))
            )
            spec = following
        size = next_size
    return (*ranges, Range(spec, None))


def _sizes() -> list[int]:
    sizes: list[int] = []
    step = 0
    while not sizes or sizes[-1] < _LARGEST:
        sizes.append(round(_SMALLEST * 2 ** (step / _STEPS_PER_DOUBLING)))
        step += 1
    return sizes


def _crossover(
    model: CostModel,
    specs: Sequence[AllReduceSpec],
    devices: int,
    itemsize: int,
    between: tuple[int, int],
    before: str,
) -> int:
    low, high = between
    while high > low * _ACCURACY and high - low > itemsize:
        middle = (low + high) // 2
        if _fastest(model, specs, devices, itemsize, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _fastest(
    model: CostModel, specs: Sequence[AllReduceSpec], devices: int, itemsize: int, size: int
) -> str | None:
    tensors = (Tensor(max(1, size // itemsize), itemsize),)
    found: tuple[float, str] | None = None
    for spec in specs:
        try:
            seconds = model.seconds(spec, tensors, devices, Packing())
        except NotPredictedError:
            continue
        if found is None or seconds < found[0]:
            found = (seconds, str(spec))
    return None if found is None else found[1]
