"""Reduced data, and the check of the sums.

The values of a device repeat with a period that is a prime, so that a few hundred kilobytes
describe tensors of any size, and parts that an algorithm could confuse (they are cut at multiples
of powers of two) differ.

There are two sets. Integers that are added without rounding, in any order, must be exact; they show
a device that was left out or counted twice. Numbers of mixed magnitudes and signs round differently
in every order; each sum must lie within

    ((n-1) eps + cast eps) * sum |x_i|

of the exact one: n-1 additions, of which each rounds by at most eps/2 of a partial sum that is at
most sum |x_i|, the second eps/2 being room for the growth of the partial sums by rounding; and
eps/2 for the rounding of each value to 16 bits if it is sent so (cast 1, else 0). eps is the
distance from 1 to the next number of the format of the additions. See N. Higham, Accuracy and
Stability of Numerical Algorithms, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

PERIOD = 65521
SETS = ("integers", "floats")

_MAGNITUDES = (-4.0, 4.0)
_LARGEST_INTEGER = 100


def _eps(dtype: str) -> float:
    """Distance from 1 to the next number of float32, float16 or bfloat16."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class DataSet:
    """One period of the values of every device, in the reduced dtype, and of their sums.

    `total` has the exact sums, `magnitude` the sums of the absolute values, both float64.
    """

    name: str
    values: tuple[Array, ...]
    total: Array
    magnitude: Array

    def fill(self, device: int, begin: int, shape: Sequence[int]) -> Array:
        """A tensor of a device's values, from the element `begin` on."""
        count = int(np.prod(shape, dtype=np.int64))
        start = np.roll(self.values[device], -(begin % PERIOD))
        return np.resize(start, count).reshape(shape)

    def count_wrong(self, result: Array, begin: int, added_in: str, cast: bool) -> int:
        """Number of wrong elements of a device's sum, of any shape.

        `added_in` is the dtype of the additions; `cast` is whether the values were rounded to it
        first.
        """
        roundings = len(self.values) - 1 + int(cast)
        tolerance = roundings * _eps(added_in) * self.magnitude
        if self.name == "integers":
            tolerance = np.zeros_like(self.total)
        total, tolerance = (np.roll(x, -(begin % PERIOD)) for x in (self.total, tolerance))
        flat = result.reshape(-1)
        wrong = 0
        for first in range(0, len(flat), PERIOD):
            part = flat[first : first + PERIOD].astype(np.float64)
            error = np.abs(part - total[: len(part)])
            # Written so that NaN, which compares as false, is wrong.
            wrong += len(part) - int(np.count_nonzero(error <= tolerance[: len(part)]))
        return wrong


def make_data(name: str, devices: int, dtype: str, added_in: Sequence[str], seed: int) -> DataSet:
    """Draws one of `SETS`; integers are so small that sums in `added_in` dtypes are exact."""
    streams = np.random.SeedSequence([seed, SETS.index(name), devices]).spawn(devices)
    generators = [np.random.default_rng(stream) for stream in streams]
    if name == "integers":
        # Integers of as many bits as the significand has are exact.
        exact = min(round(2 / _eps(name)) for name in (dtype, *added_in))
        values = [_integers(g, d, devices, exact) for d, g in enumerate(generators)]
    else:
        values = [
            g.choice([-1.0, 1.0], PERIOD) * np.exp2(g.uniform(*_MAGNITUDES, PERIOD))
            for g in generators
        ]
    rounded = [value.astype(np.dtype(dtype)) for value in values]
    exactly = np.stack([value.astype(np.float64) for value in rounded])
    return DataSet(name, tuple(rounded), exactly.sum(axis=0), np.abs(exactly).sum(axis=0))


def _integers(generator: np.random.Generator, device: int, devices: int, exact: int) -> Array:
    """Values of one device, so small that the sum of all does not exceed `exact`."""
    largest = min(_LARGEST_INTEGER, max(1, exact // devices))
    values = generator.integers(-largest, largest, PERIOD, endpoint=True)
    # With more devices than the format counts, some are zero, others at every element.
    used = (device + np.arange(PERIOD)) % devices < exact
    return np.where(used, values, 0)
