"""What an A/A measurement says about the noise."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.compare import Comparison, Metric, Policy, aa_spread
from cnnbench.compare.estimate import usable
from cnnbench.text.numbers import count


def aa_lines(comparison: Comparison, policy: Policy) -> list[str]:
    """The A/A noise of every metric, over both sides together, one line each.

    Args:
      comparison: of a side with itself.
      policy: metrics that fewer than its `min_processes` measured are left out.
    """
    lines = []
    for metric in comparison.metrics:
        values = _ok_values(comparison, metric)
        if len(values) >= policy.min_processes:
            noise = metric.change_text(aa_spread(values, policy, metric), signed=False)
            processes = count(len(values), "process", "processes")
            deviations = f"{policy.noise_factor:g} standard deviations of {processes}"
            lines.append(f"A/A spread of {metric.name}: {noise} ({deviations})")
    return lines or [f"no A/A spread: it needs at least {policy.min_processes} processes"]


def _ok_values(comparison: Comparison, metric: Metric) -> Sequence[float]:
    records = [run for entry in comparison.entries for run in (*entry.base, *entry.new)]
    values = [metric.value(run) for run in records if run.status == "ok"]
    return [value for value in values if value is not None and usable(value, metric)]
