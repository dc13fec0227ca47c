"""Chooses how many seconds each process of an experiment runs timed steps.

A longer process costs time, but a verdict needs fewer pairs: their number is proportional to the
variance of the difference within a pair. The shortest expected time to a verdict is near seconds =
sqrt(startup * within / between), where `startup` is the time of a process besides its timed steps.
An experiment has no verdict before its first interim analysis, so if this analysis probably
decides, the shortest processes are best.

Two kinds of noise make the speeds of equal processes differ. The speed of a whole process varies
(memory layout, threads), whatever its length. Within a process, the steps vary, and a longer
process averages more of them. The difference within a pair therefore has the variance `between +
within / seconds`.

The signed-rank test stays exact. Under the null hypothesis, A and B of every pair can be swapped,
and given the sizes of all differences, all combinations of their signs are equally likely. This
holds if the length of a process does not depend on the signs of earlier differences. The choice
therefore only knows a `PairSample` of each pair, whose values do not change if A and B are swapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import NamedTuple, TypeAlias

from cnnbench.base.inference import (
    EXACT,
    InterimAnalysis,
    nominal_levels,
    paired_shift_intervals,
)
from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.base.stats import median
from cnnbench.base.text import format_duration
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.processes import ResultsFolder
from cnnbench.flags import ACCEPTED, RunPart, names_of_flags
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

_Floats: TypeAlias = "NDArray[np.float64]"

LENGTHS = frozenset(names_of_flags(ACCEPTED.values(), RunPart.LENGTH))
"""Flags that decide how many timed steps a run has."""

SHORTEST, LONGEST = 3.0, 20.0
"""Limits of the chosen seconds of timed steps in a process."""

FEWEST_STEPS, MOST_STEPS = 20, 10_000
"""Limits of the number of timed steps, which precede the limits of seconds. A burn-in process has
the fewest steps. With fewer steps, a single slow step would change the median.
"""

LENGTH = "length"
"""Name of the journal's note that contains a chosen length (`pairs`, `seconds`, `steps`). It
applies to the processes after the first `pairs` pairs.
"""

_SHORTEST_FOR_STATISTICS = 5.0

FEWEST_SLICES = 10
"""Minimum number of time slices of a process whose steps are interleaved with another process."""

_STRIDE = 0.5

_DRAWS, _SEED = 400, 1
# Pairs that decide an equal comparison in about 85 % of experiments, if the standard deviation of a
# pair equals the margin: (quantile of the test + quantile of the power) ** 2.
_PAIRS_AT_MARGIN = 12.0
_LEAST_MARGIN = 1e-3

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


def pair_samples(
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
        variance = _step_variance(pair[0].step_seconds, pair[1].step_seconds)
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


def _step_variance(first: Sequence[float], second: Sequence[float]) -> float | None:
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
    total = variance_from_abs([size for size, _ in sizes])
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


def variance_from_abs(sizes: Sequence[float]) -> float:
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
        if _folded_quotient(centre) < quotient:
            low = centre
        else:
            high = centre
    return square / (1 + low**2)


def _folded_quotient(centre: float) -> float:
    """E[abs(x)]^2 / E[x^2] for a normal variable x with mean `centre` and standard deviation 1."""
    mean = math.sqrt(2 / math.pi) * math.exp(-(centre**2) / 2)
    mean += centre * math.erf(centre / math.sqrt(2))
    return mean**2 / (1 + centre**2)


@dataclass(frozen=True, kw_only=True)
class VerdictPlan:
    """How an experiment is judged, as far as the expected number of pairs depends on it.

    Attributes:
      made: interim analyses that have been made, without a verdict.
      left: interim analyses that follow; at least one.
      alpha: significance level of all analyses together.
      margin: size of a change, on the logarithmic scale, that a verdict must exclude.
      two_sided: whether a verdict must exclude slowdowns and speedups.
    """

    made: tuple[InterimAnalysis, ...] = ()
    left: tuple[InterimAnalysis, ...]
    alpha: float
    margin: float
    two_sided: bool = False

    def expected_pairs(self, before: float, variance: float) -> float:
        """Expected number of further pairs until a verdict, if A and B are equal.

        `before` is the variance of the differences of measured pairs, `variance` that of further
        pairs. If the last planned analysis gives no verdict, a new experiment is counted: the
        planned pairs again, which a gate has measured in vain, and as many pairs as such a
        variance needs.
        """
        margin = max(self.margin, _LEAST_MARGIN)
        ends = _simulated_ends((*self.made, *self.left), self.alpha, self.two_sided)
        undecided = np.ones(_DRAWS, bool)
        for end in ends[: len(self.made)]:
            undecided &= end * math.sqrt(before) > margin
        if not undecided.any():
            undecided[:] = True  # Such pairs should have given a verdict, so nothing is known.
        drawn, expected = undecided.sum(), 0.0
        measured = there = self.made[-1].pairs if self.made else 0
        for end, analysis in zip(ends[len(self.made) :], self.left, strict=True):
            expected += undecided.sum() / drawn * (analysis.pairs - there)
            there, old = analysis.pairs, measured / analysis.pairs
            deviation = math.sqrt(old * before + (1 - old) * variance)
            undecided &= end * deviation > margin
        more = there + _PAIRS_AT_MARGIN * variance / margin**2
        return float(expected + undecided.sum() / drawn * more)


@lru_cache(maxsize=64)
def _simulated_ends(
    analyses: tuple[InterimAnalysis, ...], alpha: float, two_sided: bool
) -> tuple[_Floats, ...]:
    """For each analysis, the ends of the confidence intervals of simulated equal comparisons whose
    pairs have the standard deviation 1. If `two_sided`, the end that is farther from 0.
    """
    drawn = np.random.default_rng(_SEED).standard_normal((_DRAWS, analyses[-1].pairs))
    ends = []
    levels = nominal_levels(analyses, alpha)
    for analysis, level in zip(analyses, levels, strict=True):
        pairs = analysis.pairs
        if level <= 0.0:
            high = low = np.full(_DRAWS, np.inf)
        elif pairs <= EXACT:
            bottom, _, high = paired_shift_intervals(drawn[:, :pairs], 1 - level)
            low = -bottom
        else:
            width = NormalDist().inv_cdf(1 - level / 2) / math.sqrt(pairs)
            centre = drawn[:, :pairs].mean(axis=1)
            low, high = width - centre, width + centre
        ends.append(np.maximum(low, high) if two_sided else high)
    return tuple(ends)


def choose_seconds(noise: NoiseEstimate, plan: VerdictPlan, shortest: float = SHORTEST) -> float:
    """Seconds of timed steps in each process with the shortest expected time to a verdict.

    The result is between `shortest` and `LONGEST` seconds.
    """
    count = math.floor((LONGEST - shortest) / _STRIDE) + 1
    lengths = [shortest + _STRIDE * place for place in range(max(1, count))]

    def expected_time(seconds: float) -> float:
        pairs = plan.expected_pairs(noise.measured, noise.variance(seconds))
        return pairs * (noise.startup + seconds)

    return min(lengths, key=expected_time)


class StepCountEstimate:
    """Estimates the number of timed steps that take `seconds`.

    Attributes:
      step_seconds: typical seconds of a step.
      wanted: number of steps that take `seconds`, without the limits `fewest` and `most`.
    """

    def __init__(self, seconds: float, step_seconds: float, fewest: int, most: int) -> None:
        self.step_seconds = step_seconds
        self.wanted = math.ceil(seconds / self.step_seconds)
        self._fewest, self._most = fewest, most

    def number_of_steps(self, factor: float = 1.0) -> int:
        """Number of timed steps that take `factor` times the requested seconds, within limits."""
        return min(max(self._fewest, math.ceil(factor * self.wanted)), self._most)

    def __str__(self) -> str:
        steps = self.number_of_steps()
        time = format_duration(steps * self.step_seconds)
        return (
            f"{steps} timed steps in each process, about {time}; --num_batches sets another number"
        )


class ChosenLength:
    """The number of timed steps of the processes of an experiment.

    A length that an earlier session has chosen is read from the journal.

    Args:
      results: folder of the experiment, whose journal gets the choices.
      notice: prints a line.
      has_pairs: whether earlier sessions have measured pairs.
    """

    def __init__(
        self,
        experiment: Experiment,
        results: ResultsFolder,
        notice: Callable[[str], None],
        *,
        has_pairs: bool,
    ) -> None:
        self._results, self._notice = results, notice
        self._fixed = experiment.timed_seconds if experiment.burn_in or has_pairs else 0.0
        shortest = _SHORTEST_FOR_STATISTICS if experiment.judges_step_statistics else SHORTEST
        self._shortest = max(shortest, FEWEST_SLICES * experiment.turn_seconds)
        notes = results.earlier_journal_notes(LENGTH)
        self._chosen_after = {int(note["pairs"]) for note in notes}
        self.steps: int | None = int(notes[-1]["steps"]) if notes else None
        # If flags determined the length of earlier pairs, they also determine that of later pairs.
        self._by_flags = self._fixed == 0.0 or (has_pairs and not notes)

    @property
    def is_from_noise(self) -> bool:
        """Whether the number of steps was chosen from the noise."""
        return self._fixed is None and self.steps is not None

    def is_due(self, pairs: int) -> bool:
        """Whether the length must be chosen after `pairs` pairs (0: after the burn-in)."""
        may_vary = self._fixed is None or not pairs
        return may_vary and not self._by_flags and pairs not in self._chosen_after

    def leave_to_flags(self) -> None:
        """The flags of A and B determine the length, because it cannot be chosen: for example, an
        evaluation always uses the whole validation data.
        """
        self._by_flags, self.steps = True, None

    def flags(self, in_burn_in: bool) -> dict[str, int]:
        """The flag for the number of timed steps of a process; empty if other flags determine it.

        Processes of the burn-in are short.
        """
        if self._by_flags:
            return {}
        steps = FEWEST_STEPS if in_burn_in else self.steps
        return {} if steps is None else {"num_batches": steps}

    def choose(
        self,
        pairs: int,
        base: Sequence[RunRecord],
        new: Sequence[RunRecord],
        process_seconds: Sequence[float],
        plan: VerdictPlan,
    ) -> None:
        """Chooses the length of the processes after `pairs` pairs, and says it in the journal and
        in a line. See `pair_samples` for the other arguments.
        """
        samples = pair_samples(base, new, process_seconds, burn_in=not pairs)
        noise = estimate_noise(samples)
        seconds = self._fixed or choose_seconds(noise, plan, self._shortest)
        count = StepCountEstimate(seconds, noise.step_seconds, FEWEST_STEPS, MOST_STEPS)
        before, self.steps = self.steps, count.number_of_steps()
        self._chosen_after.add(pairs)
        self._results.add_journal_note(LENGTH, pairs=pairs, seconds=seconds, steps=self.steps)
        if pairs and self.steps != before:
            self._notice(f"from pair {pairs + 1}, because of the measured noise: {count}")
        elif not pairs:
            busy = "other programs use the CPUs: " if are_mostly_disturbed(samples) else ""
            self._notice(f"{busy}{count}")
