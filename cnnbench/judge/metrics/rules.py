"""Reads a team's rules: thresholds, metrics and verdicts that set the exit code, by configuration
and metric.

`Rules` returns the `Policy` for a configuration and a metric. Rules are read from cnnbench.toml or
from the section [tool.cnnbench] of pyproject.toml in the current folder, or from the file in
--rules. Flags have priority over rules. docs/rules.md explains the keys.

If the key `judge` of a rule, or the user, requests several metrics, these metrics share the
significance level alpha: for each configuration, the shares add up to 1.
`cnnbench.judge.compare.judgement` tests the metrics as one family.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import Any, TypeVar, cast

from cnnbench.base.escapes import to_plain_line
from cnnbench.base.files import read_text
from cnnbench.base.suggestions import unknown_key_message
from cnnbench.base.text import count_text, enumeration, first_few
from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.metrics import DEFAULT_METRICS, Policy
from cnnbench.machine.repository import GitError, abbreviate_hash, find_commit_hash, git
from cnnbench.records.codec import ABSENT, NOT_EMPTY, OPTIONAL, decode
from cnnbench.records.metric import METRICS, Metric, load_metrics

FILE, PROJECT = "cnnbench.toml", "pyproject.toml"
"""Files with rules in a folder. The first one that contains rules is used."""

NO_RULES = "none"
"""With this value of --rules, no rules are read."""

LEAST_SHARE = 0.001
"""Smallest share of alpha of a metric. With an even smaller share, a verdict would need so many
pairs that no experiment could find a change.
"""

FAILURES = ("slower", "faster", "changed")
"""Words that `fail_on` accepts, except "never"."""

_COMMIT = re.compile("[0-9a-f]{7,64}")
_MOST_FOLDERS = 64
"""Maximum number of folders that are searched for the top of a repository."""

_COMMITS_NAMED = 5
_FILE_PREFIXES = ("/", "./", "../")
_ALL = ("*",)

_T = TypeVar("_T")


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

    def applies_to(self, configuration: str, metric: Metric, result: str) -> bool:
        """Whether it accepts `result`, a word of --fail_on, of a configuration and a metric."""
        return (
            result in (self.results or FAILURES)
            and (not self.metrics or not _names_selecting_metric(metric).isdisjoint(self.metrics))
            and _matches_any_pattern(configuration, self.configurations)
        )


_ACCEPT = "cnnbench-accept:"
_ACCEPTING = re.compile(rf"{_ACCEPT}\s*(slower|changed)\s+([^:]*[^:\s])\s*:\s*(\S.*)")
_ACCEPTED_REASON = 200
"""Maximum number of characters of a reason in the message of a commit."""


def _acceptances_of_message(commit: str, message: str) -> Iterator[Acceptance]:
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
            if _matches_any_pattern(configuration, rule.configurations)
        )
        return next(fitting, (0, ConfigurationRule()))

    @property
    def short_source(self) -> str:
        """The file that the rules were read from, with an abbreviated commit."""
        file = RulesFile.parse(self.source)
        return str(replace(file, commit=file.commit and abbreviate_hash(file.commit)))

    def title(self, number: int) -> str:
        """Returns text with the number and the patterns of a rule: "rule 2 (vgg*)"."""
        return f"rule {number} ({', '.join(self.rules[number - 1].configurations)})"

    def title_for(self, configuration: str) -> str:
        """Returns text with the number and the patterns of the rule for a configuration; "" if no
        rule matches.
        """
        number, _ = self.rule_for(configuration)
        return self.title(number) if number else ""

    @property
    def judged_metrics(self) -> set[str]:
        """Names of all metrics by which any of the rules judges."""
        return {name for rule in self.rules for name in rule.judge}

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
        own = _metric_rule(rule, metric)
        threshold, fail_on = rule.threshold if metric.threshold is None else None, rule.fail_on
        if own is not None:
            threshold = threshold if own.threshold is None else own.threshold
            fail_on = fail_on if own.fail_on is None else own.fail_on
        share = None
        if metric in sharing:
            names, shares = _names_selecting_metric(metric), rule.alpha_shares()
            own_shares = [shares[name] for name in rule.judge if name in names]
            share = (own_shares or [1 / len(sharing)])[0] / kinds
        scaled = None if threshold is None else threshold * metric.threshold_scale
        gates = own is not None and bool(own.fail_on)
        return policy.replace(own_threshold=scaled, share=share, fail_on=fail_on, gates=gates)

    def threshold(self, configuration: str, metric: Metric) -> float | None:
        """Returns the threshold of a metric according to the rules; None if they contain none."""
        return self.policy_for(Policy(), configuration, metric, ()).own_threshold

    def without_thresholds(self) -> Rules:
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
        rules = []
        for rule in self.rules:
            metrics = tuple(replace(metric, share=None) for metric in rule.metrics)
            rules.append(replace(rule, judge=(), metrics=metrics))
        return replace(self, rules=tuple(rules))

    @property
    def accepts(self) -> bool:
        """Whether the rules can accept a regression."""
        return bool(self.accept) or self.accept_by_message

    def with_messages(self) -> Rules:
        """Returns a copy in which only the messages of commits accept regressions."""
        return replace(self, accept=(), accept_by_message=True)

    def accepting_all(self, reason: str) -> Rules:
        """Returns a copy that accepts all regressions of NEW, for the given reason."""
        own = Acceptance(reason=reason)
        others = [acceptance for acceptance in self.accept if acceptance.commit]
        return replace(self, accept=(*others, own))

    def acceptance_between(
        self, name: str, metric: Metric, result: str, base: Sequence[str], new: Sequence[str]
    ) -> Acceptance | None:
        """Returns what accepts a regression from revision `base` to revision `new`; None if nothing
        does.

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
                fitting += _acceptances_of_message(commit, message)
        else:
            fitting += [acceptance for acceptance in self.accept if not acceptance.commit]
        meant = (one for one in fitting if one.applies_to(name, metric, result))
        return min(meant, key=lambda acceptance: acceptance.has_ended, default=None)

    def unknown_accepted_commits(self) -> list[str]:
        """The accepted commits that the current folder's repository lacks; [] outside of one."""
        commits = [acceptance.commit for acceptance in self.accept if acceptance.commit]
        try:
            answers = git("cat-file", "--batch-check", input="\n".join(commits)) if commits else ""
        except GitError:
            return []
        known = zip(commits, answers.splitlines(), strict=True)
        return [commit for commit, answer in known if answer.endswith(" missing")]

    def unknown_commits_text(self, measured: Collection[str] = ()) -> str:
        """Returns text that names accepted commits that the repository of the current folder lacks;
        "" if there are none. Commits with a name in `measured` are left out.
        """
        lacking = self.unknown_accepted_commits()
        unknown = [one for one in lacking if not any(name.startswith(one) for name in measured)]
        if not unknown:
            return ""
        what = count_text(len(unknown), "accepted commit is", "accepted commits are")
        names = first_few(unknown, _COMMITS_NAMED, ", ")
        return f"{self.short_source}: {what} not in this repository: {names}"


