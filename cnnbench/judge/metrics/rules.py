"""A team's rules for judging: thresholds, judged metrics, verdicts that set the exit code, and
accepted regressions.

`Rules` returns the `Policy` for a configuration and a metric. Flags have priority over rules.

If the key `judge` of a rule, or the user, requests several metrics, these metrics share the
significance level alpha: for each configuration, the shares add up to 1.
`cnnbench.judge.compare.judgement` tests the metrics as one family.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from functools import cache

from cnnbench.base.escapes import to_plain_line
from cnnbench.base.text import count_text, enumeration, first_few
from cnnbench.judge.metrics.judged import DEFAULT_METRICS
from cnnbench.judge.metrics.policy import FAILURES, Policy
from cnnbench.machine.repository import GitError, abbreviate_hash, find_commit_hash, git
from cnnbench.records.codec import ABSENT, NOT_EMPTY, OPTIONAL
from cnnbench.records.metric import METRICS, Metric

_COMMITS_NAMED = 5

_ALL = ("*",)
"""The patterns that match every configuration."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Regressions that do not set exit code 1: those of a commit, or all regressions of NEW.

    Attributes:
      commit: hash of the commit, which may be abbreviated; absent if --accept accepts the
        regressions of NEW.
      reason: why the regressions are accepted.
      until: the last day on which they are accepted, in UTC; absent if they are always accepted.
      by_message: whether the message of the commit accepts the regressions.
      configurations: patterns that match the names of configurations with accepted regressions.
      metrics: metrics with accepted regressions, by their names in --metrics. If it is absent,
        regressions of all metrics are accepted.
      results: words of --fail_on whose results are accepted. If it is absent, all are.
    """

    commit: str = field(default="", metadata=NOT_EMPTY)
    reason: str
    until: str = field(default="", metadata=NOT_EMPTY)
    by_message: bool = field(default=False, metadata=NOT_EMPTY)
    configurations: tuple[str, ...] = field(default=_ALL, metadata=OPTIONAL)
    metrics: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)
    results: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)

    @property
    def has_ended(self) -> bool:
        """Whether the last day on which the regressions are accepted is over."""
        if not self.until:
            return False
        return datetime.now(timezone.utc).date() > date.fromisoformat(self.until)

    @property
    def source_text(self) -> str:
        """Names the commit, the day and the reason: "commit 3f2a1bc until 2027-03-31 (reason)"."""
        parts = ["--accept"]
        if self.commit:
            whose = "the message of commit" if self.by_message else "commit"
            parts = [f"{whose} {abbreviate_hash(self.commit)}"]
        parts += [f"until {self.until}"] if self.until else []
        return f"{' '.join(parts)} ({self.reason})"

    def accepts_result(self, configuration: str, metric: Metric, result: str) -> bool:
        """Whether it accepts `result`, a word of --fail_on, of a configuration and a metric."""
        return (
            result in (self.results or FAILURES)
            and (not self.metrics or not _selecting_names(metric).isdisjoint(self.metrics))
            and _matches(configuration, self.configurations)
        )


_ACCEPTING = re.compile(r"cnnbench-accept:\s*(slower|changed)\s+([^:]*[^:\s])\s*:\s*(\S.*)")
_ACCEPTED_REASON = 200
"""Maximum number of characters of a reason in the message of a commit."""


def _acceptances(commit: str, message: str) -> Iterator[Acceptance]:
    """Yields what the lines ``cnnbench-accept: RESULT CONFIGURATIONS: REASON`` of a commit's
    message accept. Other lines are ignored.

    CONFIGURATIONS is the name of a model, or a pattern as in a rule.
    """
    for line in message.splitlines():
        if match := _ACCEPTING.fullmatch(line.strip()):
            result, pattern, reason = match.groups()
            yield Acceptance(
                commit=commit,
                reason=to_plain_line(reason)[:_ACCEPTED_REASON],
                by_message=True,
                configurations=(pattern, f"{pattern},*"),
                results=(result,),
            )


@cache
def _commits_between(base: str, new: str, folder: str) -> tuple[tuple[str, str], ...]:
    """The commits that `new` contains and `base` does not, with their messages; () if unknown.

    They are looked up in the repository of `folder`, the current folder.
    """
    try:
        ends = [find_commit_hash(name, folder) for name in (base, new)]
        text = git("log", "--format=%H%x00%B%x00", "..".join(ends), "--", folder=folder)
    except GitError:
        return ()
    words = text.split("\0")
    return tuple(
        (commit.strip(), message) for commit, message in zip(words[:-1:2], words[1::2], strict=True)
    )


def _selecting_names(metric: Metric) -> set[str]:
    """Returns the names in --metrics that select a metric."""
    return {metric.name, *metric.judged.values()}


def _matches(configuration: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the name of a configuration."""
    return any(fnmatchcase(configuration, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """The settings of a rule for one metric.

    Attributes:
      name: name of the metric in --metrics.
      threshold: smallest relevant change, in per cent, or in the unit of the metric if its changes
        are differences. If it is absent, the threshold of the metric is used.
      share: share of alpha. Metrics without a share divide the remaining alpha equally.
      fail_on: verdicts that set exit code 1. If it is absent, the value of the rule is used.
    """

    name: str
    threshold: float | None = field(default=None, metadata=ABSENT)
    share: float | None = field(default=None, metadata=ABSENT)
    fail_on: tuple[str, ...] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class ConfigurationRule:
    """A rule for judging all configurations whose names match one of its patterns.

    Attributes:
      configurations: patterns that match names of configurations.
      threshold: like --threshold, in per cent. If it is absent, the threshold is 3 %.
      fail_on: like --fail_on. If it is absent, slower and changed set exit code 1.
      judge: metrics by which the configurations are judged, like --metrics. If it is absent, they
        are judged as without rules.
      metrics: settings of single metrics. They do not change which metrics are judged.
    """

    configurations: tuple[str, ...] = field(default=_ALL, metadata=OPTIONAL)
    threshold: float | None = field(default=None, metadata=ABSENT)
    fail_on: tuple[str, ...] | None = field(default=None, metadata=ABSENT)
    judge: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)
    metrics: tuple[MetricRule, ...] = field(default=(), metadata=NOT_EMPTY)

    def alpha_shares(self) -> dict[str, float]:
        """Maps each metric in `judge` to its share of the significance level; they add up to 1."""
        explicit = {one.name: one.share for one in self.metrics if one.share is not None}
        others = {name for name in self.judge if name not in explicit}
        return explicit | dict.fromkeys(others, (1 - sum(explicit.values())) / max(1, len(others)))

    def effects(self) -> str:
        """Describes what the rule changes, and which metrics it removes: "threshold 5 %; judges
        memory, not throughput, startup or accuracy".
        """
        parts = [*_settings(self, " %")]
        if self.judge:
            removed = [name for name in DEFAULT_METRICS if name not in self.judge]
            without = f", not {enumeration(removed)}" if removed else ""
            parts.append(f"judges {' and '.join(self.judge)}{without}")
        for metric in self.metrics:
            own = [*_settings(metric)]
            own += [] if metric.share is None else [f"share {metric.share:g}"]
            judged = metric.name in (self.judge or DEFAULT_METRICS)
            own += [] if judged else ["used only if judge or --metrics names it"]
            parts.append(f"{metric.name}: {', '.join(own) or 'no change'}")
        return "; ".join(parts) or "no change"


def _settings(rule: ConfigurationRule | MetricRule, unit: str = "") -> Iterator[str]:
    if rule.threshold is not None:
        yield f"threshold {rule.threshold:g}{unit}"
    if rule.fail_on is not None:
        yield f"fails on {' and '.join(rule.fail_on) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that were read from a file: rules for configurations, and accepted commits.

    Attributes:
      source: the file that the rules were read from: FILE, or COMMIT:FILE.
      digest: first 12 digits of the SHA-256 of the rules, without comments and layout.
      rules: rules for configurations. The first rule that matches a configuration is used.
      accept: regressions that are accepted.
      accept_by_message: whether the messages of commits can accept regressions.
      ignore: patterns of files that no run loads, relative to the top of the repository.
    """

    source: str = field(default="", metadata=OPTIONAL)
    digest: str = field(default="", metadata=OPTIONAL)
    rules: tuple[ConfigurationRule, ...] = field(default=(), metadata=NOT_EMPTY)
    accept: tuple[Acceptance, ...] = field(default=(), metadata=NOT_EMPTY)
    accept_by_message: bool = field(default=False, metadata=NOT_EMPTY)
    ignore: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)

    def rule_for(self, configuration: str) -> tuple[int, ConfigurationRule]:
        """Returns the number (from 1) and the rule for a configuration. If no rule matches, the
        number is 0 and the rule is empty.
        """
        fitting = (
            (number, rule)
            for number, rule in enumerate(self.rules, 1)
            if _matches(configuration, rule.configurations)
        )
        return next(fitting, (0, ConfigurationRule()))

    @property
    def short_source(self) -> str:
        """The file that the rules were read from, with an abbreviated commit."""
        commit, colon, path = self.source.partition(":")
        return f"{abbreviate_hash(commit)}:{path}" if colon else self.source

    def title(self, number: int) -> str:
        """Returns text with the number and the patterns of a rule: "rule 2 (vgg*)"; "" for 0."""
        if not number:
            return ""
        return f"rule {number} ({', '.join(self.rules[number - 1].configurations)})"

    @property
    def smallest_share(self) -> float:
        """The smallest share of alpha that a rule gives a metric; 1 if no rule selects metrics."""
        shares = (one for rule in self.rules for one in rule.alpha_shares().values())
        return min(shares, default=1.0)

    def policy_for(
        self, policy: Policy, name: str, metric: Metric, sharing: Sequence[Metric], kinds: int = 1
    ) -> Policy:
        """Returns the policy for judging one metric of one configuration by the rules.

        Args:
          policy: the policy without rules.
          name: name of the configuration.
          sharing: the metrics that share alpha; empty if alpha is not shared. `metric` may be a
            metric that is not one of them.
          kinds: number of kinds of measurements, which also share alpha.
        """
        _, rule = self.rule_for(name)
        names = _selecting_names(metric)
        own = next((one for one in rule.metrics if one.name in names), None)
        threshold, fail_on = rule.threshold if metric.threshold is None else None, rule.fail_on
        if own is not None:
            threshold = threshold if own.threshold is None else own.threshold
            fail_on = fail_on if own.fail_on is None else own.fail_on
        share = None
        if metric in sharing:
            shares = rule.alpha_shares()
            own_shares = [shares[name] for name in rule.judge if name in names]
            share = (own_shares or [1 / len(sharing)])[0] / kinds
        scaled = None if threshold is None else threshold * metric.threshold_scale
        gates = own is not None and bool(own.fail_on)
        return policy.replace(own_threshold=scaled, share=share, fail_on=fail_on, gates=gates)

    def threshold(self, configuration: str, metric: Metric) -> float | None:
        """Returns the threshold of a metric according to the rules; None if they contain none."""
        return self.policy_for(Policy(), configuration, metric, ()).own_threshold

    def without_overridden(self) -> Rules:
        """Returns a copy without the thresholds that --threshold overrides."""
        rules = []
        for rule in self.rules:
            metrics = [
                replace(metric, threshold=None)
                if METRICS[metric.name].threshold is None
                else metric
                for metric in rule.metrics
            ]
            rules.append(replace(rule, threshold=None, metrics=tuple(metrics)))
        return replace(self, rules=tuple(rules))

    def without_judged_metrics(self) -> Rules:
        """Returns a copy without the metrics, and their shares, that --metrics overrides."""
        rules = [
            replace(rule, judge=(), metrics=tuple(replace(own, share=None) for own in rule.metrics))
            for rule in self.rules
        ]
        return replace(self, rules=tuple(rules))

    @property
    def accepts(self) -> bool:
        """Whether the rules can accept a regression."""
        return bool(self.accept) or self.accept_by_message

    def accepting_all(self, reason: str) -> Rules:
        """Returns a copy that accepts all regressions of NEW, for the given reason."""
        own = Acceptance(reason=reason)
        others = [acceptance for acceptance in self.accept if acceptance.commit]
        return replace(self, accept=(*others, own))

    def acceptance_between(
        self, name: str, metric: Metric, result: str, base: Sequence[str], new: Sequence[str]
    ) -> Acceptance | None:
        """Returns the acceptance of a regression from revision `base` to revision `new`; None
        without one.

        `base` and `new` contain the revision of each run. If the runs of BASE or of NEW have
        several revisions, no commit is among the changes. Acceptances that have ended are
        considered last. Git looks for commits only in the repository of the current folder.

        Args:
          name: name of the configuration.
          result: word of --fail_on for the regression: "slower" or "changed".
        """
        fitting: list[Acceptance] = []
        if len({*base}) == len({*new}) == 1:
            commits = _commits_between(base[0], new[0], os.getcwd())
            hashes = [new[0], *(commit for commit, _ in commits)]
            fitting += [one for one in self.accept if any(h.startswith(one.commit) for h in hashes)]
            for commit, message in commits if self.accept_by_message else ():
                fitting += _acceptances(commit, message)
        else:
            fitting += [acceptance for acceptance in self.accept if not acceptance.commit]
        meant = (one for one in fitting if one.accepts_result(name, metric, result))
        return min(meant, key=lambda acceptance: acceptance.has_ended, default=None)

    def unknown_commits_text(self, measured: Collection[str] = ()) -> str:
        """Returns text that names accepted commits that the repository of the current folder lacks;
        "" if there are none, or outside of a repository. Commits with a name in `measured` are left
        out.
        """
        commits = [acceptance.commit for acceptance in self.accept if acceptance.commit]
        commits = [one for one in commits if not any(name.startswith(one) for name in measured)]
        try:
            answers = git("cat-file", "--batch-check", input="\n".join(commits)) if commits else ""
        except GitError:
            return ""
        known = zip(commits, answers.splitlines(), strict=True)
        unknown = [commit for commit, answer in known if answer.endswith(" missing")]
        if not unknown:
            return ""
        what = count_text(len(unknown), "accepted commit is", "accepted commits are")
        names = first_few(unknown, _COMMITS_NAMED, ", ")
        return f"{self.short_source}: {what} not in this repository: {names}"
