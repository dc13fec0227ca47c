"""The first two lines of a comparison: the answer and the advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import number
from cnnbench.judge.compare.disturbance import others_text
from cnnbench.judge.compare.estimate import unscaled
from cnnbench.judge.compare.judge import Verdict, magnitude, too_many
from cnnbench.judge.compare.result import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.metrics.registry import CPU_TIME, SPEEDS
from cnnbench.records.run import RunRecord

_GAP = 1.5
"""Ratio of two speeds of like processes, with each group of processes within its square root."""

_SHORT_SECONDS = 4.0
"""Timed loops shorter than this should be made longer first."""


def opening(comparison: Comparison) -> list[str]:
    """The first lines of every output: the answer, its cause, the advice, a command."""
    lines = (answer(comparison), why(comparison), advice(comparison), comparison.next_step)
    return [line for line in lines if line]


def answer(comparison: Comparison) -> str:
    """The outcome of the worst configuration, and a sentence per further metric that got worse."""
    entries = [entry for entry in comparison.by_severity() if entry.decides]
    if not entries:
        return "Nothing was compared."
    worst = entries[0]
    found = _found(comparison, worst)
    if len(entries) > 1:
        alike = sum(entry.main.verdict is worst.main.verdict for entry in entries)
        how_many = f"{alike} of {len(entries)} configurations {worst.main.word}"
        if worst.main.verdict is Verdict.SAME:
            found = f"All {len(entries)} configurations are the same."
        else:
            found = f"{how_many}; {worst.name}: {found}"
    return " ".join([found, *_further(comparison, entries)])


def why(comparison: Comparison) -> str:
    """Where the difference is, in one sentence; "" if nothing was profiled."""
    return "" if comparison.explanation is None else comparison.explanation.answer


def advice(comparison: Comparison) -> str:
    """How to settle the first inconclusive configuration, in one sentence; "" if not needed."""
    entry = next(iter(undecided(comparison)), None)
    if entry is None or entry.main.judgement.needed is None:
        return ""
    of = f"{entry.name}: " if len(comparison.entries) > 1 else ""
    if not too_noisy(entry.main):
        more = max(1, _more(entry.main))
        one, many = ("pair", "pairs") if comparison.paired else ("process", "processes")
        each = "" if comparison.paired else " of each side"
        return f"{of}About {more} more {one if more == 1 else many}{each} settle it."
    remedies = list(_remedies(entry))
    listed = ", ".join(remedies[:-1]) + (" or " if remedies[1:] else "") + remedies[-1]
    what = "pairs" if comparison.paired else "processes"
    return f"{of}More {what} will not help: use {listed}."


def undecided(comparison: Comparison) -> list[ComparedConfiguration]:
    """Inconclusive configurations, those with an estimate of what settles them first."""
    found = [
        entry
        for entry in comparison.by_severity()
        if entry.decides and entry.main.verdict is Verdict.INCONCLUSIVE
    ]
    return sorted(found, key=lambda entry: entry.main.judgement.needed is None)


def too_noisy(result: MetricResult) -> bool:
    """Whether the number of further processes is too large to be useful advice."""
    return too_many(_more(result))


def two_speeds(entry: ComparedConfiguration) -> tuple[float, float] | None:
    """Seconds per step of two clusters of like processes, the faster first; None if only one.

    On busy CPUs a step of several threads has two speeds, and whole processes have one of them.
    """
    sides = [
        [
            median(run.step_seconds)
            for run in side
            if isinstance(run, RunRecord) and run.step_seconds
        ]
        for side in (entry.base, entry.new)
    ]
    for own in sides:
        values = sorted(own)
        gaps = [after / before for before, after in pairwise(values)]
        if not gaps or max(gaps) < _GAP:
            continue
        place = gaps.index(max(gaps)) + 1
        low, high = values[:place], values[place:]
        within = max(low[-1] / low[0], high[-1] / high[0])
        if min(len(low), len(high)) > 1 and within**2 < max(gaps):
            return median(low), median(high)
    return None


def _found(comparison: Comparison, entry: ComparedConfiguration) -> str:
    base, new = comparison.names
    result = entry.main
    judgement = result.judgement
    n = f"{len(result.base)} pairs" if comparison.paired else _processes(result)
    if judgement.decided_by:
        return _by_cpu_time(comparison, entry, n)
    if result.verdict in (Verdict.SLOWER, Verdict.FASTER):
        p = f"p = {judgement.p_adjusted:.2g}"
        if result.metric in SPEEDS:
            return f"{new} is {magnitude(judgement, result.metric)}, {n}, {p}."
        name = result.metric.name
        return f"{new}: {name} {magnitude(judgement, result.metric)}, {n}, {p}."
    if result.verdict is Verdict.SAME:
        return f"{new} and {base} are the same: {_estimate(result)}, {n}."
    if result.verdict is Verdict.INCONCLUSIVE and judgement.low is not None:
        if too_noisy(result):
            return f"Too noisy to tell: {'; '.join(_noise(comparison, entry))}."
        return f"Undecided: {_estimate(result)}, {n}."
    if result.verdict is Verdict.CHANGED_WORK:
        return judgement.reason
    word = "Undecided" if result.verdict is Verdict.INCONCLUSIVE else result.word.capitalize()
    return f"{word}: {judgement.reason.rstrip('.')}."


def _by_cpu_time(comparison: Comparison, entry: ComparedConfiguration, n: str) -> str:
    base, new = comparison.names
    found = next(one for one in entry.results if one.metric is CPU_TIME)
    if found.verdict is Verdict.SAME:
        return f"{new} and {base} are the same: CPU time {_estimate(found)}, {n}."
    size = magnitude(found.judgement, CPU_TIME)
    p = f"p = {found.judgement.p_adjusted:.2g}"
    return f"{new} is {entry.main.word}: CPU time {size}, {n}, {p}."


def _further(comparison: Comparison, entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """A sentence for each further metric with a regression, about its worst configuration."""
    told = set()
    for entry in entries:
        for result in entry.results:
            name = result.metric.name
            if result is entry.main or name in told or not comparison.is_regression(entry, result):
                continue
            told.add(name)
            of = f" in {entry.name}" if len(entries) > 1 else ""
            yield f"{name.capitalize()}: {magnitude(result.judgement, result.metric)}{of}."


def _estimate(result: MetricResult) -> str:
    judgement, metric = result.judgement, result.metric
    assert judgement.change is not None
    text = metric.change_text(judgement.change)
    if judgement.low is None or judgement.high is None:
        return text
    return f"{text} ({metric.range_text(judgement.low, judgement.high)})"


def _processes(result: MetricResult) -> str:
    return f"{len(result.base)} and {len(result.new)} processes"


def _more(result: MetricResult) -> int:
    """Number of further pairs or processes per side that decide it; negative if unknown."""
    return (result.judgement.needed or 0) - min(len(result.base), len(result.new))


def _noise(comparison: Comparison, entry: ComparedConfiguration) -> Iterator[str]:
    found = two_speeds(entry)
    if found is not None:
        quick, slow = (number(1000 * seconds) for seconds in found)
        yield f"processes run at two speeds, about {quick} and {slow} ms a step"
    elif (scatter := entry.main.judgement.scatter) is not None:
        what, metric = "pairs" if comparison.paired else "processes", entry.main.metric
        yield f"{what} differ by {metric.change_text(unscaled(scatter, metric), signed=False)}"
    if others := others_text([*entry.base, *entry.new]):
        yield others


def _remedies(entry: ComparedConfiguration) -> Iterator[str]:
    runs = [one for side in (entry.base, entry.new) for one in side if isinstance(one, RunRecord)]
    timed = [sum(run.step_seconds) for run in runs if run.step_seconds]
    if timed and median(timed) < _SHORT_SECONDS:
        yield "longer runs (five seconds of timed steps)"
    flags = runs[-1].config if runs else {}
    if flags.get("device") == "cpu" and flags.get("num_intra_threads") != 1:
        yield "--num_intra_threads=1"
    yield "an idle machine (cnnbench env --check)"
