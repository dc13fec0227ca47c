"""Adds up the times of sides A and B by part of the step, and tests whether differences exceed the
noise.

A and B each consist of a few processes with some profiled steps. Reported times are means over all
steps after rare disturbances are removed, as in `cnnbench compare`; the means of parts add up to
the mean step. Whether the difference of a row is significant is decided from the medians over the
steps of each process, because medians are robust against single delays. For the Python program, the
minimum is used instead of the median, because other programs can only add to its time. The noise is
estimated from differences among the processes of A and among the processes of B.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from operator import add, mul, sub, truediv
from statistics import fmean
from typing import TypeAlias

from cnnbench.base.slow_steps import undisturbed_step_weights, weighted_mean
from cnnbench.base.stats import group_by, median, student_quantile
from cnnbench.judge.explain.facts import PrimitiveChange, primitive_changes
from cnnbench.judge.explain.layers import Alignment, layers_of
from cnnbench.records.profiles import (
    HOST,
    INPUT,
    PROGRAM,
    REDUCTION,
    REST,
    UPDATE,
    ProfiledPart,
    StepPartKey,
    StepProfile,
)

CERTAIN = 5.0
"""If there is no evidence other than time, a difference must exceed this number of standard errors.
It is high because there are few processes and many parts.
"""

CHANCE = 0.002
"""Significance level of the test that uses the variance of the tested part itself."""

LIKELY = 2.0
"""A difference must exceed this number of standard errors if the operations also differ, which is
never noise.
"""

SMALLEST = 0.01
"""A cause must explain at least this share of the step time."""

_LEAST_NOISE = 0.01  # Processes are assumed to differ by at least this share of the time.
_ONE_PROCESS = 0.05  # If A or B has one process, processes are assumed to differ by this share.
_HARDLY_ANY = 10  # Times with a larger ratio of A to B are also tested without logarithms.
_SETTLED = 20.0  # A difference below `SMALLEST` must exceed this number of standard errors.
_SMALLEST_SETTLED = 0.002  # A difference below this share of the step time is never a cause.
_COMPARED = 10  # Speed factors of processes are computed from this many operations.

PAUSES = StepPartKey("pauses", "slow steps", HOST)
"""The part that contains the additional time of slow steps, if pauses are a cause."""

Values: TypeAlias = Sequence[Sequence[float]]
"""One list of values for side A and one for side B, or one list for each of several runs."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step that sides A and B spend in a part of the step (such as a layer), or in
    several parts together.

    Attributes:
      each: times of the processes of A and of B. If A or B has a single process, the times of its
        steps.
      within: variance of a process's time that results from the variance between its steps; mean
        over the processes, 0 if unknown.
      steps: number of profiled steps of all processes; 0 if `within` is unknown.
    """

    each: Values
    within: float = 0.0
    steps: int = 0

    @classmethod
    def typical(
        cls,
        values: Sequence[Values],
        weights: Sequence[Values],
        centre: Callable[[Sequence[float]], float] = median,
    ) -> StepTimes:
        """Computes the typical (median) time per step that each process spends in a part of the
        step. Only steps with a weight above 0 are used. For the arguments, see `mean`.

        If A or B has a single process, its steps are treated as processes.
        """
        kept = [
            [
                [step for step, weight in zip(*both, strict=True) if weight]
                for both in zip(side, of_side, strict=True)
            ]
            for side, of_side in zip(values, weights, strict=True)
        ]
        groups = [side if len(side) > 1 else [(value,) for value in side[0]] for side in kept]
        several = [process for process in chain(*groups) if len(process) > 1 and centre is median]
        within = fmean(map(_median_variance, several)) if several else 0.0
        return cls([tuple(map(centre, side)) for side in groups], within, sum(map(len, several)))

    @classmethod
    def mean(cls, values: Sequence[Values], weights: Sequence[Values]) -> StepTimes:
        """Computes the weighted mean time per step that each process of A and of B spends in a part
        of the step.

        If A or B has a single process, its steps (multiplied by their weights) are treated as
        processes.

        Args:
          values: seconds of each step of each process of A and of B.
          weights: weights of these steps, with mean 1 for each process.
        """
        means = []
        for side, of_side in zip(values, weights, strict=True):
            if len(side) > 1:
                means.append(tuple(map(weighted_mean, side, of_side)))
            else:
                means.append(tuple(map(mul, *side, *of_side)))
        return cls(means)

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            [tuple(map(add, *sides)) for sides in zip(self.each, other.each, strict=True)],
            self.within + other.within,
            self.steps,
        )

    @property
    def of_sides(self) -> tuple[float, float]:
        """The means over the processes of side A and of side B, in seconds."""
        base, new = map(fmean, self.each)
        return base, new

    @property
    def difference(self) -> float:
        """The mean of B minus the mean of A, in seconds."""
        base, new = self.of_sides
        return new - base

    @property
    def variance(self) -> float:
        """The variance between processes, pooled over A and B; 0 if A and B have one value each."""
        squares = sum((value - fmean(side)) ** 2 for side in self.each for value in side)
        return squares / max(1, sum(map(len, self.each)) - 2)

    def standard_error(self, noise: float = 0.0) -> float:
        """Returns the standard error of the difference between A and B. `noise` is the minimum
        standard deviation between processes, as a share of the time.
        """
        return self.error_of_difference(max(math.sqrt(self.variance), noise * fmean(self.of_sides)))

    def error_of_difference(self, deviation: float) -> float:
        """Returns the standard error of the difference if processes have this deviation."""
        return deviation * math.sqrt(sum(1 / len(side) for side in self.each))

    @property
    def chance_limit(self) -> float:
        """The largest difference that chance can explain, computed from the variance of these
        times.

        The variance between steps is used if it explains most of the variance between the
        processes, of which there are few.
        """
        processes = sum(map(len, self.each))
        freedom, variance = max(1, processes - 2), self.variance
        if self.within >= variance / 2 and self.steps > processes:
            freedom, variance = self.steps - processes, max(variance, self.within)
        return max(CERTAIN, student_quantile(CHANCE, freedom)) * self.error_of_difference(
            math.sqrt(variance)
        )

    @property
    def separated(self) -> bool:
        """Whether all processes of A are slower than all processes of B, or all of them faster."""
        base, new = self.each
        return min(new) > max(base) or min(base) > max(new)

    def logarithms(self) -> StepTimes | None:
        """Returns the logarithms of the times; None if a time is 0, because a process does not run
        this part of the step.
        """
        if min(map(min, self.each)) <= 0:
            return None
        logs = [tuple(map(math.log, side)) for side in self.each]
        return StepTimes(logs, self.within / fmean(chain(*self.each)) ** 2, self.steps)

    def divided_by(self, by: Values) -> StepTimes:
        """Returns the times of all processes, each divided by the process's number in `by`."""
        ratios = [tuple(map(truediv, *sides)) for sides in zip(self.each, by, strict=True)]
        return StepTimes(ratios, self.within / fmean(chain(*by)) ** 2, self.steps)