def _names_selecting_metric(metric: Metric) -> set[str]:
    """Returns the names in --metrics that select a metric."""
    return {metric.name, *metric.judged.values()}


def _metric_rule(rule: ConfigurationRule, metric: Metric) -> MetricRule | None:
    names = _names_selecting_metric(metric)
    return next((one for one in rule.metrics if one.name in names), None)


def _matches_any_pattern(configuration: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(configuration, pattern) for pattern in patterns)


# Reads rules in TOML, from a file or from a commit.


@dataclass(frozen=True, kw_only=True)
class RulesFile:
    """Where rules are read from: a file, or a file in a commit.

    The text COMMIT:FILE always means a file in a commit, whatever files exist. The name of a file
    that contains a colon therefore begins with "/", "./" or "../".

    Attributes:
      path: path of the file; in a commit, the path from the top of the repository.
      commit: name of the commit; None for a file on disk.
    """

    path: str
    commit: str | None = None

    @classmethod
    def parse(cls, text: str) -> RulesFile:
        """Parses the value of --rules, except NO_RULES."""
        commit, colon, path = text.partition(":")
        if not colon or text.startswith(_FILE_PREFIXES):
            return cls(path=text)
        return cls(path=path, commit=commit)

    def __str__(self) -> str:
        """The value of --rules that selects the file."""
        return self.path if self.commit is None else f"{self.commit}:{self.path}"

    def read_table(self) -> Any:
        """Reads the TOML file as JSON values. Of pyproject.toml, only the section [tool.cnnbench]
        is returned; None if there is no such section.

        Raises UsageError with the name of the file if it cannot be read or is not valid TOML.
        """
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        text = self._read_text()
        try:
            # The conversion to JSON and back converts dates to strings.
            table = json.loads(json.dumps(tomllib.loads(text), default=str))
        except ValueError as error:
            raise UsageError(f"{self}: is not valid TOML: {error}") from None
        except RecursionError:
            raise UsageError(f"{self}: is not valid TOML: tables are nested too deeply") from None
        if PurePath(self.path).name != PROJECT:
            return table
        tools = table.get("tool")
        return tools.get("cnnbench") if isinstance(tools, dict) else None

    def _read_text(self) -> str:
        if self.commit is None:
            return read_text(self.path, "rules")
        try:
            commit = find_commit_hash(self.commit)
        except GitError as error:
            hint = f"; the file of this name is ./{self}" if os.path.exists(str(self)) else ""
            raise FlagError("rules", str(self), f"{error}{hint}") from None
        try:
            return git("cat-file", "blob", f"{commit}:{self.path}").removeprefix("\ufeff")
        except GitError as error:
            raise FlagError("rules", str(self), str(error)) from None


