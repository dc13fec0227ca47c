"""Disturbances of a comparison's runs, and quantities that are judged if they occur.

If slow steps change the throughput, the median step is reported, too.

If at least half of the runs on CPUs were disturbed in their timed steps, throughput and CPU time
per step are both tested, each at half of the significance level (Bonferroni). Whether a run was
disturbed does not depend on which side is called B, so the tests remain exact. The verdict is:

* slower or faster, if one of the two has this verdict and the other does not have the opposite;
* same, if the throughput has this verdict, or if the CPU time has it and the throughput neither
  differs significantly nor has an estimate beyond the floor;
* otherwise inconclusive.

For error rates under load, see docs/evidence.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from cnnbench.base.inference import paired_shift, smallest_p
from cnnbench.base.slow_steps import further_cost
from cnnbench.base.stats import median
from cnnbench.base.text import count, percent
from cnnbench.judge.compare.comparability import Group
from cnnbench.judge.compare.estimate import (
    TwoSamples,
    Verdict,
    compute_evidence,
    exceeds,
    magnitude_text,
    size,
    spread_of,
)
from cnnbench.judge.compare.judgement import Judgement
from cnnbench.judge.metrics.measurement import (
    CPU_TIME,
    THROUGHPUT,
    Measurement,
    Policy,
    slow_steps_of,
)
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.metric import Metric
from cnnbench.records.run import RunRecord

_BUSY = 0.05
"""Minimum number of CPUs used by other programs that is mentioned."""

_BY_OTHERS = frozenset(("load", "steal"))


def disturbance_text(measurements: Iterable[Measurement]) -> str:
    """Text with the number of disturbed runs and the causes; "" without conditions in records."""
    checked = [
        record
        for record in measurements
        if isinstance(record, RunRecord) and record.conditions is not None
    ]
    if not checked:
        return ""
    by_run = [(record, _disturbances(record)) for record in checked]
    names = dict.fromkeys(name for _, own in by_run for name in own)
    runs_by_name = {name: [record for record, own in by_run if name in own] for name in names}
    if not runs_by_name:
        most = _amount("load", checked) or "as far as they could be checked"
        return f"none of {count(len(checked), 'run', 'runs')} was disturbed ({most})"
    disturbed = sum(bool(own) for _, own in by_run)
    verb = "was" if disturbed == 1 else "were"
    causes = [
        f"{CONDITIONS.get(name, name)} in {len(runs)}"
        + (f" ({amount})" if (amount := _amount(name, runs)) else "")
        for name, runs in sorted(runs_by_name.items(), key=lambda item: -len(item[1]))
    ]
    return f"{disturbed} of {len(checked)} runs {verb} disturbed: {', '.join(causes)}"


def mostly_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Whether other programs or machines used the CPUs in at least half of the runs."""
    disturbed = sum(not _BY_OTHERS.isdisjoint(_disturbances(record)) for record in measurements)
    return 2 * disturbed >= len(measurements) > 0


def others_text(measurements: Iterable[Measurement]) -> str:
    """Text: median number of CPUs used by other programs; "" if it is unknown or small."""
    runs = [record for record in measurements if isinstance(record, RunRecord)]
    used = _values("other_cpus", runs)
    if not used or (typical := median(used)) < _BUSY:
        return ""
    facts = runs[-1].environment
    cpus = facts.get("usable_cpus") or facts.get("logical_cpus")
    of = f" of {count(cpus, 'CPU', 'CPUs')}" if isinstance(cpus, int) else " CPUs"
    return f"other programs use {typical:.1f}{of}"


def measured_again(measurements: Iterable[Measurement]) -> tuple[int, str]:
    """Number of pairs that `cnnbench ab` measured again, and the causes as text."""
    lost: dict[object, list[tuple[str, str]]] = {}
    for record in measurements:
        # JSON of an `AbPlace`, not validated. Both records of a pair list the lost processes.
        place = record.ab or {} if isinstance(record, RunRecord) else {}
        processes = place.get("lost")
        ends = processes if isinstance(processes, (list, tuple)) else ()
        lost_processes = [
            (str(e.get("side")), str(e.get("how"))) for e in ends if isinstance(e, Mapping)
        ]
        if lost_processes:
            lost[place.get("seed"), place.get("pair")] = lost_processes
    if not lost:
        return 0, ""
    counted = Counter(process for processes in lost.values() for process in processes)
    causes = [
        f"a process of {side.upper()} was {how}" + (f" ({times} times)" if times > 1 else "")
        for (side, how), times in sorted(counted.items())
    ]
    pairs = count(len(lost), "pair was", "pairs were")
    return len(lost), f"{pairs} measured again: {', '.join(causes)}"


