"""Records of GPUs whose step times are wrong.

Until the next step was launched only once the read of a step's result was issued, the copy of the
result could wait for the next step, too: a step was recorded with the time of two, and the next
with nearly none. Sums, and so means, of such times are right; medians and percentiles are not.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.records.run import RunRecord

WHY = (
    "step times that alternate between those of two steps and none, as earlier versions of "
    "cnnbench mis-timed steps on GPUs; measure again"
)
"""What `is_mistimed` finds, and what to do about it."""

_NONE, _TWO = 0.25, (1.5, 2.5)  # shares of the mean step
_FEWEST, _SHARE = 3, 0.1


def is_mistimed(measurement: Measurement) -> bool:
    """Whether the step times of a GPU alternate between those of two steps and none.

    At least three steps, and a tenth of all, took less than a quarter of the mean and followed one
    of 1.5 to 2.5 times the mean.
    """
    if not isinstance(measurement, RunRecord) or len(measurement.step_seconds) < 2 * _FEWEST:
        return False
    if measurement.placement is None or measurement.placement.kind == "cpu":
        return False
    mean = fmean(measurement.step_seconds)
    pairs = sum(
        _TWO[0] * mean < before < _TWO[1] * mean and after < _NONE * mean
        for before, after in pairwise(measurement.step_seconds)
    )
    return pairs >= max(_FEWEST, _SHARE * len(measurement.step_seconds))