def load_rules(flag_value: str | None) -> Rules:
    """Reads the rules from a file, from COMMIT:FILE, or from the current folder if `flag_value`
    (the value of --rules) is None.

    If the current folder contains no rules, the folders above it are searched, up to the top of the
    repository.

    Raises UsageError with the file and the key if the file cannot be read or a key is invalid.
    """
    if flag_value == NO_RULES:
        return Rules()
    if flag_value is not None:
        file = RulesFile.parse(flag_value)
        table = file.read_table()
        if table is None:
            raise FlagError("rules", flag_value, "has no section [tool.cnnbench]")
        return _rules_from_table(str(file), table)
    for path in _paths_of_rules():
        if os.path.lexists(path):
            table = RulesFile(path=path).read_table()
            if table is not None:
                return _rules_from_table(path, table)
    return Rules()


def _paths_of_rules() -> list[str]:
    """Paths of files that may contain rules: in the current folder, then in the folders above it
    that belong to the same repository.
    """
    # The paths are relative, because the current folder may have been removed.
    folders = ["../" * up for up in range(_MOST_FOLDERS)]
    tops = (
        up for up, folder in enumerate(folders) if os.path.lexists(os.path.join(folder, ".git"))
    )
    up = next(tops, 0)
    return [os.path.join(folder, name) for folder in folders[: up + 1] for name in (FILE, PROJECT)]


def rules_flag_at_commit(commit: str, flag_value: str | None) -> str:
    """Returns the value COMMIT:FILE of --rules that selects the version of the rules file in
    `commit`, which is a full hash.

    Without --rules, it selects the rules in the current folder or in the folders above it. Values
    that do not name a file of the repository are returned unchanged. Raises FlagError if the commit
    does not contain the file.
    """
    if flag_value is None:
        here = PurePath(git("rev-parse", "--show-prefix"))
        for folder in (here, *here.parents):
            for name in (FILE, PROJECT):
                file = RulesFile(path=(folder / name).as_posix(), commit=commit)
                if _is_in_commit(file) and file.read_table() is not None:
                    return str(file)
        return NO_RULES
    given = RulesFile.parse(flag_value)
    if flag_value == NO_RULES or given.commit is not None:
        return flag_value
    path = _path_in_repository(given.path)
    if path is None:
        return flag_value
    file = RulesFile(path=path, commit=commit)
    if not _is_in_commit(file):
        reason = f"the merge base (commit {commit[:12]}) lacks this file"
        raise FlagError("rules", flag_value, reason)
    return str(file)


def _path_in_repository(path: str) -> str | None:
    """Returns the path of a file from the top of the repository; None if the file is outside.

    Links within the repository are not followed: a change could replace a file by a link to a file
    outside, and would then choose the rules by which it is judged.
    """
    top = git("rev-parse", "--show-toplevel")
    absolute = Path(os.path.abspath(path))
    for folder in reversed(absolute.parents):
        if folder.exists() and folder.samefile(top):
            return absolute.relative_to(folder).as_posix()
    return None


def _is_in_commit(file: RulesFile) -> bool:
    try:
        git("cat-file", "-e", str(file))
    except GitError:
        return False
    return True