def _disturbances(measurement: Measurement) -> Mapping[str, None]:
    """IDs of the disturbances during the timed steps of a run, in a fixed order."""
    if not isinstance(measurement, RunRecord) or measurement.conditions is None:
        return {}
    return dict.fromkeys(note.id for note in measurement.conditions.notes if note.when == "during")


def _amount(name: str, runs: Sequence[RunRecord]) -> str:
    if name == "load" and (others := _values("other_cpus", runs)):
        return f"others kept at most {max(others):.2f} CPUs busy"
    if name == "steal" and (stolen := _values("steal_fraction", runs)):
        return f"at most {percent(max(stolen))}"
    return ""


def _values(name: str, runs: Sequence[RunRecord]) -> list[float]:
    values = (run.condition(name) for run in runs)
    return [value for value in values if value is not None]


S = TypeVar("S", bound=TwoSamples)

_FEWEST_TURNS = 4
_SETTLED: Mapping[str, Any] = dict.fromkeys(("needed", "more", "at_least", "new_experiment"))
_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}

_WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
_SPINS = "more threads are at work, or threads that wait keep a CPU busy"


def cpu_time_cases(
    throughput: S, base: Group, new: Group, of_aa: Sequence[Measurement], policy: Policy
) -> tuple[S, S] | None:
    """Throughput and CPU time of disturbed pairs, each with its share of the significance level.

    None if only the throughput decides. That is the case for runs that are not paired, were not
    disturbed, did not compute on a CPU in one process, or have no CPU time.
    """
    runs = [record for record in (*base.records, *new.records) if isinstance(record, RunRecord)]
    measured = [CPU_TIME.value(run) for run in runs]
    if (
        throughput.metric is not THROUGHPUT
        or not throughput.paired
        or len(runs) != len(base.records) + len(new.records)
        or any(run.cluster or not run.placement or run.placement.device != "cpu" for run in runs)
        or not all(measured)
        or not mostly_disturbed(runs)
    ):
        return None
    values = tuple(value for value in measured if value)
    pairs = len(base.records)
    cpu_time = replace(
        throughput,
        base=values[:pairs],
        new=values[pairs:],
        metric=CPU_TIME,
        noise=spread_of(of_aa, CPU_TIME, policy),
        differences=[
            log_cpu_time_ratio(a, b) for a, b in zip(runs[:pairs], runs[pairs:], strict=True)
        ],
    )
    return with_shared_level(throughput, cpu_time, policy)


def log_cpu_time_ratio(base: RunRecord, new: RunRecord) -> float:
    """Log ratio of the CPU time per step, NEW to BASE; computed from turns if possible."""
    means = [float(np.mean(run.step_cpu_seconds)) for run in (base, new)]
    return log_ratio_of_turns(
        cpu_seconds_by_turn(base), cpu_seconds_by_turn(new), math.log(means[1] / means[0])
    )


def log_ratio_of_turns(base: Sequence[float], new: Sequence[float], of_means: float) -> float:
    """The Hodges-Lehmann centre of differences by turn; `of_means` for too few turns."""
    turns = [
        math.log(after / before)
        for before, after in zip(base, new, strict=False)
        if before > 0 and after > 0
    ]
    return paired_shift(turns, 0.5).estimate if len(turns) >= _FEWEST_TURNS else of_means


def cpu_seconds_by_turn(run: RunRecord) -> tuple[float, ...]:
    """CPU seconds per step in each turn of a run; empty if the run took no turns."""
    if run.turns is None:
        return ()
    starts = [start - 1 for start in run.turns.starts]
    times = np.asarray(run.step_cpu_seconds)
    return tuple(float(times[a:b].mean()) for a, b in pairwise([*starts, len(times)]) if a < b)


def with_shared_level(throughput: S, cpu_time: S, policy: Policy) -> tuple[S, S]:
    """Splits the level equally, or assigns it to CPU time if there are too few pairs for half."""
    pairs = len(throughput.base)
    share = 0.5 if smallest_p(pairs, pairs, paired=True) <= policy.alpha / 2 else 0.0
    return replace(throughput, share=share), replace(cpu_time, share=1 - share)


