"""Steps of one side that now and then take longer, which means over ordinary steps leave out.

The timed steps of each process, without a profiler, show how much they cost and how often they come
(`cnnbench.base.stats.slow_steps`); the profiled ones show what ran meanwhile: the rows that take
more in slow steps than in ordinary ones of the same process.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from cnnbench.base.stats.descriptive import median
from cnnbench.base.stats.slow_steps import SlowSteps, slow_steps
from cnnbench.base.text.numbers import number, percent
from cnnbench.judge.explain.sides import LIKELY, Sides, Times
from cnnbench.judge.metrics.speed import slow_steps_text
from cnnbench.records.explanation import Cause
from cnnbench.records.step_profile import GAPS, INPUT, PROGRAM, Part, StepProfile

_RATIO = 2.0  # least ratio of the costs of any process of one side to any of the other
_BUSY = 0.5  # CPU seconds per second of a pause from which it is computing
_LARGEST = 3


def pauses(sides: Sides) -> Cause | None:
    """Slow steps that recur in all processes of one side, and hardly on the other.

    The times of the cause are seconds of slow steps beyond ordinary ones, per step.
    """
    each = [[_cost(one) for one in side.profiles] for side in (sides.a, sides.b)]
    times = Times(fmean(each[0]), fmean(each[1]), tuple(each[0]), tuple(each[1]))
    fewer, more = sorted(each, key=fmean)
    slower = (sides.a, sides.b)[each.index(more)]
    deviation = math.sqrt(times.variance)
    if (
        not sides.is_large(times)
        or min(more) <= _RATIO * max(fewer)
        or abs(times.difference) <= LIKELY * times.error_of(deviation)
    ):
        return None
    middle = sorted(slower.profiles, key=_cost)[(len(more) - 1) // 2]
    slow, _ = _recurring(middle.record.step_seconds)
    assert slow is not None  # each of these processes has a cost
    place, evidence = _place(slower.profiles)
    base, new = times.usual
    return Cause(
        kind="pauses",
        base=base,
        new=new,
        spread=2 * times.error_of(deviation),
        place=place,
        text=f"of {'AB'[each.index(more)]}, {slow_steps_text(slow)}",
        evidence=(*evidence, *_computing(slower.profiles)),
    )


def _cost(profile: StepProfile) -> float:
    """Seconds per timed step that recurring slow steps take beyond ordinary ones."""
    found, seconds = _recurring(profile.record.step_seconds)
    return 0.0 if found is None else found.cost * fmean(seconds)


def _recurring(seconds: Sequence[float]) -> tuple[SlowSteps | None, Sequence[float]]:
    """The slow steps of a process that come more than once, and the times without others."""
    while (found := slow_steps(seconds)) is not None and found.occurrences < 2:
        once = set(found.indices)
        seconds = [one for step, one in enumerate(seconds) if step not in once]
    return found, seconds


def _place(profiles: Sequence[StepProfile]) -> tuple[str, tuple[str, ...]]:
    """Where the time of slow steps goes: the place, and the largest rows as evidence."""
    extra: defaultdict[Part, float] = defaultdict(float)
    for profile in profiles:
        found = slow_steps(profile.step_seconds)
        slow = set() if found is None else set(found.indices)
        for row in profile.rows if slow else ():
            usual = median(s for step, s in enumerate(row.seconds) if step not in slow)
            extra[row.part] += sum(row.seconds[step] - usual for step in slow)
    total = sum(extra.values())
    if total <= 0:
        return "steps that were not profiled", ()
    largest = sorted(extra, key=lambda part: -extra[part])[:_LARGEST]
    told = ", ".join(f"{_words(part)} {percent(extra[part] / total, 0)}" for part in largest)
    return _words(largest[0]), (f"further time of slow profiled steps: {told}",)


def _words(part: Part) -> str:
    if part.direction == INPUT:
        return "the input pipeline"
    if part == PROGRAM:
        return "the training loop, outside the graph"
    if part == GAPS:
        return "gaps between operations, as when threads wait for a lock"
    return ", ".join(filter(None, (part.layer, part.direction)))


def _computing(profiles: Sequence[StepProfile]) -> tuple[str, ...]:
    """Whether this process computes in pauses, by the CPU time of slow timed steps."""
    shares = []
    for profile in profiles:
        seconds, cpu = profile.record.step_seconds, profile.record.step_cpu_seconds
        found = slow_steps(seconds)
        if found is None or not cpu or len(cpu) != len(seconds):
            continue
        slow = set(found.indices)
        usual = median(one for step, one in enumerate(cpu) if step not in slow)
        shares.append((fmean(cpu[step] for step in slow) - usual) / found.extra)
    if not shares:
        return ()
    share = median(shares)
    doing = (
        "it computes, as Python, its garbage collector or operations do"
        if share >= _BUSY
        else "it waits, as for input, a lock or a sleep"
    )
    return (f"{number(max(0.0, share))} CPU seconds per second of a pause: {doing}",)
