"""Runs that other programs disturbed: which they are, which pairs were measured again, and how
disturbed pairs are judged, which also considers their CPU time.

If at least half of the runs on CPUs were disturbed in their timed steps, throughput and CPU time
are both tested, each at half of the significance level (Bonferroni). The tests remain exact,
because exchanging BASE and NEW does not change which runs were disturbed. The verdict combines the
verdicts on throughput and CPU time:

* slower or faster, if one verdict is slower or faster and the other verdict is not the opposite;
* same or not slower, if this is the verdict on throughput, or if it is the verdict on CPU time and
  throughput is neither significantly worse nor worse by the smallest relevant change;
* inconclusive in all other cases.

docs/evidence.md contains the error rates under load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from cnnbench.base.inference import paired_shift
from cnnbench.base.lazy_numpy import np
from cnnbench.base.stats import median
from cnnbench.base.text import count_text, percent
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.configuration import ab_place
from cnnbench.judge.compare.estimate import Samples, exceeds
from cnnbench.judge.compare.judgement import NEEDS, Case, Judgement, Verdict
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.run import RunRecord

_BUSY = 0.05
"""If other programs used fewer CPUs than this, texts do not mention other programs."""

_BY_OTHERS = frozenset(("load", "steal"))
_WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
_SPINS = "more threads are at work, or threads that wait keep a CPU busy"
_FEWEST_TURNS = 4
_SETTLED: Mapping[str, Any] = dict.fromkeys(NEEDS)
_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}
_PASSES = (Verdict.SAME, Verdict.NOT_SLOWER, Verdict.NOT_FASTER)


def disturbance_text(measurements: Iterable[Measurement]) -> str:
    """Returns text that says how many runs were disturbed, and by what; "" if no run recorded its
    measuring conditions.
    """
    runs = (record for record in measurements if isinstance(record, RunRecord))
    checked = [run for run in runs if run.conditions is not None]
    if not checked:
        return ""
    by_run = [(record, _disturbances(record)) for record in checked]
    names = dict.fromkeys(name for _, own in by_run for name in own)
    runs_by_name = {name: [record for record, own in by_run if name in own] for name in names}
    if not runs_by_name:
        most = _amount("load", checked) or "as far as they could be checked"
        return f"none of {count_text(len(checked), 'run', 'runs')} was disturbed ({most})"
    disturbed = sum(bool(own) for _, own in by_run)
    most_first = sorted(runs_by_name.items(), key=lambda item: -len(item[1]))
    causes = ", ".join(_cause(*item) for item in most_first)
    verb, of = "was" if disturbed == 1 else "were", count_text(len(checked), "run", "runs")
    return f"{disturbed} of {of} {verb} disturbed: {causes}"


def mostly_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Whether others (programs, VMs) used the CPUs in the timed steps of half of the runs."""
    disturbed = sum(not _BY_OTHERS.isdisjoint(_disturbances(record)) for record in measurements)
    return 2 * disturbed >= len(measurements) > 0


def other_cpus_text(measurements: Iterable[Measurement]) -> str:
    """Returns text with the median number of CPUs that other programs used during the runs; "" if
    this number is unknown or small.
    """
    runs = [record for record in measurements if isinstance(record, RunRecord)]
    used = _values("other_cpus", runs)
    if not used or (typical := median(used)) < _BUSY:
        return ""
    facts = runs[-1].environment
    cpus = facts.get("usable_cpus") or facts.get("logical_cpus")
    if not isinstance(cpus, int):
        return f"other programs use {typical:.1f} CPUs"
    return f"other programs use {typical:.1f} of {count_text(cpus, 'CPU', 'CPUs')}"


def remeasured_pairs(measurements: Iterable[Measurement]) -> tuple[int, str]:
    """Returns the number of pairs that `cnnbench ab` measured again because a process was killed,
    and a text with the causes.
    """
    lost: dict[object, list[tuple[str, str]]] = {}
    for record in measurements:
        place = ab_place(record)
        ends = place.get("lost")
        ends = ends if isinstance(ends, (list, tuple)) else ()
        sides = [(str(e.get("side")), str(e.get("how"))) for e in ends if isinstance(e, Mapping)]
        if sides:
            lost[place.get("seed"), place.get("pair")] = sides
    if not lost:
        return 0, ""
    counted = Counter(process for processes in lost.values() for process in processes)
    causes = [
        f"a process of {side.upper()} was {how}{f' ({times} times)' if times > 1 else ''}"
        for (side, how), times in sorted(counted.items())
    ]
    pairs = count_text(len(lost), "pair was", "pairs were")
    return len(lost), f"{pairs} measured again: {', '.join(causes)}"


