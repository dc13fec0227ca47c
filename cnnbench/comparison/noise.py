"""The A/A spread of configurations: how far apart runs of the very same thing lie."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.comparison.comparability import Group, differences
from cnnbench.comparison.configuration import label
from cnnbench.comparison.evidence import aa_spread, usable
from cnnbench.comparison.matching import match
from cnnbench.comparison.metrics import Metric
from cnnbench.comparison.policy import Policy
from cnnbench.comparison.reasons import count


class Noise:
    """Spreads of an A/A measurement, by the configurations they hold for.

    Attributes:
      notes: what could not be used, one sentence each.
    """

    def __init__(
        self,
        base: Sequence[Group],
        aa: Sequence[Group],
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
        self._groups: dict[str, Group] = {}
        self.notes: list[str] = []
        for one, other in match(base, aa, patterns):
            if one is not None and other is not None:
                self._add(one, other, patterns)
        missing = sum(one.configuration.key not in self._groups for one in base)
        if aa and missing:
            found = count(missing, "configuration", "configurations")
            self.notes.append(f"no A/A spread for {found}: the threshold alone is the floor")

    def of(self, group: Group, metric: Metric) -> float | None:
        """The spread for a configuration of BASE; None if it was not measured."""
        measured = self._groups.get(group.configuration.key)
        if measured is None:
            return None
        values = [metric.value(record) for record in measured.records if record.status == "ok"]
        known = [value for value in values if value is not None and usable(value, metric)]
        if len(known) < self._policy.min_processes:
            return None
        return aa_spread(known, self._policy, metric)

    def _add(self, base: Group, aa: Group, patterns: tuple[str, ...]) -> None:
        unlike = [one for one in differences(base, aa, patterns) if one.blocks]
        runs = sum(record.status == "ok" for record in aa.records)
        name = label(base.configuration)
        if unlike:
            side = str(unlike[0]).replace(" in NEW", " in the A/A runs")
            self.notes.append(f"A/A runs of {name} cannot be used: {side}")
        elif runs < self._policy.min_processes:
            found = count(runs, "run", "runs")
            self.notes.append(
                f"A/A runs of {name} cannot be used: {found}, "
                f"at least {self._policy.min_processes} are needed"
            )
        else:
            self._groups[base.configuration.key] = aa
