"""CPU time as a second measure of pairs on CPUs that other programs use too.

Where at least half of the runs of a comparison were disturbed in their timed steps, the throughput
and the CPU time per step are tested at half of the level each (Bonferroni). Which runs were
disturbed does not depend on which side is called B, so this choice of the test leaves it exact.

* slower or faster: the verdict of either, unless the other one has the opposite verdict;
* same: the verdict of the throughput; or of the CPU time, where the throughput neither differs
  significantly nor has an estimate beyond the floor;
* else inconclusive.

docs/methodology.md has the error rates under load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from cnnbench.base.stats.rank_tests import paired_shift, smallest_p
from cnnbench.judge.compare.comparability import Group
from cnnbench.judge.compare.disturbance import mostly_disturbed, others_text
from cnnbench.judge.compare.estimate import TwoSamples, exceeds, size
from cnnbench.judge.compare.judge import Judgement, magnitude
from cnnbench.judge.compare.verdict import Verdict
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import CPU_TIME, THROUGHPUT
from cnnbench.records.run import RunRecord

_FEWEST_TURNS = 4
_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}

_WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
_SPINS = "more threads are at work, or threads that wait keep a CPU busy"


def cases(
    throughput: TwoSamples, base: Group, new: Group, noise: float | None, policy: Policy
) -> tuple[TwoSamples, TwoSamples] | None:
    """Throughput and CPU time of disturbed pairs, each with its share of the level.

    None where the throughput alone decides: runs that are not in pairs, were not disturbed, did not
    compute on a CPU in one process, or have no CPU time. `noise` is the A/A spread of the CPU time.
    """
    runs = [one for one in (*base.records, *new.records) if isinstance(one, RunRecord)]
    measured = [CPU_TIME.value(run) for run in runs]
    if (
        throughput.metric is not THROUGHPUT
        or not throughput.paired
        or len(runs) != len(base.records) + len(new.records)
        or not all(run.placement and run.placement.device == "cpu" for run in runs)
        or not all(run.cluster is None for run in runs)
        or not all(measured)
        or not mostly_disturbed(runs)
    ):
        return None
    values = [value for value in measured if value]
    pairs = len(base.records)
    cpu_time = TwoSamples(
        base=values[:pairs],
        new=values[pairs:],
        metric=CPU_TIME,
        paired=True,
        noise=noise,
        differences=[difference(a, b) for a, b in zip(runs[:pairs], runs[pairs:], strict=True)],
    )
    return shared(throughput, cpu_time, policy)


def difference(base: RunRecord, new: RunRecord) -> float:
    """Logarithm of the ratio of CPU time per step, NEW to BASE; of turns where these were taken."""
    means = [float(np.mean(run.step_cpu_seconds)) for run in (base, new)]
    return difference_of_turns(turn_means(base), turn_means(new), math.log(means[1] / means[0]))


def difference_of_turns(base: Sequence[float], new: Sequence[float], of_means: float) -> float:
    """The Hodges-Lehmann centre of differences of turns; `of_means` with too few turns."""
    turns = [
        math.log(after / before)
        for before, after in zip(base, new, strict=False)
        if before > 0 and after > 0
    ]
    return paired_shift(turns, 0.5).estimate if len(turns) >= _FEWEST_TURNS else of_means


def turn_means(run: RunRecord) -> tuple[float, ...]:
    """CPU seconds per step of each turn of a run; empty without turns."""
    if run.turns is None:
        return ()
    starts = [start - 1 for start in run.turns.starts]
    times = np.asarray(run.step_cpu_seconds)
    return tuple(float(times[a:b].mean()) for a, b in pairwise([*starts, len(times)]) if a < b)


def shared(
    throughput: TwoSamples, cpu_time: TwoSamples, policy: Policy
) -> tuple[TwoSamples, TwoSamples]:
    """Both samples with half of the level, or CPU time with all if pairs are too few for half."""
    pairs = len(throughput.base)
    share = 0.5 if smallest_p(pairs, pairs, paired=True) <= policy.alpha / 2 else 0.0
    return replace(throughput, share=share), replace(cpu_time, share=1 - share)


def together(
    throughput: Judgement, cpu_time: Judgement, policy: Policy, runs: Sequence[Measurement]
) -> Judgement:
    """The judgement of the throughput with the verdict of both."""
    speed, work = throughput.verdict, cpu_time.verdict
    if speed in _OPPOSITE and work is _OPPOSITE[speed]:
        why = _WAITS if speed is Verdict.SLOWER else _SPINS
        reason = f"{magnitude(throughput, THROUGHPUT)}, but {_amount(cpu_time)}: {why}"
        return replace(throughput, verdict=Verdict.INCONCLUSIVE, reason=reason, needed=None)
    if speed is Verdict.SLOWER and work is Verdict.SAME:
        return replace(throughput, reason=f"{throughput.reason}; CPU time is the same: {_WAITS}")
    if speed in _OPPOSITE:
        return throughput
    others = others_text(runs) or "other machines use the CPUs"
    if work in _OPPOSITE:
        reason = f"{_amount(cpu_time)}, p = {cpu_time.p_adjusted:.2g}; {others}"
        return replace(throughput, verdict=work, reason=reason, needed=None, decided_by="cpu_time")
    if speed is Verdict.SAME or work is not Verdict.SAME:
        needed = [one for one in (throughput.needed, cpu_time.needed) if one is not None]
        return replace(throughput, needed=min(needed, default=None))
    if _may_differ(throughput, policy):
        reason = f"{throughput.reason}; CPU time is the same: perhaps {_WAITS}"
        return replace(throughput, reason=reason)
    reason = f"CPU time: {cpu_time.reason}; {others}"
    return replace(
        throughput, verdict=Verdict.SAME, reason=reason, needed=None, decided_by="cpu_time"
    )


def _amount(judgement: Judgement) -> str:
    return f"CPU time {magnitude(judgement, CPU_TIME)}"


def _may_differ(throughput: Judgement, policy: Policy) -> bool:
    """Whether the throughput differs significantly, or is estimated to exceed the floor."""
    if throughput.change is None or throughput.floor is None:
        return True
    significant = throughput.p_adjusted is not None and throughput.p_adjusted <= policy.alpha
    return significant or exceeds(size(throughput.change, THROUGHPUT), throughput.floor)
