"""Commits between GOOD and BAD, by git's own search; the repository is not changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.campaigns.ab.checkout import commit_of
from cnnbench.errors import FlagError, UsageError
from cnnbench.machine.repository import GitError, git


@dataclass(frozen=True)
class Commit:
    """Description of a commit: first line of the message, the author's name, ISO date."""

    hash: str
    subject: str
    author: str
    date: str


@dataclass(frozen=True)
class History:
    """The history of a repository; with `first_parent` a merge counts as one commit."""

    repository: Path
    first_parent: bool = False

    def suspects(self, good: Sequence[str], bad: str) -> list[str]:
        """Commits that may be the first bad one, including `bad`, the best to try next first.

        The best is the one of which closest to half of the others are ancestors.
        """
        options = ["--first-parent"] if self.first_parent else []
        excluded = [f"^{commit}" for commit in good]
        listed = self._git("rev-list", "--bisect-all", *options, bad, *excluded)
        return [line.split()[0] for line in listed.splitlines()]

    def ordered(self, commits: Collection[str], good: str, bad: str) -> tuple[str, ...]:
        """Commits with parents before children."""
        listed = self._git("rev-list", "--reverse", "--topo-order", bad, f"^{good}")
        return tuple(line for line in listed.splitlines() if line in commits)

    def describe(self, commit: str) -> Commit:
        """Subject, author and date of a commit."""
        text = self._git("show", "--no-patch", "--format=%H%x00%s%x00%an%x00%as", commit)
        return Commit(*text.split("\0"))

    def parent(self, commit: str) -> str:
        """The first parent of a commit that has one."""
        return self._git("rev-parse", f"{commit}^1")

    def _git(self, *arguments: str) -> str:
        return git(*arguments, folder=self.repository)


def repository_of(text: str) -> Path:
    """The working tree of a folder, the value of --repository; FlagError if there is none."""
    try:
        return Path(git("rev-parse", "--show-toplevel", folder=text))
    except GitError as error:
        raise FlagError("repository", text, f"must be in a git repository: {error}") from None


def ends_of(good: str, bad: str, repository: Path) -> tuple[str, str]:
    """The commits GOOD and BAD; UsageError if one is unknown, or GOOD is no ancestor of BAD."""
    found = []
    for name, text in (("GOOD", good), ("BAD", bad)):
        commit = commit_of(text, repository)
        if commit is None:
            raise UsageError(f"{name} {text!r}: is no revision of {repository}")
        found.append(commit)
    if found[0] == found[1]:
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} are the same commit")
    try:
        base = git("merge-base", *found, folder=repository)
    except GitError:
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} have no common ancestor") from None
    if base != found[0]:
        reason = "BAD is an ancestor of it; swap them" if base == found[1] else ""
        reason = reason or f"it is no ancestor of BAD; give what both come from: {base[:12]}"
        raise UsageError(f"GOOD {good!r}: {reason}")
    return found[0], found[1]