def _disturbances(measurement: Measurement) -> Mapping[str, None]:
    """Returns the IDs of the disturbances in a run's timed steps: the keys, in a fixed order."""
    if not isinstance(measurement, RunRecord) or measurement.conditions is None:
        return {}
    return dict.fromkeys(note.id for note in measurement.conditions.notes if note.when == "during")


def _cause(name: str, runs: Sequence[RunRecord]) -> str:
    text, amount = f"{CONDITIONS.get(name, name)} in {len(runs)}", _amount(name, runs)
    return f"{text} ({amount})" if amount else text


def _amount(name: str, runs: Sequence[RunRecord]) -> str:
    if name == "load" and (others := _values("other_cpus", runs)):
        return f"others kept at most {max(others):.2f} CPUs busy"
    if name == "steal" and (stolen := _values("steal_fraction", runs)):
        return f"at most {percent(max(stolen))}"
    return ""


def _values(name: str, runs: Sequence[RunRecord]) -> list[float]:
    values = (run.condition(name) for run in runs)
    return [value for value in values if value is not None]


# The judgement of disturbed pairs.


def with_cpu_time(cases: list[Case], base: MeasurementGroup, new: MeasurementGroup) -> list[Case]:
    """Returns the cases of a configuration. If its pairs were disturbed, throughput and CPU time
    are both tested: they answer the same question, and each has half of alpha.
    """
    by_metric = {case.samples.metric.name: case for case in cases}
    speed = by_metric.get(THROUGHPUT.name)
    if speed is None or speed.known is not None:
        return cases
    samples = _cpu_time_samples(speed.samples, base, new)
    if samples is None:
        return cases
    requested = by_metric.get(CPU_TIME.name)
    own = speed.policy.replace(asked=False) if requested is None else requested.policy
    policy = own.replace(split=0.5, questions=speed.policy.questions)
    by_metric[THROUGHPUT.name] = Case(speed.samples, speed.policy.replace(split=0.5))
    by_metric[CPU_TIME.name] = Case(samples, policy)
    return [*by_metric.values()]


def _cpu_time_samples(
    throughput: Samples, base: MeasurementGroup, new: MeasurementGroup
) -> Samples | None:
    """Returns the CPU times of pairs that must be judged together with their throughput; None if
    only the throughput is judged.

    Only the throughput is judged if runs are not paired, were not disturbed, did not compute on a
    CPU in one process, or recorded no CPU time.
    """
    runs = [record for record in (*base.records, *new.records) if isinstance(record, RunRecord)]
    measured = [CPU_TIME.value(run) for run in runs]
    if (
        not throughput.paired
        or any(run.cluster or not run.placement or run.placement.device != "cpu" for run in runs)
        or not all(measured)
        or not mostly_disturbed(runs)
    ):
        return None
    values = tuple(value for value in measured if value)
    pairs = len(base.records)
    ratios = [log_cpu_time_ratio(a, b) for a, b in zip(runs[:pairs], runs[pairs:], strict=True)]
    return replace(
        throughput,
        base=values[:pairs],
        new=values[pairs:],
        metric=CPU_TIME,
        differences=ratios,
    )


def log_cpu_time_ratio(base: RunRecord, new: RunRecord) -> float:
    """Returns the logarithm of the ratio of the CPU times per step, NEW to BASE. If the processes
    were interleaved in short time slices, the ratio is computed from the time slices.
    """
    means = [float(np.mean(run.step_cpu_seconds)) for run in (base, new)]
    slices = [seconds_by_slice(run) for run in (base, new)]
    return log_ratio_of_slices(slices[0], slices[1], math.log(means[1] / means[0]))