class ProfiledSide:
    """The profiled processes of A or of B. The function `named` returns the part of the step in A
    that corresponds to a given part.
    """

    def __init__(
        self, profiles: Sequence[StepProfile], named: Callable[[StepPartKey], StepPartKey]
    ) -> None:
        self.profiles = tuple(profiles)
        self.steps = [profile.step_seconds for profile in self.profiles]
        self._rows = [_sum_parts(profile.rows, named) for profile in self.profiles]

    @cached_property
    def parts(self) -> dict[StepPartKey, None]:
        """The parts of the step that occur in any process, in the order of the first process."""
        return dict.fromkeys(part for rows in self._rows for part in rows)

    def seconds(self, part: StepPartKey) -> Values:
        """Returns the seconds that each process spends in one part of the step, for each step; 0 if
        a process does not run this part.
        """
        return [
            rows[part].seconds if part in rows else (0.0,) * len(steps)
            for rows, steps in zip(self._rows, self.steps, strict=True)
        ]

    def work(self, part: StepPartKey) -> ProfiledPart | None:
        """Returns operations, FLOPs and bytes of a part; None if processes differ in them."""
        first, *others = (
            replace(rows[part], seconds=()) if part in rows else None for rows in self._rows
        )
        return first if all(digest == first for digest in others) else None

    def rows_of_first_process(self, parts: Iterable[StepPartKey]) -> list[ProfiledPart]:
        """Returns the given parts of the step with their operations, FLOPs and bytes, as far as the
        first process runs them.
        """
        return [self._rows[0][part] for part in parts if part in self._rows[0]]


