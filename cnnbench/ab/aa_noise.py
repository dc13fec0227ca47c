"""What an A/A measurement found out: how far runs of the very same thing lie apart."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.compare import Comparison, Metric, Policy, aa_spread
from cnnbench.compare.estimate import usable
from cnnbench.text.numbers import count


def spreads(comparison: Comparison, policy: Policy) -> dict[str, tuple[int, float]]:
    """By metric the number of processes and the A/A spread, over both sides together.

    Metrics that fewer than `Policy.min_processes` measured are left out.
    """
    found = {}
    for metric in comparison.metrics:
        values = _values(comparison, metric)
        if len(values) >= policy.min_processes:
            found[metric.name] = (len(values), aa_spread(values, policy, metric))
    return found


def lines(comparison: Comparison, policy: Policy) -> list[str]:
    """The same in words."""
    found = spreads(comparison, policy)
    told = [
        f"A/A spread of {metric.name}: {metric.change_text(found[metric.name][1], signed=False)} "
        f"({policy.noise_factor:g} standard deviations of "
        f"{count(found[metric.name][0], 'process', 'processes')})"
        for metric in comparison.metrics
        if metric.name in found
    ]
    return told or [f"no A/A spread: it needs at least {policy.min_processes} processes"]


def _values(comparison: Comparison, metric: Metric) -> Sequence[float]:
    records = [run for entry in comparison.entries for run in (*entry.base, *entry.new)]
    values = [metric.value(run) for run in records if run.status == "ok"]
    return [value for value in values if value is not None and usable(value, metric)]
