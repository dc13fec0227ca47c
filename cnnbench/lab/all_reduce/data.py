"""The tensors that are reduced, and the check of their sums.

The values on a device repeat with a period. So a few hundred kilobytes describe tensors of any
size. The period is a prime: algorithms split tensors at multiples of powers of two, so parts that
an algorithm might mix up are different.

There are two sets of values. The first set contains integers whose sums are exact in any order. A
wrong sum shows that a device was left out or included twice. The second set contains numbers with
mixed magnitudes and signs. Rounding of their sums depends on the order, so each sum must be within

    ((n-1) eps + cast eps) * sum |x_i|

of the exact sum. There are n-1 additions. Each one rounds by at most eps/2 times a partial sum,
which is at most sum |x_i|. A second eps/2 allows for the growth of partial sums by rounding. If
values are rounded to 16 bits before they are sent, cast is 1 and allows for eps/2 by the rounding
of each value; otherwise, cast is 0. eps is the distance from 1 to the next number in the format of
the additions. See N. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from cnnbench.arrays import Array

PERIOD = 65521


SETS = ("integers", "floats")


_MAGNITUDES = (-4.0, 4.0)


_LARGEST_INTEGER = 100


def _machine_epsilon(dtype: str) -> float:
    """Distance from 1 to the next larger number in the floating-point format `dtype`."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)  # type: ignore[no-untyped-call]


class ReductionData(NamedTuple):
    """The values that each device reduces, and their exact sums over all devices. The values repeat
    after `PERIOD` elements, so only one period is stored.

    `values` has the dtype of the tensors. `total` contains the sums, and `magnitude` the sums of
    the absolute values, both in float64.
    """

    name: str
    values: tuple[Array, ...]
    total: Array
    magnitude: Array

    def make_tensor(self, device: int, begin: int, shape: Sequence[int]) -> Array:
        """Makes a tensor from the values of a device, beginning with the value number `begin`."""
        count = int(np.prod(shape, dtype=np.int64))
        start = np.roll(self.values[device], -(begin % PERIOD))
        return np.resize(start, count).reshape(shape)

    def count_wrong_elements(self, result: Array, begin: int, sum_dtype: str, cast: bool) -> int:
        """Counts the wrong elements in `result`, the sum that a device has computed.

        `sum_dtype` is the dtype of the additions. `cast` says whether values were first rounded to
        this dtype.
        """
        roundings = len(self.values) - 1 + int(cast)
        tolerance = roundings * _machine_epsilon(sum_dtype) * self.magnitude
        if self.name == "integers":
            tolerance = np.zeros_like(self.total)
        total, tolerance = (np.roll(x, -(begin % PERIOD)) for x in (self.total, tolerance))
        flat = result.reshape(-1)
        wrong = 0
        for first in range(0, len(flat), PERIOD):
            part = flat[first : first + PERIOD].astype(np.float64)
            error = np.abs(part - total[: len(part)])
            # NaN counts as a wrong value, because every comparison with NaN is false.
            wrong += len(part) - int(np.count_nonzero(error <= tolerance[: len(part)]))
        return wrong


def make_reduction_data(
    name: str, devices: int, dtype: str, sum_dtypes: Sequence[str], seed: int
) -> ReductionData:
    """Draws random values for every device and computes their sums. `name` selects the kind of
    values: "integers" or "floats".

    Integers are so small that sums in the dtypes `sum_dtypes` are exact.
    """
    streams = np.random.SeedSequence([seed, SETS.index(name), devices]).spawn(devices)
    generators = [np.random.default_rng(stream) for stream in streams]
    if name == "integers":
        # Up to the size of its significand, a floating-point format represents integers exactly.
        exact = min(round(2 / _machine_epsilon(name)) for name in (dtype, *sum_dtypes))
        values = [_draw_integers(g, d, devices, exact) for d, g in enumerate(generators)]
    else:
        values = [
            g.choice([-1.0, 1.0], PERIOD) * np.exp2(g.uniform(*_MAGNITUDES, PERIOD))
            for g in generators
        ]
    rounded = [value.astype(np.dtype(dtype)) for value in values]
    exactly = np.stack([value.astype(np.float64) for value in rounded])
    return ReductionData(name, tuple(rounded), exactly.sum(axis=0), np.abs(exactly).sum(axis=0))


def _draw_integers(generator: np.random.Generator, device: int, devices: int, exact: int) -> Array:
    """Draws random integers for one device. They are so small that the absolute value of the sum
    over all devices is at most `exact`.
    """
    largest = min(_LARGEST_INTEGER, max(1, exact // devices))
    values = generator.integers(-largest, largest, PERIOD, endpoint=True)
    # If sums of +-1 over all devices could be inexact, some devices contribute 0 instead. Which
    # devices these are varies from element to element.
    used = (device + np.arange(PERIOD)) % devices < exact
    return np.where(used, values, 0)