def joint_judgement(
    throughput: Judgement, cpu_time: Judgement, policy: Policy, runs: Sequence[Measurement]
) -> Judgement:
    """The judgement of the throughput, with the combined verdict of throughput and CPU time."""
    speed, work = throughput.verdict, cpu_time.verdict
    if speed in _OPPOSITE and work is _OPPOSITE[speed]:
        why = _WAITS if speed is Verdict.SLOWER else _SPINS
        reason = f"{_amount_of(THROUGHPUT, throughput)}, but {_cpu_amount(cpu_time)}: {why}"
        return replace(throughput, verdict=Verdict.INCONCLUSIVE, reason=reason, **_SETTLED)
    if speed is Verdict.SLOWER and work is Verdict.SAME:
        return replace(throughput, reason=f"{throughput.reason}; CPU time is the same: {_WAITS}")
    if speed in _OPPOSITE or (speed is Verdict.SAME and work not in _OPPOSITE):
        return throughput
    others = others_text(runs) or "other machines use the CPUs"
    if work in _OPPOSITE:
        reason = f"{_cpu_amount(cpu_time)}, p = {cpu_time.p_adjusted:.2g}; {others}"
        return replace(
            throughput, verdict=work, reason=reason, decided_by=CPU_TIME.name, **_SETTLED
        )
    if work is not Verdict.SAME:
        if (cpu_time.needed or math.inf) >= (throughput.needed or math.inf):
            return throughput
        # The number of further pairs is that of the quantity that needs fewer.
        sooner = {name: getattr(cpu_time, name) for name in _SETTLED}
        return replace(throughput, reason=f"CPU time: {cpu_time.reason}", **sooner)
    p, change, floor = throughput.p_adjusted, throughput.change, throughput.floor
    if (
        change is None
        or floor is None
        or (p is not None and p <= policy.alpha)
        or exceeds(size(change, THROUGHPUT), floor)
    ):
        reason = f"{throughput.reason}; CPU time is the same: perhaps {_WAITS}"
        return replace(throughput, reason=reason)
    reason = f"CPU time: {cpu_time.reason}; {others}"
    return replace(
        throughput, verdict=Verdict.SAME, reason=reason, decided_by=CPU_TIME.name, **_SETTLED
    )


def _cpu_amount(judgement: Judgement) -> str:
    return f"CPU time {_amount_of(CPU_TIME, judgement)}"


def _amount_of(metric: Metric, judgement: Judgement) -> str:
    return magnitude_text(metric, judgement.change, judgement.low, judgement.high)


@dataclass(frozen=True, kw_only=True)
class MedianStep:
    """The change of the median step, which differs from the change of the throughput.

    Attributes:
      change: change of the ratio of global batch and median step, as a share of the base.
      slow: texts about the slow steps of BASE and NEW. "" for a side whose slow steps cost at most
        the threshold. Both are "" if the costs differ by at most the threshold, because then slow
        steps did not change the speed.
    """

    change: float
    slow: tuple[str, str]

    def text(self, names: tuple[str, str]) -> str:
        """Text such as "in NEW every third step takes 90 ms more; median step +0.1 %"."""
        named_slow_steps = zip(names, self.slow, strict=True)
        parts = [f"in {name} {slow}" for name, slow in named_slow_steps if slow]
        return "; ".join([*parts, f"at the median step {THROUGHPUT.change_text(self.change)}"])


def median_step(
    case: TwoSamples,
    change: float | None,
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    policy: Policy,
) -> MedianStep | None:
    """The change of the median step; None unless it differs by more than the threshold.

    Args:
      case: the judged throughputs of successful runs.
      change: the judged change of the throughput; None if unknown.
      base, new: the runs of both sides.
    """
    sides = [
        [run for run in side if isinstance(run, RunRecord) and run.status == "ok"]
        for side in (base, new)
    ]
    timed = all(side and all(run.step_seconds and run.batch for run in side) for side in sides)
    if case.metric is not THROUGHPUT or change is None or change <= -1 or not timed:
        return None
    rates = [
        [run.batch.global_ / median(run.step_seconds) for run in side if run.batch]
        for side in sides
    ]
    mean_change = compute_evidence(replace(case, base=rates[0], new=rates[1]), policy).change
    threshold = policy.threshold_of(THROUGHPUT)
    if not exceeds(size((1 + change) / (1 + mean_change) - 1, THROUGHPUT), threshold):
        return None
    shared = [*map(slow_steps_of, sides)]
    if abs(further_cost(*shared)) <= threshold:  # Both sides have the same slow steps.
        shared = [None, None]
    before, after = (
        slow_steps.text if slow_steps and slow_steps.cost > threshold else ""
        for slow_steps in shared
    )
    return MedianStep(change=mean_change, slow=(before, after))
