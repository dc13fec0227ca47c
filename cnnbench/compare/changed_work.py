"""The verdict on runs that had other work to do: a wider network, another batch.

Such a change can make training many times slower while every flag is the same. Whether it was
meant is for a person to say (--allow_changed_work), so it is neither a question of noise nor
"not comparable": images per second and FLOP/s are both shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.compare.comparability import Difference, Group
from cnnbench.compare.estimate import usable
from cnnbench.compare.judge import Judgement
from cnnbench.metrics.comparable_facts import WORK
from cnnbench.metrics.policy import Verdict
from cnnbench.metrics.registry import Metric, throughput
from cnnbench.records.run import RunRecord
from cnnbench.stats.descriptive import median
from cnnbench.text.numbers import number, percent


def of(base: Group, new: Group, blocking: Sequence[Difference]) -> list[Difference]:
    """The facts by which the work of a configuration differs.

    Args:
      base, new: its runs.
      blocking: facts that differ and may not.

    Returns:
      None of them if another flag differs too, which is another experiment, or if the runs of
      one side differ among themselves.
    """
    work = [one for one in blocking if one.fact in WORK]
    flags = {*base.configuration.flags, *new.configuration.flags}
    if any(one.fact in flags for one in blocking if one not in work):
        return []
    return work if all(len(one.base) == len(one.new) == 1 for one in work) else []


def judgement(base: Group, new: Group, metric: Metric, facts: str) -> Judgement:
    """The verdict, with the medians of both sides and what became of the FLOP/s.

    Args:
      base, new: runs of a configuration.
      metric: that the comparison is about.
      facts: what differs.
    """
    sides = [
        [value for value in side.values(metric) if usable(value, metric)] for side in (base, new)
    ]
    if not all(sides):
        return Judgement(verdict=Verdict.CHANGED_WORK, reason=facts)
    before, after = map(median, sides)
    change = after / before - 1 if metric.relative else after - before
    reason = f"{facts}: {metric.name} {metric.change_text(change)}"
    rates = [_flops_per_sec(side) for side in (base, new)]
    if rates[0] and rates[1]:
        texts = [f"{number(rate / 1e9)} GFLOP/s" for rate in rates if rate]
        reason += f", FLOP/s {percent(rates[1] / rates[0] - 1, signed=True)} "
        reason += f"({' to '.join(texts)})"
    return Judgement(
        verdict=Verdict.CHANGED_WORK,
        reason=reason,
        base_median=before,
        new_median=after,
        change=change,
    )


def _flops_per_sec(group: Group) -> float | None:
    """Of the runs' medians; None if no run has both a speed and a model."""
    found = [
        speed * flops
        for record in group.records
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(found) if found else None
