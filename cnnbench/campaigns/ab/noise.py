"""Estimates the noise of the pairs of an experiment, for the choice of their lengths.

Two kinds of noise make the speeds of equal processes differ. The speed of a whole process varies
(memory layout, threads), whatever its length. Within a process, the steps vary, and a longer
process averages more of them. The difference within a pair therefore has the variance `between +
within / seconds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from cnnbench.base.stats import median
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

if TYPE_CHECKING:
    import numpy as np
else:
    from cnnbench.base import lazy_numpy as np

_BATCHES, _STEPS_OF_BATCH = 10, 5

# What is assumed before pairs are measured. Speeds of equal processes have a standard deviation of
# 1.3 % on a quiet machine. `within` belongs to steps of 20 ms with a standard deviation of 7 % on a
# quiet machine, and of 35 % under load (docs/evidence.md).
_BETWEEN = 2 * 0.013**2
_WITHIN, _WITHIN_UNDER_LOAD = 2e-4, 5e-3
# The assumptions count as much as this number of measured pairs.
_WEIGHT_BETWEEN, _WEIGHT_WITHIN = 4.0, 1 / 3
_LEAST_WITHIN = 1e-9


class PairSample(NamedTuple):
    """What the choice of lengths knows about a pair. No value changes if A and B are swapped.

    Attributes:
      difference: size of the difference of the logarithms of the speeds; None for a burn-in.
      within: variance of this difference that the steps cause, times the seconds of timed steps;
        None if there are too few steps to know it.
      seconds: seconds of timed steps, the mean of both processes.
      startup: seconds of wall time of a process besides its timed steps, the mean of both.
      step_seconds: median step time in the slower process.
      disturbed: whether other programs used the CPUs.
    """

    difference: float | None
    within: float | None
    seconds: float
    startup: float
    step_seconds: float
    disturbed: bool


def sample_pairs(
    base: Sequence[RunRecord],
    new: Sequence[RunRecord],
    process_seconds: Sequence[float],
    burn_in: bool = False,
) -> list[PairSample]:
    """Returns a sample of each pair of records of A and B, which have timed steps.

    `process_seconds` contains the mean wall time in seconds of the two processes of each pair.
    """
    speeds = throughputs([*base, *new])
    samples = []
    for place, pair in enumerate(zip(base, new, strict=True)):
        values = speeds[place], speeds[len(base) + place]
        seconds = fmean(math.fsum(record.step_seconds) for record in pair)
        variance = _variance_of_steps(pair[0].step_seconds, pair[1].step_seconds)
        difference = None
        if not burn_in and all(values):
            difference = abs(math.log(values[1] or 1.0) - math.log(values[0] or 1.0))
        samples.append(
            PairSample(
                difference=difference,
                within=None if variance is None else variance * seconds,
                seconds=seconds,
                startup=max(0.0, process_seconds[place] - seconds),
                step_seconds=max(median(record.step_seconds) for record in pair),
                disturbed=mostly_disturbed(pair),
            )
        )
    return samples


def _variance_of_steps(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Variance of the difference of the logarithms of two processes' mean step times that the
    steps cause, from batch means. None if there are too few steps.

    Steps are correlated, and interleaved processes share disturbances. So both processes are
    divided into the same number of batches, and the differences of the batches count.
    """
    batches = min(_BATCHES, min(len(first), len(second)) // _STEPS_OF_BATCH)
    if batches < 2:
        return None
    logs = [
        np.log([max(float(batch.mean()), 1e-12) for batch in np.array_split(steps, batches)])
        for steps in (np.asarray(first), np.asarray(second))
    ]
    # The factor makes the mean of logarithms of such variances unbiased.
    unbiased = math.exp(1 / (batches - 1))
    return unbiased * float(np.var(logs[1] - logs[0], ddof=1)) / batches


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """Noise of the pairs of an experiment, and the time that a process needs.

    Attributes:
      between: variance of the difference of a pair that longer processes do not reduce.
      within: variance of this difference that steps cause, times the seconds of timed steps.
      startup: seconds of wall time of a process besides its timed steps.
      step_seconds: typical step time of the slower process of a pair.
      measured: mean variance of the differences of the pairs so far; 0 without pairs.
    """

    between: float
    within: float
    startup: float
    step_seconds: float
    measured: float = 0.0

    def variance(self, seconds: float) -> float:
        """Variance of the difference of a pair with these seconds of timed steps."""
        return self.between + self.within / seconds


def estimate_noise(samples: Sequence[PairSample]) -> NoiseEstimate:
    """Estimates the noise from at least one sample. Assumptions replace what is not yet known.

    A mean of logarithms estimates `within`, so that one slow step of a few does not decide.
    """
    known = (sample.within for sample in samples if sample.within is not None)
    logs = [math.log(max(value, _LEAST_WITHIN)) for value in known]
    assumed = math.log(_WITHIN_UNDER_LOAD if are_mostly_disturbed(samples) else _WITHIN)
    weighted = math.fsum(logs) + _WEIGHT_WITHIN * assumed
    steps = math.exp(weighted / (len(logs) + _WEIGHT_WITHIN))
    sizes = [(s.difference, s.seconds) for s in samples if s.difference is not None]
    by_steps = fmean(steps / seconds for _, seconds in sizes) if sizes else 0.0
    total = variance_from_sizes([size for size, _ in sizes])
    weighted = _WEIGHT_BETWEEN * _BETWEEN + len(sizes) * max(0.0, total - by_steps)
    between = weighted / (_WEIGHT_BETWEEN + len(sizes))
    return NoiseEstimate(
        between=between,
        within=steps,
        startup=fmean(sample.startup for sample in samples),
        step_seconds=median(sample.step_seconds for sample in samples),
        measured=between + by_steps if sizes else 0.0,
    )


def are_mostly_disturbed(samples: Sequence[PairSample]) -> bool:
    """Whether other programs used the CPUs in at least half of the pairs."""
    return 2 * sum(sample.disturbed for sample in samples) >= len(samples)


def variance_from_sizes(sizes: Sequence[float]) -> float:
    """Variance of normally distributed values, of which only the sizes are known. 0 if empty.

    The sizes have a folded normal distribution. The quotient of their squared mean and their mean
    square is 2 / pi if the values are centred at 0, and 1 if their centre is far from 0. It
    determines the quotient of centre and standard deviation (method of moments).
    """
    square = fmean(size**2 for size in sizes) if sizes else 0.0
    if square == 0.0:
        return 0.0
    quotient = min(fmean(sizes) ** 2 / square, 1.0)
    low, high = 0.0, 1e6
    for _ in range(100):
        centre = (low + high) / 2
        if _quotient_of_folded_normal(centre) < quotient:
            low = centre
        else:
            high = centre
    return square / (1 + low**2)


def _quotient_of_folded_normal(centre: float) -> float:
    """Squared mean size / mean square of values with standard deviation 1 around a centre."""
    mean = math.sqrt(2 / math.pi) * math.exp(-(centre**2) / 2)
    mean += centre * math.erf(centre / math.sqrt(2))
    return mean**2 / (1 + centre**2)
