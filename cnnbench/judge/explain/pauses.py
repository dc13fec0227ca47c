"""Steps of one side that now and then take longer than its other steps.

Slow steps are looked for in each row of the profiled steps, since waits for input, the program and
gaps hardly scatter, and where no row has any in the times of whole steps. The steps of all
processes are divided together (`cnnbench.base.stats.slow_steps`), so that one limit holds for both
sides, and Fisher's exact test ("The Design of Experiments", 1935) says whether one side has more
slow steps than by chance. Slow steps of which neither has more are left out, and the rest is
divided again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import comb
from statistics import fmean
from typing import NamedTuple, TypeAlias

from cnnbench.base.stats.descriptive import faster_half, median
from cnnbench.base.stats.slow_steps import SlowSteps, shared_slow_steps, slow_steps, slower_steps
from cnnbench.base.text.numbers import number, percent
from cnnbench.judge.explain.sides import PAUSES, SMALLEST, Sides, Times
from cnnbench.judge.metrics.speed import slow_steps_text
from cnnbench.records.step_profile import GAPS, INPUT, PROGRAM, Part, StepProfile

_CHANCE = 0.016
"""Level of the test: with as many steps on both sides, six slow ones on one side and none on the
other are significant, such as two of each of three processes."""

_RATIO = 1.5
"""Least ratio of the shares of slow steps of any process of one side and any of the other, since
processes of one side differ by more than chance."""

_BUSY = 0.5  # CPU seconds per second of a pause from which it is computing
_LARGEST = 3

Runs: TypeAlias = Sequence[Sequence[float]]
"""Seconds of the profiled steps of a process, or of these and of the timed ones."""

_Profile: TypeAlias = tuple[StepProfile, SlowSteps | None]
"""A process, with its slow steps: numbers of the profiled ones, then of the timed ones."""


class Pauses(NamedTuple):
    """Slow steps that recur in the processes of one side, and less on the other.

    Attributes:
      place, text, evidence: as in `cnnbench.records.explanation.Cause`.
      others: the sides without the slow steps, whose further time is that of `PAUSES`.
    """

    place: str
    text: str
    evidence: tuple[str, ...]
    others: Sides


def pauses(sides: Sides) -> Pauses | None:
    """The pauses that cost most, in the times of a part or, without any, of whole steps."""
    operations = sides.operations
    found = []
    for part in sides.times:
        each = [(one,) for one in (*sides.a.seconds(part), *sides.b.seconds(part))]
        level = _CHANCE / (len(operations) if part in operations else 1)  # Bonferroni
        if recurring := _recurring(sides, each, level, part):
            found.append(recurring)
    if found:
        return max(found, key=lambda one: abs(one.others.means[PAUSES].difference))
    profiles = (*sides.a.profiles, *sides.b.profiles)
    whole = [(one.step_seconds, one.record.step_seconds) for one in profiles]
    return _recurring(sides, whole, _CHANCE)


def _recurring(
    sides: Sides, each: Sequence[Runs], level: float, part: Part | None = None
) -> Pauses | None:
    """The pauses in the times of a part, or of whole steps, by process, those of A first.

    None unless all processes of a side have more slow steps, beyond chance.
    """
    profiles = (*sides.a.profiles, *sides.b.profiles)
    usual = [_ordinary(one.record.step_seconds) for one in profiles]
    series = [_around(base, runs) for base, runs in zip(usual, each, strict=True)]
    # In most rows of operations no slow steps could take so much more.
    if max(fmean(one) - min(one) for one in series) < SMALLEST * sides.step.usual[0]:
        return None
    of_a, of_b = slice(len(sides.a.profiles)), slice(len(sides.a.profiles), None)
    left = [(n, step) for n, seconds in enumerate(series) for step in range(len(seconds))]
    while slower := slower_steps([series[n][step] / usual[n] for n, step in left]):
        slow = {left[index] for index in slower}
        left = [one for one in left if one not in slow]
        indices, ordinary = (
            [[step for n, step in some if n == process] for process in range(len(series))]
            for some in (sorted(slow), left)
        )
        # What takes longer in most steps is no pause but another cause.
        if any(_are_most(indices[one], ordinary[one]) for one in (of_a, of_b)):
            return None
        found = [*map(SlowSteps.of, series, indices, ordinary)]
        times = [0 if one is None else one.occurrences for one in found]
        rates = [own / len(seconds) for own, seconds in zip(times, series, strict=True)]
        costs = [0.0 if one is None else one.share * one.extra for one in found]
        cost = Times([costs[of_a], costs[of_b]])
        side, more, fewer = ("B", of_b, of_a) if cost.difference > 0 else ("A", of_a, of_b)
        few, many = ((sum(times[one]), sum(map(len, series[one]))) for one in (fewer, more))
        shared = shared_slow_steps(found[more])
        if (
            shared is not None
            and sides.is_large(cost)
            and min(rates[more]) > _RATIO * max(rates[fewer])
            and _chance(*few, *many) <= level
        ):
            others = sides.without(indices, ordinary)
            if others is None or others.means[PAUSES].difference * cost.difference <= 0:
                return None
            slowed = [*zip(profiles, found, strict=True)][more]
            place, evidence = _place(slowed, part)
            text = f"of {side}, {slow_steps_text(shared)}"
            return Pauses(place, text, (*evidence, *_computing(one for one, _ in slowed)), others)
    return None


def _are_most(slow: Sequence[Sequence[int]], ordinary: Sequence[Sequence[int]]) -> bool:
    """Whether the processes of a side have at least two more slow steps than others, on average."""
    more = sum(map(len, slow)) - sum(map(len, ordinary))
    return more > len(slow)


def _ordinary(seconds: Sequence[float]) -> float:
    return fmean(seconds[step] for step in faster_half(seconds))


def _around(usual: float, runs: Runs) -> list[float]:
    """Seconds of the steps of some runs, moved so that ordinary ones take `usual`."""
    found = []
    for run in runs:
        ordinary = _ordinary(run)
        found += [max(usual / 2, usual + one - ordinary) for one in run]
    return found


def _chance(few: int, of_few: int, many: int, of_many: int) -> float:
    """The probability that one side has at least `many` of the slow steps, by its steps."""
    slow = few + many
    ways = (comb(of_many, own) * comb(of_few, slow - own) for own in range(many, slow + 1))
    return sum(ways) / comb(of_few + of_many, slow)


def _place(profiles: Iterable[_Profile], part: Part | None) -> tuple[str, tuple[str, ...]]:
    """Where the time of slow steps goes: the place, and the largest rows as evidence."""
    extra: defaultdict[Part, list[float]] = defaultdict(list)
    for profile, slow in profiles:
        profiled = range(len(profile.step_seconds))
        steps = [one for one in slow.indices if one in profiled] if slow else []
        for row in profile.rows if steps else ():
            extra[row.part] += [row.seconds[one] - _ordinary(row.seconds) for one in steps]
    total = sum(map(sum, extra.values()))
    if total <= 0:
        return "steps that were not profiled", ()
    # Medians, since other rows take much more in some of the steps.
    largest = sorted(extra, key=lambda part: -median(extra[part]))[:_LARGEST]
    told = ", ".join(f"{_words(part)} {percent(sum(extra[part]) / total, 0)}" for part in largest)
    return _words(part or largest[0]), (f"further time of slow profiled steps: {told}",)


def _words(part: Part) -> str:
    if part.direction == INPUT:
        return "the input pipeline"
    if part == PROGRAM:
        return "the training loop, outside the graph"
    if part == GAPS:
        return "gaps between operations, as when threads wait for a lock"
    return ", ".join(filter(None, (part.layer, part.direction)))


def _computing(profiles: Iterable[StepProfile]) -> tuple[str, ...]:
    """Whether this process computes in pauses, by the CPU time of slow timed steps."""
    shares = []
    for profile in profiles:
        seconds, cpu = profile.record.step_seconds, profile.record.step_cpu_seconds
        slow = slow_steps(seconds)
        if slow is not None and cpu and len(cpu) == len(seconds):
            shares.append((fmean(cpu[one] for one in slow.indices) - _ordinary(cpu)) / slow.extra)
    if not shares:
        return ()
    share = median(shares)
    doing = (
        "it computes, as Python, its garbage collector or operations do"
        if share >= _BUSY
        else "it waits, as for input, a lock or a sleep"
    )
    return (f"{number(max(0.0, share))} CPU seconds per second of a pause: {doing}",)
