"""Acceptances: regressions that do not set exit code 1, because the rules or the message of a
commit say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from functools import cache

from cnnbench.base.escapes import to_plain_line
from cnnbench.judge.metrics.policy import FAILURES
from cnnbench.machine.repository import GitError, abbreviate_hash, find_commit_hash, git
from cnnbench.records.codec import NOT_EMPTY, OPTIONAL
from cnnbench.records.metric import Metric

ALL = ("*",)
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
    configurations: tuple[str, ...] = field(default=ALL, metadata=OPTIONAL)
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
            and (not self.metrics or not selecting_names(metric).isdisjoint(self.metrics))
            and matches(configuration, self.configurations)
        )


_ACCEPT = "cnnbench-accept:"
_ACCEPTING = re.compile(rf"{_ACCEPT}\s*(slower|changed)\s+([^:]*[^:\s])\s*:\s*(\S.*)")
_ACCEPTED_REASON = 200
"""Maximum number of characters of a reason in the message of a commit."""


def acceptances_of_message(commit: str, message: str) -> Iterator[Acceptance]:
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
def commits_between(base: str, new: str, folder: str) -> tuple[tuple[str, str], ...]:
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


def selecting_names(metric: Metric) -> set[str]:
    """Returns the names in --metrics that select a metric."""
    return {metric.name, *metric.judged.values()}


def matches(configuration: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the name of a configuration."""
    return any(fnmatchcase(configuration, pattern) for pattern in patterns)
