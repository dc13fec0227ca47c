"""The A/A spread of configurations: how far apart runs of the very same thing lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from cnnbench.compare.comparability import Group, M, differences
from cnnbench.compare.configuration import label
from cnnbench.compare.estimate import aa_spread, usable
from cnnbench.compare.kinds import KINDS
from cnnbench.compare.matching import match
from cnnbench.metrics.policy import Policy
from cnnbench.metrics.registry import Metric
from cnnbench.text.numbers import count

_NAMED = 5
"""Configurations that are named one by one if the same reason keeps them from being used."""


class Noise(Generic[M]):
    """Spreads of an A/A measurement, by the configurations they hold for.

    Attributes:
      notes: what could not be used, one sentence each.
    """

    def __init__(
        self,
        base: Sequence[Group[M]],
        aa: Sequence[Group[M]],
        policy: Policy,
        patterns: tuple[str, ...] = (),
    ) -> None:
        """Finds the A/A runs of each configuration.

        Args:
          base: the configurations that spreads are wanted for.
          aa: the configurations measured; those on another machine, say, are left out.
          policy: the constants.
          patterns: of the facts that may differ.
        """
        self._policy = policy
        self._groups: dict[str, Group[M]] = {}
        unusable: dict[str, list[str]] = {}
        for one, other in match(base, aa, patterns):
            if one is not None and other is not None:
                reason = self._add(one, other, patterns)
                if reason is not None and KINDS[one.configuration.kind].decides:
                    unusable.setdefault(reason, []).append(label(one.configuration))
        self.notes = [note for reason, names in unusable.items() for note in _notes(reason, names)]
        missing = sum(
            one.configuration.key not in self._groups and KINDS[one.configuration.kind].decides
            for one in base
        )
        if aa and missing:
            found = count(missing, "configuration", "configurations")
            self.notes.append(f"no A/A spread for {found}: the threshold alone is the floor")

    def of(self, group: Group[M], metric: Metric) -> float | None:
        """The spread for a configuration of BASE; None if it was not measured."""
        measured = self._groups.get(group.configuration.key)
        if measured is None:
            return None
        values = [metric.value(record) for record in measured.records if record.status == "ok"]
        known = [value for value in values if value is not None and usable(value, metric)]
        if len(known) < self._policy.min_processes:
            return None
        return aa_spread(known, self._policy, metric)

    def _add(self, base: Group[M], aa: Group[M], patterns: tuple[str, ...]) -> str | None:
        """Keeps the runs, or says why they cannot be used."""
        unlike = [one for one in differences(base, aa, patterns) if one.blocks]
        runs = sum(record.status == "ok" for record in aa.records)
        if unlike:
            return str(unlike[0]).replace(" in NEW", " in the A/A runs")
        if runs < self._policy.min_processes:
            found = count(runs, "run", "runs")
            return f"{found}, at least {self._policy.min_processes} are needed"
        self._groups[base.configuration.key] = aa
        return None


def _notes(reason: str, names: Sequence[str]) -> list[str]:
    """What cannot be used and why; of many configurations the first is named."""
    if len(names) > _NAMED:
        names = [f"{names[0]} and {len(names) - 1} more configurations"]
    return [f"A/A runs of {name} cannot be used: {reason}" for name in names]
