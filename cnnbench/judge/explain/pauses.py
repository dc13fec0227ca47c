"""Finds pauses, which are recurring steps that take longer than other steps of the same process.

Slow steps are searched for in the times of each part of the profiled steps (such as the forward
pass of a layer, or the wait for input), because some parts have little variance. If no part has
slow steps, the times of whole steps are searched. The steps of all processes are divided into slow
and ordinary steps together (`cnnbench.base.slow_steps`), so the limit is the same for A and B.
Fisher's exact test ("The Design of Experiments", 1935) shows whether A or B has significantly more
slow steps. If not, these slow steps are removed and the remaining steps are divided again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import comb
from statistics import fmean
from typing import TypeAlias

from cnnbench.base.slow_steps import (
    SlowSteps,
    find_slow_steps,
    median_slow_steps,
    slower_step_indices,
)
from cnnbench.base.stats import faster_half, median
from cnnbench.base.text import number, percent
from cnnbench.judge.explain.sides import PAUSES, SMALLEST, CauseClaim, ComparedProfiles, StepTimes
from cnnbench.records.profiles import GAPS, INPUT, PROGRAM, StepPartKey, StepProfile

_CHANCE = 0.016
"""Significance level of Fisher's test. If A and B have equally many steps, six slow steps in B and
none in A are significant, such as two in each of three processes.
"""

_RATIO = 1.5
"""Minimum ratio between the share of slow steps in any process with pauses and the share in any
process without pauses. A test is not enough, because equal processes differ by more than chance.
"""

_BUSY = 0.5  # A process that uses this many CPUs during a pause computes; otherwise it waits.
_LARGEST = 3  # The evidence for a pause names at most this many parts of the step.

Runs: TypeAlias = Sequence[Sequence[float]]
"""Seconds of each profiled step of a process, optionally followed by the timed steps."""

_Pauses: TypeAlias = tuple[CauseClaim, ComparedProfiles]
"""Slow steps that recur in all processes of A and less often in the processes of B, or the reverse.
In the profiles, steps are not slow; the additional time of slow steps is in the part `PAUSES`.
"""


def find_pauses(sides: ComparedProfiles) -> tuple[tuple[CauseClaim, ...], ComparedProfiles]:
    """Searches the times of each part of the step for pauses (recurring slow steps), and returns
    the longest pauses. If no part has pauses, searches the times of whole steps.

    If there are pauses, the returned profiles have a separate part for them. All other causes are
    then found in the steps without pauses, so that no cause is reported twice.
    """
    operations = sides.operations_left
    found: list[_Pauses] = []
    for part in sides.times:
        runs = [(value,) for value in (*sides.a.seconds(part), *sides.b.seconds(part))]
        # Every operation is tested, so the significance level is divided by their number
        # (Bonferroni correction).
        level = _CHANCE / (len(operations) if part in operations else 1)
        if pauses := _search_pauses(sides, runs, level, part):
            found.append(pauses)
    if not found:
        profiles = (*sides.a.profiles, *sides.b.profiles)
        whole = [(profile.step_seconds, profile.record.step_seconds) for profile in profiles]
        if pauses := _search_pauses(sides, whole, _CHANCE):
            found.append(pauses)
    if not found:
        return (), sides
    claim, others = max(found, key=lambda pauses: abs(pauses[1].means[PAUSES].difference))
    return (claim,), others


def _search_pauses(
    sides: ComparedProfiles,
    runs_of_processes: Sequence[Runs],
    level: float,
    part: StepPartKey | None = None,
) -> _Pauses | None:
    """Finds pauses (recurring slow steps) in the times of whole steps, or of one part of the step
    (`part`), such as a layer.

    `runs_of_processes` contains the times of each process, first of A, then of B. The result is
    None unless all processes of A, or all processes of B, have significantly more slow steps.
    """
    profiles = (*sides.a.profiles, *sides.b.profiles)
    usual = [_fast_mean(profile.record.step_seconds) for profile in profiles]
    series = [*map(_shift_to_usual, usual, runs_of_processes)]
    # If a part of the step varies little, its slow steps cannot matter, so it is skipped.
    variation = max(fmean(values) - min(values) for values in series)
    if variation < SMALLEST * sides.step.of_sides[0]:
        return None
    of_a, of_b = slice(len(sides.a.profiles)), slice(len(sides.a.profiles), None)
    left = [(n, step) for n, seconds in enumerate(series) for step in range(len(seconds))]
    while slower := slower_step_indices([series[n][step] / usual[n] for n, step in left]):
        slow = {left[index] for index in slower}
        left = [index for index in left if index not in slow]
        indices, ordinary = (
            [[step for n, step in some if n == process] for process in range(len(series))]
            for some in (sorted(slow), left)
        )
        # A pause is rare: if most steps of A or of B are slow (by more than one step per process),
        # there is none.
        for of in (of_a, of_b):
            if sum(map(len, indices[of])) - sum(map(len, ordinary[of])) > len(indices[of]):
                return None
        slow_steps = [*map(SlowSteps.from_groups, series, indices, ordinary)]
        times = [0 if slow is None else slow.occurrences for slow in slow_steps]
        rates = [own / len(seconds) for own, seconds in zip(times, series, strict=True)]
        costs = [0.0 if slow is None else slow.share * slow.extra for slow in slow_steps]
        cost = StepTimes([costs[of_a], costs[of_b]])
        side, more, fewer = ("B", of_b, of_a) if cost.difference > 0 else ("A", of_a, of_b)
        few, many = ((sum(times[of]), sum(map(len, series[of]))) for of in (fewer, more))
        shared = median_slow_steps(slow_steps[more])
        if (
            shared is not None
            and sides.is_relevant(cost)
            and min(rates[more]) > _RATIO * max(rates[fewer])
            and _fisher_p(*few, *many) <= level
        ):
            others = sides.with_pauses_as_part(indices, ordinary)
            if others is None or others.means[PAUSES].difference * cost.difference <= 0:
                return None
            slowed = [*zip(profiles, slow_steps, strict=True)][more]
            place, evidence = _place(slowed, part)
            evidence += _cpu_evidence(profile for profile, _ in slowed)
            text = f"of {side}, {shared.text}"
            return CauseClaim("pauses", (PAUSES,), place, text, evidence), others
    return None


def _fast_mean(seconds: Sequence[float]) -> float:
    """Returns the mean of the faster half of all steps."""
    return fmean(seconds[step] for step in faster_half(seconds))


def _shift_to_usual(usual: float, runs: Runs) -> list[float]:
    """Returns the seconds of all steps of one process, shifted so that ordinary steps take `usual`
    seconds, both in the profiled and in the timed steps.
    """
    each = ((value, ordinary) for run in runs for ordinary in [_fast_mean(run)] for value in run)
    return [max(usual / 2, usual + value - ordinary) for value, ordinary in each]


def _fisher_p(
    slow_in_first: int, steps_in_first: int, slow_in_second: int, steps_in_second: int
) -> float:
    """Returns the one-sided p-value of Fisher's exact test for two groups of steps: whether the
    share of slow steps is larger in the second group than in the first.
    """
    slow = slow_in_first + slow_in_second
    ways = (
        comb(steps_in_second, own) * comb(steps_in_first, slow - own)
        for own in range(slow_in_second, slow + 1)
    )
    return sum(ways) / comb(steps_in_first + steps_in_second, slow)


def _place(
    profiles: Iterable[tuple[StepProfile, SlowSteps | None]], part: StepPartKey | None
) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the part of the step (such as a layer) in which slow steps take longer,
    and evidence: the parts that take most of the additional time.

    Profiled steps are numbered from 0 in the slow steps of a process; the timed steps follow.
    """
    extra: defaultdict[StepPartKey, list[float]] = defaultdict(list)
    for profile, slow in profiles:
        profiled = range(len(profile.step_seconds))
        steps = [index for index in slow.indices if index in profiled] if slow else []
        for row in profile.rows if steps else ():
            usual = _fast_mean(row.seconds)
            extra[row.part] += [row.seconds[index] - usual for index in steps]
    total = sum(map(sum, extra.values()))
    if total <= 0:
        return "steps that were not profiled", ()
    # Sorted by medians: in some slow steps, unrelated parts also take much longer, which would
    # dominate sums.
    largest = sorted(extra, key=lambda part: -median(extra[part]))[:_LARGEST]
    shares = ", ".join(
        f"{_part_text(part)} {percent(sum(extra[part]) / total, 0)}" for part in largest
    )
    return _part_text(part or largest[0]), (f"additional time of slow profiled steps: {shares}",)


def _part_text(part: StepPartKey) -> str:
    if part.direction == INPUT:
        return "the input pipeline"
    if part == PROGRAM:
        return "the training loop, outside the graph"
    if part == GAPS:
        return "gaps between operations, as when threads wait for a lock"
    return ", ".join(filter(None, (part.layer, part.direction)))


def _cpu_evidence(profiles: Iterable[StepProfile]) -> tuple[str, ...]:
    """Returns a text that says whether processes compute or wait during pauses, based on their CPU
    time; () if the CPU time is unknown.
    """
    shares = []
    for profile in profiles:
        seconds, cpu = profile.record.step_seconds, profile.record.step_cpu_seconds
        slow = find_slow_steps(seconds)
        if slow is not None and cpu and len(cpu) == len(seconds):
            more = fmean(cpu[index] for index in slow.indices) - _fast_mean(cpu)
            shares.append(more / slow.extra)
    if not shares:
        return ()
    share = median(shares)
    doing = "it waits, as for input, a lock or a sleep"
    if share >= _BUSY:
        doing = "it computes, as Python, its garbage collector or operations do"
    return (f"{number(max(0.0, share))} CPU seconds per second of a pause: {doing}",)
