"""How two sets of records are judged: thresholds, rules, metrics, and the plan of the pairs.
Shares the significance level alpha among the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.facts import expand_fact_names
from cnnbench.judge.metrics.judged import DEFAULT_METRICS, metrics_to_judge
from cnnbench.judge.metrics.measurement import CONTEXT
from cnnbench.judge.metrics.policy import Policy, asked_directions
from cnnbench.judge.metrics.rules import Rules
from cnnbench.records.codec import HIDDEN
from cnnbench.records.metric import METRICS, Metric

PlanOf: TypeAlias = Callable[[MeasurementGroup, MeasurementGroup], AnalysisSchedule | None]
"""A function from a configuration's runs of BASE and NEW to the plan for judging further pairs."""


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """How the records of BASE and NEW are judged. Raises KeyError for an unknown metric.

    Experiments of `cnnbench ab` store all fields but the last three, which depend on the pairs.

    Attributes:
      policy: constants of the tests.
      metrics: names in `METRICS`, in any order. Inconclusive results of these metrics set the exit
        code. None means `DEFAULT_METRICS`, of which only speeds set the exit code.
      allow_different: properties, groups and patterns that may differ, see --allow_different.
      allow_changed_work: whether a network or batch of a different size is no regression.
      fail_on: words of --fail_on, which say what a verdict must answer. They have priority over the
        words of rules. None means the words of rules or, without rules, the default.
      rules: rules by configuration and metric. `metrics` has priority over the metrics of rules.
      paired: if True, pairs of `cnnbench ab` are compared or, if the records contain no pairs, the
        i-th run of BASE by start time with the i-th run of NEW. If None, runs are compared in
        pairs only if the records contain pairs.
      looks: interim analyses of the experiment up to this one; empty if the pairs are judged once.
        Metrics that are not requested are judged once, because they do not end an experiment.
      plan: plan for judging further pairs, or a function from a configuration's runs of BASE and
        NEW to the plan. None means that further pairs are judged together with these pairs by the
        same policy.
    """

    policy: Policy = field(default_factory=Policy)
    metrics: tuple[str, ...] | None = None
    allow_different: tuple[str, ...] = ()
    allow_changed_work: bool = False
    fail_on: tuple[str, ...] | None = None
    rules: Rules = field(default_factory=Rules)
    paired: bool | None = field(default=None, metadata=HIDDEN)
    looks: Sequence[InterimAnalysis] = field(default=(), metadata=HIDDEN)
    plan: AnalysisSchedule | PlanOf | None = field(default=None, metadata=HIDDEN)

    def __post_init__(self) -> None:
        if unknown := set(self.metrics or ()).difference(METRICS):
            raise KeyError(", ".join(sorted(unknown)))

    @cached_property
    def applied_rules(self) -> Rules:
        """The rules that apply. If `metrics` is given, it replaces the metrics that each rule
        judges, and their shares of alpha.
        """
        return self.rules if self.metrics is None else self.rules.without_judged_metrics()

    @cached_property
    def metric_names(self) -> frozenset[str]:
        """Names, as in --metrics, of all metrics by which some configuration may be judged."""
        if self.metrics is not None:
            return frozenset(self.metrics)
        judged = (name for rule in self.rules.rules for name in rule.judge)
        return frozenset((*DEFAULT_METRICS, *judged))

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Patterns that match the flags and recorded properties that may differ."""
        return expand_fact_names(self.allow_different)


def share_alpha(
    criteria: Criteria, configurations: Sequence[tuple[str, str]]
) -> list[list[tuple[Metric, Policy]]]:
    """Returns, for each configuration, its metrics to judge with their policies. The metrics are in
    the order of `METRICS`.

    If several metrics can set the exit code, their tests share alpha. Kinds of measurements share
    alpha in the same way; see `Rules.policy_for`.

    Args:
      configurations: name and kind of measurement of each configuration.
    """
    chosen = [
        (name, kind, *_judged_requested(criteria, name, kind)) for name, kind in configurations
    ]
    deciding = [
        (kind, metric)
        for _, kind, _, requested in chosen
        for metric in requested
        if kind not in CONTEXT
    ]
    is_shared = len({metric.name for _, metric in deciding}) > 1
    kinds = len({kind for kind, _ in deciding})
    shared = []
    for name, kind, metrics, requested in chosen:
        sharing = requested if is_shared and kind not in CONTEXT else ()
        policies = []
        for metric in metrics:
            policy = criteria.applied_rules.policy_for(
                criteria.policy, name, metric, sharing, kinds
            )
            fail_on = policy.fail_on if criteria.fail_on is None else criteria.fail_on
            own = policy.replace(asked=metric in requested, questions=asked_directions(fail_on))
            policies.append((metric, own))
        shared.append(policies)
    return shared


def _judged_requested(
    criteria: Criteria, name: str, kind: str
) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """Returns the metrics by which a configuration is judged, and those of them that are requested.

    If neither `Criteria.metrics` nor a rule requests a metric, the speed counts as requested.
    """
    _, rule = criteria.applied_rules.rule_for(name)
    requested = metrics_to_judge(
        rule.judge if criteria.metrics is None else criteria.metrics, {kind}
    )
    if criteria.metrics is not None or requested:
        return requested, requested
    metrics = metrics_to_judge(DEFAULT_METRICS, {kind})
    return metrics, metrics[:1]