def log_ratio_of_slices(
    base: Sequence[float], new: Sequence[float], log_ratio_of_means: float
) -> float:
    """Returns the Hodges-Lehmann estimate of the logarithm of the ratio NEW to BASE. Each value is
    from a time slice in which the other process of the pair waited. With too few time slices,
    returns `log_ratio_of_means`.
    """
    turns = [
        math.log(after / before)
        for before, after in zip(base, new, strict=False)
        if before > 0 and after > 0
    ]
    return paired_shift(turns, 0.5).estimate if len(turns) >= _FEWEST_TURNS else log_ratio_of_means


def seconds_by_slice(run: RunRecord) -> tuple[float, ...]:
    """Returns the mean CPU seconds per step in each time slice of a run, during which the other
    process of the pair waited; () if the processes were not interleaved.
    """
    if run.turns is None:
        return ()
    starts = [start - 1 for start in run.turns.starts]
    times = np.asarray(run.step_cpu_seconds)
    return tuple(float(times[a:b].mean()) for a, b in pairwise([*starts, len(times)]) if a < b)


def joint_judgement(
    throughput: Judgement, cpu_time: Judgement, policy: Policy, runs: Sequence[Measurement]
) -> Judgement:
    """Returns the judgement of the throughput with a verdict that combines the verdicts on
    throughput and CPU time. `policy` is the policy for the throughput.
    """
    speed, work = throughput.verdict, cpu_time.verdict
    like = "the same" if work is Verdict.SAME else work.word(CPU_TIME)
    if speed in _OPPOSITE and work is _OPPOSITE[speed]:
        sizes = phrases.size_text(THROUGHPUT, throughput), phrases.size_text(CPU_TIME, cpu_time)
        why = _WAITS if speed is Verdict.SLOWER else _SPINS
        reason = f"{sizes[0]}, but CPU time {sizes[1]}: {why}"
        undecided = Verdict.INCONCLUSIVE
        return replace(throughput, verdict=undecided, reason=reason, note=None, **_SETTLED)
    if speed is Verdict.SLOWER and work in _PASSES:
        return throughput.adding(f"CPU time is {like}: {_WAITS}")
    if speed in _OPPOSITE or (speed in _PASSES and work not in _OPPOSITE):
        return throughput
    others = other_cpus_text(runs) or "other machines use the CPUs"
    if work in _OPPOSITE:
        size, p = phrases.size_text(CPU_TIME, cpu_time), phrases.chance(cpu_time.p_adjusted)
        return _decided_by_cpu(throughput, work, f"CPU time {size}, {p}; {others}", others)
    if work not in _PASSES:
        if (cpu_time.needed or math.inf) >= (throughput.needed or math.inf):
            return throughput
        # CPU time needs fewer pairs for a verdict than throughput does, so the text recommends the
        # number of pairs for CPU time.
        sooner = {name: getattr(cpu_time, name) for name in NEEDS}
        return replace(throughput, reason=f"CPU time: {cpu_time.reason}", note=None, **sooner)
    direction = _direction(throughput, policy)
    if direction is None or direction in policy.questions:
        return throughput.adding(f"CPU time is {like}: perhaps {_WAITS}")
    if direction and work is Verdict.SAME:
        # The throughput may have changed, but only in the direction that the user does not ask
        # about.
        work = Verdict.NOT_SLOWER if direction == "faster" else Verdict.NOT_FASTER
    return _decided_by_cpu(throughput, work, f"CPU time: {cpu_time.reason}; {others}", None)


def _decided_by_cpu(
    throughput: Judgement, verdict: Verdict, reason: str, note: str | None
) -> Judgement:
    return replace(
        throughput, verdict=verdict, reason=reason, note=note, decided_by=CPU_TIME.name, **_SETTLED
    )


def _direction(throughput: Judgement, policy: Policy) -> str | None:
    """Returns "slower" or "faster" if the throughput changed significantly, or if its estimate
    exceeds the smallest relevant change; otherwise "". Returns None if the estimate is unknown.

    CPU time cannot see waiting, so it cannot exclude a change that the throughput seems to show.
    """
    p, change, floor = throughput.p_adjusted, throughput.change, throughput.floor
    if change is None or floor is None:
        return None
    is_significant = p is not None and p <= policy.alpha
    if is_significant or exceeds(change, THROUGHPUT, floor):
        return "slower" if change < 0 else "faster"
    return ""
