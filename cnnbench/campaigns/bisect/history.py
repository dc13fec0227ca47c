"""The git history that `cnnbench bisect` searches. The repository is not changed.

The candidates are listed by ``git rev-list --bisect``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from cnnbench.errors import FlagError, UsageError
from cnnbench.machine.repository import (
    CommitGraph,
    GitError,
    abbreviate_hash,
    find_commit_hash,
    git,
    why_commit_is_missing,
)


class GitHistory(NamedTuple):
    """Queries the git history of a repository. `first_parent` treats a merge as one commit."""

    repository: Path
    first_parent: bool = False

    def suspects(self, good: Sequence[str], bad: str) -> list[str]:
        """Candidates for the first bad commit, including `bad`. The best commit to test is first.

        This is the commit that divides the candidates most evenly.
        """
        options = ["--first-parent"] if self.first_parent else []
        commits = [bad, *(f"^{commit}" for commit in good)]
        words = ["rev-list", "--bisect-all", *options, *commits, "--"]
        listed = git(*words, folder=self.repository)
        return [line.split()[0] for line in listed.splitlines()]

    def order_by_ancestry(self, commits: Collection[str], good: str, bad: str) -> tuple[str, ...]:
        """Sorts commits between GOOD and BAD so that parents precede their children."""
        words = ["rev-list", "--reverse", "--topo-order", bad, f"^{good}", "--"]
        listed = git(*words, folder=self.repository)
        return tuple(line for line in listed.splitlines() if line in commits)

    def format_commit(self, commit: str, git_format: str = "%s") -> str:
        """Output of `git show` in `git_format`; by default, the first line of the message."""
        words = ("show", "--no-patch", f"--format={git_format}", commit, "--")
        return git(*words, folder=self.repository)

    def parent(self, commit: str) -> str:
        """The first parent of a commit, which must have one."""
        return git("rev-parse", f"{commit}^1", folder=self.repository)


def find_repository_root(text: str) -> Path:
    """The root of the git working tree that contains a folder (the value of --repository).

    Raises FlagError if the folder is not in a git repository.
    """
    try:
        return Path(git("rev-parse", "--show-toplevel", folder=text))
    except GitError as error:
        raise FlagError("repository", text, f"must be in a git repository: {error}") from None


def good_and_bad_hashes(good: str, bad: str, repository: Path) -> tuple[str, str]:
    """The commit hashes of the revisions GOOD and BAD.

    Raises UsageError if a revision is unknown, or if GOOD is not an ancestor of BAD.
    """
    commits = []
    for name, text in (("GOOD", good), ("BAD", bad)):
        try:
            commits.append(find_commit_hash(text, repository))
        except GitError as error:
            raise UsageError(
                f"{name} {text!r}: is not a revision of {repository}: {error}"
            ) from None
    if commits[0] == commits[1]:
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} are the same commit")
    try:
        base = git("merge-base", *commits, folder=repository)
    except GitError as error:
        why = why_commit_is_missing(repository) or error
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} have no common ancestor: {why}") from None
    if base == commits[1]:
        raise UsageError(f"GOOD {good!r}: BAD is an ancestor of GOOD; swap GOOD and BAD")
    if base != commits[0]:
        reasons = ["it is not an ancestor of BAD"]
        for a, (b, how) in CommitGraph(repository).replacing_commits(commits).items():
            replaced = f"{abbreviate_hash(a)} was replaced, as by {how}"
            reasons.append(f"{replaced}: it is now {abbreviate_hash(b)}")
        reasons.append(f"give their common ancestor: {abbreviate_hash(base)}")
        raise UsageError(f"GOOD {good!r}: {'; '.join(reasons)}")
    return commits[0], commits[1]