@dataclass(frozen=True)
class CauseClaim:
    """A cause that a recogniser found, and the parts of the step (such as layers) whose difference
    in time the cause explains.

    `facts` are texts about flags and recorded properties that differ. The first text is the most
    likely reason. `is_effect` says whether the cause may be only a consequence of other causes,
    which may change waits or the use of caches and cores. For all other fields, see `Cause`.
    """

    kind: str
    parts: tuple[StepPartKey, ...]
    place: str
    text: str
    evidence: Sequence[str] = ()
    facts: tuple[str, ...] = ()
    is_effect: bool = False


class ComparedProfiles:
    """The profiled steps of sides A and B, divided into parts (layer, kind of operation,
    direction). Layers of B have the names of the corresponding layers of A.

    Attributes:
      times: typical times of every part, which are used for tests.
      means: mean times of every part, which are reported; they add up to `step`.
      step: mean times of profiled steps.
      timed: mean times of steps without a profiler.
      free: the parts that no cause has claimed yet.
      by_work: whether only differences in work are considered (operations, FLOPs and bytes), even
        if their times are small or noisy.

    Args:
      base, new: the profiles of A and of B.
      weights: weights of the profiled steps of each process, first of A, then of B. By default, the
        weights are computed by `undisturbed_step_weights`.
    """

    by_work = False

    def __init__(
        self,
        base: Sequence[StepProfile],
        new: Sequence[StepProfile],
        weights: Values | None = None,
    ) -> None:
        self.alignment = Alignment.of(layers_of(base[0]), layers_of(new[0]))
        profiles = (*base, *new)
        joined = all(
            profile.record.placement is not None and profile.record.placement.num_towers <= 1
            for profile in profiles
        )
        names: tuple[Mapping[str, str], ...] = ({}, self.alignment.names_in_a)
        self.a, self.b = (
            ProfiledSide(side, partial(_rename_to_a, names=names_of_side, reduces=not joined))
            for side, names_of_side in zip((base, new), names, strict=True)
        )
        both = (self.a, self.b)
        self.weights = weights or undisturbed_step_weights(
            [profile.step_seconds for profile in profiles]
        )

        def split(values: Values) -> tuple[Values, Values]:
            return values[: len(base)], values[len(base) :]

        by_side = split(self.weights)
        seconds = {
            part: [side.seconds(part) for side in both]
            for part in dict.fromkeys((*self.a.parts, *self.b.parts))
        }
        self.times = {
            part: StepTimes.typical(values, by_side, min if part == PROGRAM else median)
            for part, values in seconds.items()
        }
        self.means = {part: StepTimes.mean(values, by_side) for part, values in seconds.items()}
        self.step = StepTimes.mean([side.steps for side in both], by_side)
        timed = [profile.record.step_seconds for profile in profiles]
        self.timed = StepTimes.mean(split(timed), split(undisturbed_step_weights(timed)))
        self.free = dict.fromkeys(self.times)

    def with_pauses_as_part(
        self, slow: Sequence[Collection[int]], ordinary: Sequence[Collection[int]]
    ) -> ComparedProfiles | None:
        """Returns a copy without slow steps. The additional time of slow steps becomes a separate
        part of the step, `PAUSES`.

        The mean times of other parts are computed as if slow steps took as long as ordinary steps.
        Therefore all parts, including `PAUSES`, still add up to the step time.

        Args:
          slow, ordinary: numbers of steps for each process, first of A, then of B. Numbers beyond
            the profiled steps are ignored.

        Returns:
          None if a process has no ordinary profiled step.
        """
        weights = []
        for own, out, kept in zip(self.weights, slow, ordinary, strict=True):
            steps = range(len(own))
            removed, left = (sum(own[n] for n in steps if n in some) for some in (out, kept))
            if not left:
                return None
            factors = [1 + removed / left if n in kept else n not in out for n in steps]
            weights.append([*map(mul, own, factors)])
        shortened = ComparedProfiles(self.a.profiles, self.b.profiles, weights)
        paused = [
            tuple(map(sub, *both)) for both in zip(self.step.each, shortened.step.each, strict=True)
        ]
        shortened.times[PAUSES] = shortened.means[PAUSES] = StepTimes(paused)
        shortened.step = self.step
        return shortened

    def typical(self, parts: Iterable[StepPartKey]) -> StepTimes:
        """Returns the sum of the typical times of the given parts of the step."""
        return _sum_times(self.times[part] for part in parts)

    def mean(self, parts: Iterable[StepPartKey]) -> StepTimes:
        """Returns the sum of the mean times of the given parts of the step."""
        return _sum_times(self.means[part] for part in parts)

    @property
    def operations_left(self) -> tuple[StepPartKey, ...]:
        """The parts of the step that contain operations and that no cause explains yet."""
        return tuple(filter(_is_operation, self.free))

    def totals(self, amount: str, parts: Collection[StepPartKey]) -> tuple[int, int]:
        """Returns the FLOPs or bytes (`amount`) of the given parts of the step in the first process
        of A and in the first process of B.
        """
        rows = [side.rows_of_first_process(parts) for side in (self.a, self.b)]
        base, new = (sum(getattr(row, amount) for row in side) for side in rows)
        return base, new

    def kernels(self, parts: Collection[StepPartKey]) -> tuple[Counter[str], Counter[str]]:
        """Counts the operations in the given parts of the step by kernel name, in the first process
        of A and in the first process of B.
        """
        counters = Counter[str](), Counter[str]()
        for kernels, side in zip(counters, (self.a, self.b), strict=True):
            for row in side.rows_of_first_process(parts):
                kernels.update(row.operations)
        return counters

    @cached_property
    def factors(self) -> StepTimes:
        """For each process, a factor by which its operations are slower or faster than average. The
        geometric mean of A and B is 1.
        """
        counting = [(times, math.sqrt(math.prod(times.of_sides))) for times in self._longest()]
        return StepTimes(
            [
                [
                    median([times.each[side][n] / centre for times, centre in counting] or [1.0])
                    for n in range(len(processes))
                ]
                for side, processes in enumerate(self.step.each)
            ]
        )

    @cached_property
    def primitives(self) -> list[PrimitiveChange]:
        """The oneDNN primitives that A and B call differently."""
        return primitive_changes(self.a.profiles, self.b.profiles)

    @cached_property
    def noise(self) -> float:
        """Standard deviation among the processes of A and among the processes of B, as a share of
        the time, estimated from the longest operations.

        The times of each process are first divided by its speed factor (see `factors`).
        """
        if 1 in (len(self.a.profiles), len(self.b.profiles)):
            return _ONE_PROCESS
        rows = self._longest()
        adjusted = [times.divided_by(self.factors.each) for times in rows]
        shares = [times.variance / fmean(times.of_sides) ** 2 for times in adjusted]
        return max(_LEAST_NOISE, math.sqrt(median(shares))) if shares else _ONE_PROCESS

    def stands_out(self, parts: Collection[StepPartKey], standard_errors: float = CERTAIN) -> bool:
        """Whether the difference in the time of the given parts of the step is relevant and larger
        than the given number of standard errors.

        If `standard_errors` is at least `CERTAIN`, the times of A and B must also not overlap.
        """
        # The noise is estimated from operations. The Python program varies by at most 5 %, even if
        # operations vary more.
        limit = _ONE_PROCESS if {*parts} == {PROGRAM} else math.inf
        return self.exceeds(self.typical(parts), standard_errors, min(self.noise, limit))

    def exceeds(
        self, times: StepTimes, standard_errors: float = CERTAIN, noise: float | None = None
    ) -> bool:
        """Whether the difference of the given times is relevant and larger than the given number of
        standard errors. By default, `noise` is the noise of operations.
        """
        if self.by_work:
            return standard_errors < CERTAIN
        size = abs(times.difference)
        noise = self.noise if noise is None else noise
        if not self.is_relevant(times):
            return False
        if standard_errors < CERTAIN:
            return size > standard_errors * times.standard_error(noise)
        expected = times.error_of_difference(noise * fmean(times.of_sides))
        return size > standard_errors * expected and self.exceeds_chance(times)

    def exceeds_chance(self, times: StepTimes) -> bool:
        """Whether the times do not overlap and differ by more than chance can explain."""
        # Both are tested: near 0, logarithms vary too much, so the times themselves are needed,
        # too.
        scales = [times.logarithms() or times]
        if max(times.of_sides) > _HARDLY_ANY * min(times.of_sides):
            scales.append(times)
        return times.separated and any(
            abs(scale.difference) > scale.chance_limit for scale in scales
        )

    def is_relevant(self, times: StepTimes) -> bool:
        """Whether times differ by at least the share `SMALLEST` of the step time."""
        return abs(times.difference) >= SMALLEST * self.step.of_sides[0]

    def differs_significantly(self, parts: Iterable[StepPartKey]) -> bool:
        """Whether the times of the given parts of the step differ significantly, even if the
        difference is too small for `is_relevant`.

        This is only possible for parts whose times vary little within a process.
        """
        if self.by_work:
            return False
        times = self.typical(parts)
        size = abs(times.difference)
        return (
            size >= _SMALLEST_SETTLED * self.step.of_sides[0]
            and size
            > _SETTLED * times.standard_error(math.sqrt(times.within) / fmean(times.of_sides))
            and self.exceeds_chance(times)
        )

    def differs_from_others(
        self, parts: Iterable[StepPartKey], standard_errors: float = CERTAIN
    ) -> bool:
        """Whether the time of operations changed by more than that of the other operations."""
        if self.by_work:
            return standard_errors < CERTAIN
        times = self.typical(parts)
        usual = zip(self.factors.of_sides, times.each, strict=True)
        of_sides = times.divided_by([[factor] * len(side) for factor, side in usual])
        # Besides the factor of each process, the mean factors of A and of B are used, because load
        # does not slow GPU kernels down.
        scaled = (times.divided_by(self.factors.each), of_sides)
        alike = (own for own in scaled if times.difference * own.difference > 0)
        if not any(self.exceeds(own, standard_errors) for own in alike):
            return False
        # If there is no evidence but the time, the difference of the unscaled times must be
        # significant, too.
        if standard_errors < CERTAIN:
            return self.is_relevant(times)
        return self.exceeds(times, LIKELY)

    def _longest(self) -> list[StepTimes]:
        """Returns the times of the longest operations among those that run in all processes."""
        of_operations = (times for part, times in self.times.items() if _is_operation(part))
        everywhere = (times for times in of_operations if min(map(min, times.each)) > 0)
        return sorted(everywhere, key=lambda times: -sum(times.of_sides))[:_COMPARED]


