"""Reads rules in TOML, and checks them. docs/rules.md explains the keys.

Rules are in cnnbench.toml or the section [tool.cnnbench] of pyproject.toml in the current folder,
or in the file in --rules, which may be in a commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path, PurePath
from typing import Any

from cnnbench.base.files import read_text
from cnnbench.base.text import unknown_key_message
from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.metrics.policy import FAILURES, check_fail_on
from cnnbench.judge.metrics.rules import Acceptance, ConfigurationRule, MetricRule, Rules
from cnnbench.machine.repository import (
    GitError,
    find_commit_hash,
    git,
    is_in_commit,
    read_file_of_commit,
)
from cnnbench.records.codec import decode
from cnnbench.records.metric import METRICS, load_missing_metrics

FILE, PROJECT = "cnnbench.toml", "pyproject.toml"
"""Files with rules in a folder. The first one that contains rules is used."""

NO_RULES = "none"
"""With this value of --rules, no rules are read."""

_MOST_FOLDERS = 64
"""Maximum number of folders that are searched for the top of a repository."""

_FILE_PREFIXES = ("/", "./", "../")


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
            # Converts dates to strings, because JSON has no dates.
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
            return read_file_of_commit(commit, self.path).removeprefix("\ufeff")
        except GitError as error:
            raise FlagError("rules", str(self), str(error)) from None


def rules_paths(flag_value: str | None) -> list[str]:
    """Paths of the files from which `load_rules` may read."""
    return _paths() if flag_value is None else [flag_value]


def _paths() -> list[str]:
    """Paths of files that may contain rules: in the current folder, then in the folders above it
    that belong to the same repository.
    """
    # Relative paths, because the current folder may have been removed.
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
                if is_in_commit(commit, file.path) and file.read_table() is not None:
                    return str(file)
        return NO_RULES
    given = RulesFile.parse(flag_value)
    if flag_value == NO_RULES or given.commit is not None:
        return flag_value
    path = path_from_root(given.path)
    if path is None:
        return flag_value
    file = RulesFile(path=path, commit=commit)
    if not is_in_commit(commit, path):
        reason = f"the merge base (commit {commit[:12]}) lacks this file"
        raise FlagError("rules", flag_value, reason)
    return str(file)


def path_from_root(path: str) -> str | None:
    """Returns the path of a file from the top of the repository; None if the file is outside.

    Links in the working tree are not followed: a change could replace a file by a link to a file
    outside, and would then choose the rules by which it is judged. Links in the commit are.
    """
    top = git("rev-parse", "--show-toplevel")
    absolute = Path(os.path.abspath(path))
    for folder in reversed(absolute.parents):
        if folder.exists() and folder.samefile(top):
            return absolute.relative_to(folder).as_posix()
    return None


# The keys of a rules file, and the checks of their values.

_LEAST_SHARE = 0.001
"""Smallest share of alpha of a metric. With an even smaller share, a verdict would need so many
pairs that no experiment could find a change.
"""

_COMMIT = re.compile("[0-9a-f]{7,64}")


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
        return _rules(str(file), table)
    for path in _paths():
        if os.path.lexists(path):
            table = RulesFile(path=path).read_table()
            if table is not None:
                return _rules(path, table)
    return Rules()


def _rules(source: str, table: Any) -> Rules:
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
            rules=tuple(_rule(table, f"{source}: rule {number}") for number, table in rules),
            accept=tuple(
                _acceptance(table, f"{source}: accept {number}") for number, table in accept
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


def _decode(cls: Any, table: Any, where: str) -> Any:
    """Creates a rule, which is an instance of the dataclass `cls`, from a TOML table. If a key is a
    list, a string means a list with one item.
    """
    _check_keys(table, [key.name for key in fields(cls)], where)
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
    try:
        if unknown := sorted({*words} - {*FAILURES, "never"}):
            known = ", ".join(FAILURES)
            raise ValueError(f"{unknown[0]}: must be one or more of {known}, or never")
        return replace(rule, fail_on=check_fail_on(words))
    except ValueError as error:
        raise ValueError(f"{where}: fail_on: {error}") from None


def _rule(table: Any, where: str) -> ConfigurationRule:
    metrics = table.get("metrics", {}) if isinstance(table, dict) else {}
    if not isinstance(metrics, dict):
        reason = "must be a table for each metric; judge = [...] selects the judged metrics"
        raise ValueError(f"{where}: metrics: {reason}")
    _check_metrics(metrics, f"{where}: metrics")
    own = []
    for name, value in metrics.items():
        place = f"{where}: metrics.{name}"
        _check_keys(value, ("threshold", "share", "fail_on"), place)
        own.append(_decode(MetricRule, {**value, "name": name}, place))
    others = {key: value for key, value in table.items() if key != "metrics"} if own else table
    rule: ConfigurationRule = _decode(ConfigurationRule, others, where)
    rule = replace(rule, metrics=tuple(own))
    _check_metrics(rule.judge, f"{where}: judge")
    if "judge" in others and not rule.judge:
        raise ValueError(f"{where}: judge: is empty; fail_on = 'never' never fails")
    for metric in own:
        if metric.share is not None and metric.name not in rule.judge:
            reason = f"only metrics in judge share alpha; add judge = ['{metric.name}', ...]"
            raise ValueError(f"{where}: metrics.{metric.name}: share: {reason}")
    shares = rule.alpha_shares().values()
    if shares and not (min(shares) >= _LEAST_SHARE and math.isclose(sum(shares), 1, abs_tol=1e-6)):
        reason = f"shares must be at least {_LEAST_SHARE:g} and add up to 1"
        raise ValueError(f"{where}: metrics: {reason}")
    return rule


def _check_metrics(names: Collection[str], where: str) -> None:
    load_missing_metrics(names, METRICS)
    for name in names:
        if name not in METRICS:
            raise ValueError(f"{where}: {unknown_key_message(name, METRICS)}")


def _acceptance(table: Any, where: str) -> Acceptance:
    _check_keys(table, ("commit", "reason", "until", "configurations", "metrics"), where)
    for key in ("commit", "reason", "until"):
        if key not in table:
            raise ValueError(f"{where}.{key}: missing")
    acceptance: Acceptance = _decode(Acceptance, table, where)
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
