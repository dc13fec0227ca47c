"""The A/A spread of configurations: scatter between repeated runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.base.text.numbers import count
from cnnbench.judge.compare.comparability import Group, differences
from cnnbench.judge.compare.configuration import label
from cnnbench.judge.compare.estimate import aa_spread, usable
from cnnbench.judge.compare.matching import match
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.metrics.measurement import CONTEXT, Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import Metric

_NAMED = 5
"""Largest number of configurations with the same reason that are named one by one."""


def usable_groups(
    base: Sequence[Group], aa: Sequence[Group], policy: Policy, patterns: tuple[str, ...] = ()
) -> tuple[dict[str, Group], list[str]]:
    """A/A runs of the configurations of `base`, by key, and notes on those that cannot be used."""
    found: dict[str, Group] = {}
    refused: dict[str, list[str]] = {}
    for one, other in match(base, aa, patterns):
        if one is None or other is None:
            continue
        reason = _refusal(one, other, policy, patterns)
        if reason is None:
            found[one.configuration.key] = other
        elif one.configuration.kind not in CONTEXT:
            refused.setdefault(reason, []).append(label(one.configuration))
    notes = []
    for reason, names in refused.items():
        if len(names) > _NAMED:
            names = [f"{names[0]} and {len(names) - 1} more configurations"]
        notes += [f"A/A runs of {name} cannot be used: {reason}" for name in names]
    configurations = [one.configuration for one in base if one.configuration.kind not in CONTEXT]
    missing = sum(one.key not in found for one in configurations)
    if aa and missing:
        without = count(missing, "configuration", "configurations")
        notes.append(f"no A/A spread for {without}: the threshold alone is the floor")
    return found, notes


def spread(group: Group | None, metric: Metric, policy: Policy) -> float | None:
    """The A/A spread of a metric; None if too few of the A/A runs measured it."""
    return _spread(_values(() if group is None else group.records, metric), metric, policy)


def spread_lines(comparison: Comparison, policy: Policy) -> list[str]:
    """The A/A spread of every metric with enough values, over both sides, a line each."""
    records = [run for entry in comparison.entries for run in (*entry.base, *entry.new)]
    lines = []
    for metric in comparison.metrics:
        values = _values(records, metric)
        found = _spread(values, metric, policy)
        if found is not None:
            noise = metric.change_text(found, signed=False)
            processes = count(len(values), "process", "processes")
            deviations = f"{policy.noise_factor:g} standard deviations of {processes}"
            lines.append(f"A/A spread of {metric.name}: {noise} ({deviations})")
    return lines or [f"no A/A spread: it needs at least {policy.min_processes} processes"]


def _values(records: Iterable[Measurement], metric: Metric) -> list[float]:
    values = [metric.value(record) for record in records if record.status == "ok"]
    return [value for value in values if value is not None and usable(value, metric)]


def _spread(values: Sequence[float], metric: Metric, policy: Policy) -> float | None:
    return aa_spread(values, policy, metric) if len(values) >= policy.min_processes else None


def _refusal(base: Group, aa: Group, policy: Policy, patterns: tuple[str, ...]) -> str | None:
    for one in differences(base, aa, patterns):
        if one.blocks:
            return str(one).replace(" in NEW", " in the A/A runs")
    runs = sum(record.status == "ok" for record in aa.records)
    if runs < policy.min_processes:
        return f"{count(runs, 'run', 'runs')}, at least {policy.min_processes} are needed"
    return None