def _sum_times(times: Iterable[StepTimes]) -> StepTimes:
    first, *others = times
    return sum(others, first)


def _is_operation(part: StepPartKey) -> bool:
    return part.direction not in (INPUT, HOST)


def _median_variance(values: Sequence[float]) -> float:
    """Returns the variance of the median of normal values, from the median absolute deviation."""
    centre = median(values)
    deviation = 1.4826 * median([abs(value - centre) for value in values])
    return math.pi / 2 * deviation**2 / len(values)


def _rename_to_a(part: StepPartKey, names: Mapping[str, str], reduces: bool) -> StepPartKey:
    """Returns the part of the step, with its layer renamed to the corresponding layer of A."""
    # With one tower, there is no reduction of gradients: an operation with this name is an update.
    if part.layer == REST:
        return part if reduces or part.kind != REDUCTION else part._replace(kind=UPDATE)
    return part._replace(layer=names.get(part.layer, part.layer))


def _sum_parts(
    rows: Iterable[ProfiledPart], named: Callable[[StepPartKey], StepPartKey]
) -> dict[StepPartKey, ProfiledPart]:
    return {
        part: ProfiledPart(
            **part._asdict(),
            seconds=tuple(map(sum, zip(*(row.seconds for row in members), strict=True))),
            flops=sum(row.flops for row in members),
            bytes=sum(row.bytes for row in members),
            operations=sum((Counter(row.operations) for row in members), Counter[str]()),
        )
        for part, members in group_by(rows, lambda row: named(row.part)).items()
    }