def _rules_from_table(source: str, table: Any) -> Rules:
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
    try:
        _check_keys(table, ("rules", "accept", "accept_by_message", "ignore"), source)
        for key in ("rules", "accept"):
            if not isinstance(table.get(key, []), list):
                raise ValueError(f"{source}: {key}: must be an array of tables, [[{key}]]")
        by_message = table.get("accept_by_message", False)
        if not isinstance(by_message, bool):
            raise ValueError(f"{source}: accept_by_message: must be true or false")
        rules, accept = (enumerate(table.get(key, ()), 1) for key in ("rules", "accept"))
        return Rules(
            source=source,
            digest=digest,
            rules=tuple(
                _rule_from_table(table, f"{source}: rule {number}") for number, table in rules
            ),
            accept=tuple(
                _acceptance_from_table(table, f"{source}: accept {number}")
                for number, table in accept
            ),
            accept_by_message=by_message,
            ignore=_patterns(table.get("ignore", []), f"{source}: ignore"),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _patterns(value: Any, where: str) -> tuple[str, ...]:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
        raise ValueError(f"{where}: must be a list of patterns of file names")
    for pattern in patterns:
        if not pattern.isprintable() or ".." in pattern.split("/") or pattern[:1] in ("", "/"):
            raise ValueError(f"{where}: {pattern!r}: must be relative to the top of the repository")
    return tuple(patterns)


def _check_keys(table: Any, known: Collection[str], where: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{where}: must be a table")
    for key in table:
        if key not in known:
            raise ValueError(f"{where}: {unknown_key_message(key, known)}")


def _dataclass_from_table(cls: type[_T], table: Any, where: str) -> _T:
    """Creates a rule, which is an instance of the dataclass `cls`, from a TOML table. If a key is a
    list, a string means a list with one item.
    """
    _check_keys(table, [key.name for key in fields(cast("Any", cls))], where)
    lists = ("configurations", "judge", "metrics", "fail_on")
    values = {
        key: [value] if key in lists and isinstance(value, str) else value
        for key, value in table.items()
    }
    rule = decode(cls, values, where)
    threshold, words = (getattr(rule, name, None) for name in ("threshold", "fail_on"))
    if threshold is not None and not 0 <= threshold < 1000:
        raise ValueError(f"{where}: threshold: {threshold}: must be at least 0 and less than 1000")
    if words is None:
        return rule
    unknown = sorted({*words} - {*FAILURES, "never"})
    try:
        if unknown:
            raise ValueError(
                f"{unknown[0]}: must be one or more of {', '.join(FAILURES)}, or never"
            )
        replaced: _T = replace(cast("Any", rule), fail_on=exit_code_words(words))
    except ValueError as error:
        raise ValueError(f"{where}: fail_on: {error}") from None
    return replaced


def exit_code_words(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words of --fail_on that set exit code 1; () for "never". Raises ValueError if
    "never" is combined with other words.
    """
    never = {"never", "nothing"}.intersection(words)
    if not words or (never and len({*words}) > 1):
        raise ValueError(f"must be one or more of {', '.join(FAILURES)}, or only never")
    return () if never else tuple(dict.fromkeys(words))


def _rule_from_table(table: Any, where: str) -> ConfigurationRule:
    metrics = table.get("metrics", {}) if isinstance(table, dict) else {}
    if not isinstance(metrics, dict):
        reason = "must be a table for each metric; judge = [...] selects the judged metrics"
        raise ValueError(f"{where}: metrics: {reason}")
    _check_metrics(metrics, f"{where}: metrics")
    own = []
    for name, value in metrics.items():
        place = f"{where}: metrics.{name}"
        _check_keys(value, ("threshold", "share", "fail_on"), place)
        own.append(_dataclass_from_table(MetricRule, {**value, "name": name}, place))
    others = {key: value for key, value in table.items() if key != "metrics"} if own else table
    rule = replace(_dataclass_from_table(ConfigurationRule, others, where), metrics=tuple(own))
    _check_metrics(rule.judge, f"{where}: judge")
    if "judge" in others and not rule.judge:
        raise ValueError(f"{where}: judge: is empty; fail_on = 'never' never fails")
    for metric in own:
        if metric.share is not None and metric.name not in rule.judge:
            reason = f"only metrics in judge share alpha; add judge = ['{metric.name}', ...]"
            raise ValueError(f"{where}: metrics.{metric.name}: share: {reason}")
    shares = rule.alpha_shares().values()
    if shares and not (min(shares) >= LEAST_SHARE and math.isclose(sum(shares), 1, abs_tol=1e-6)):
        reason = f"shares must be at least {LEAST_SHARE:g} and add up to 1"
        raise ValueError(f"{where}: metrics: {reason}")
    return rule


def _check_metrics(names: Collection[str], where: str) -> None:
    load_metrics(names, METRICS)
    for name in names:
        if name not in METRICS:
            raise ValueError(f"{where}: {unknown_key_message(name, METRICS)}")


def _acceptance_from_table(table: Any, where: str) -> Acceptance:
    _check_keys(table, ("commit", "reason", "until", "configurations", "metrics"), where)
    for key in ("commit", "reason", "until"):
        if key not in table:
            raise ValueError(f"{where}.{key}: missing")
    acceptance = _dataclass_from_table(Acceptance, table, where)
    _check_metrics(acceptance.metrics, f"{where}: metrics")
    if not _COMMIT.fullmatch(acceptance.commit):
        raise ValueError(f"{where}: commit: {acceptance.commit}: must be a hash of 7 to 64 digits")
    if not acceptance.reason.strip():
        raise ValueError(f"{where}: reason: is empty")
    try:
        date.fromisoformat(acceptance.until)
    except ValueError:
        text = f"{where}: until: {acceptance.until}: must be a day, as in 2026-12-31"
        raise ValueError(text) from None
    return acceptance
