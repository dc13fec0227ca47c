"""Measured commits in a git repository: their order, and what happened to them later.

A record contains the hash of a commit. Later, the commit may have been replaced by a rebase or a
squash, merged, or reverted by another commit, or a tag that pointed to it may have been moved.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from cnnbench.base.stats import grouped
from cnnbench.base.text import count, first_few
from cnnbench.machine.repository import GitError, git

T = TypeVar("T")

_SHORT, _ABBREVIATIONS = 12, range(7, 13)
_MOST_NAMED = 4
_AT_ONCE = 500
"""Maximum number of commits in one command line."""

_FIELDS = 5

_HASH = re.compile("[0-9a-f]{7,64}")
_REVERTED = re.compile(r"^This reverts commit ([0-9a-f]{7,64})", re.MULTILINE)
_FORM = "--format=%H%x00%T%x00%an %ae %at%x00%s%x00{}%x00"


class Commits:
    """The commits of all branches and tags of a repository; GitError if there is none.

    Attributes:
      places: the place of each commit in the order of history; ancestors come before descendants.
        Keys are full hashes, unique abbreviations of 7 to 12 digits, and names of branches and
        tags.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        listed = git("rev-list", "--all", "--topo-order", "--reverse", "--parents", folder=folder)
        lines = [line.split() for line in listed.splitlines()]
        self._commits = [commit for commit, *_ in lines]
        self._parents = {commit: parents for commit, *parents in lines}
        self.places: dict[str, int] = {name: place for place, name in enumerate(self._commits)}
        whole = self.places.copy()
        for digits in _ABBREVIATIONS:
            short = grouped(self._commits, itemgetter(slice(digits)))
            self.places |= {name: whole[one[0]] for name, one in short.items() if len(one) == 1}
        self._refs: dict[str, str] = {}
        form = "--format=%(refname:short) %(objectname) %(*objectname)"
        for line in git(
            "for-each-ref", form, "refs/tags", "refs/heads", folder=folder
        ).splitlines():
            name, *objects = line.split()
            if objects[-1] in whole and name not in self.places:
                self._refs[name] = objects[-1]
        self.places |= {name: whole[commit] for name, commit in self._refs.items()}

    def contains(self, commit: str, other: str) -> bool | None:
        """Whether a commit equals the other one or is its descendant; None if either is unknown."""
        if commit not in self.places or other not in self.places:
            return None
        wanted = self.places[other]
        waiting, seen = [self._commits[self.places[commit]]], set()
        while waiting:
            one = waiting.pop()
            if self.places[one] == wanted:
                return True
            if one not in seen and self.places[one] > wanted:  # ancestors have smaller places
                seen.add(one)
                waiting += (parent for parent in self._parents[one] if parent in self.places)
        return False

    def parents(self, commit: str) -> list[str]:
        """The parents of a commit; [] if it is unknown."""
        place = self.places.get(commit)
        return [] if place is None else self._parents[self._commits[place]]

    def remarks(self, names: Sequence[str]) -> list[str]:
        """Sentences about measured commits that do not follow each other on one branch.

        `names` are the names in the records, in order: full or abbreviated hashes, branches, tags.
        """
        known = {name: self._commits[self.places[name]] for name in names if name in self.places}
        found = [*self._missing([name for name in names if name not in known])]
        if moving := [name for name in names if name in self._refs]:
            places = [f"{name} ({short(self._refs[name])})" for name in moving]
            found.append(
                "Names of branches and tags are placed where they point now: "
                f"{_first(places)}. If one was moved since, another commit was measured."
            )
        with contextlib.suppress(GitError):  # a repository without HEAD
            found += self._branches([*dict.fromkeys(known.values())])
        return found + self.reverts([*dict.fromkeys(known.values())])

    def reverts(self, commits: Sequence[str]) -> list[str]:
        """One sentence for each commit, among those given, that reverts another commit."""
        found = []
        for start in range(0, len(commits), _AT_ONCE):
            some = commits[start : start + _AT_ONCE]
            for commit, *_, body in self._log("--no-walk=unsorted", *some, body="%b"):
                if other := reverted(body):
                    found.append(f"{short(commit)} reverts {short(other)}.")
        return found

    def _missing(self, names: Sequence[str]) -> Iterator[str]:
        """Sentences about commits that no branch and no tag contains."""
        if not names:
            return
        successors = self._successors([name for name in names if _HASH.fullmatch(name)])
        for how, pairs in grouped(successors.items(), lambda pair: pair[1][1]).items():
            texts = [f"{short(name)} is now {short(commit)}" for name, (commit, _) in pairs]
            number = count(len(pairs), "measured commit was", "measured commits were")
            yield f"{number} replaced, as by {how}: {_first(texts)}."
        if gone := [short(name) for name in names if name not in successors]:
            number = count(len(gone), "measured commit is", "measured commits are")
            yield f"{number} on no branch or tag of the repository: {_first(gone)}."
        which = count(len(names), "commit follows", "commits follow")
        yield f"Without a place in the repository, {which} the one that was measured before."

    def _successors(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """For commits that were replaced: the commits that replaced them, and by which operation.

        Only commits that git still has can be found.

        After a rebase, author, author date and subject are unchanged. The squash of an up-to-date
        branch has the same files as the last commit of the branch.
        """
        if not names:
            return {}
        try:
            lost = [*self._log("--no-walk=unsorted", "--ignore-missing", *names[:_AT_ONCE])]
            present = [*self._log("--all")] if lost else []
        except GitError:
            return {}
        by_author = {(author, subject): commit for commit, _, author, subject, _ in present}
        by_tree = {tree: commit for commit, tree, *_ in present}
        found = {}
        for commit, tree, author, subject, _ in lost:
            name = next(name for name in names if commit.startswith(name))
            if successor := by_author.get((author, subject)):
                found[name] = (successor, "a rebase")
            elif successor := by_tree.get(tree):
                found[name] = (successor, "a squash")
        return found

    def _log(self, *arguments: str, body: str = "") -> Iterator[Sequence[str]]:
        """For each commit: hash, tree, author with date, subject and body."""
        text = git("log", _FORM.format(body), *arguments, folder=self._folder)
        fields = text.split("\0")
        for start in range(0, len(fields) - _FIELDS + 1, _FIELDS):
            commit, *others = fields[start : start + _FIELDS]
            yield (commit.strip(), *others)

    def _branches(self, commits: Sequence[str]) -> Iterator[str]:
        """Sentences about commits off HEAD's first-parent line, with the merges that added them."""
        line = git("rev-list", "--first-parent", "--reverse", "HEAD", folder=self._folder).split()
        aside = sorted({*commits} - {*line}, key=self.places.__getitem__)
        merges = [one for one in line if len(self._parents[one]) > 1]

        def merge_of(commit: str) -> str:
            return next((one for one in merges if self.contains(one, commit)), "")

        for merge, some in grouped(aside, merge_of).items():
            names = _first([short(one) for one in some])
            if merge:
                yield f"{short(merge)} merged another branch, with {names}."
            else:
                yield f"HEAD does not contain {names}."


def reverted(message: str) -> str:
    """The commit that a commit with this message reverts, or ""."""
    found = _REVERTED.search(message)
    return found[1] if found else ""


def in_order(items: Iterable[T], place: Callable[[T], int | None]) -> list[T]:
    """Sorts items by place. An item without a place (None) stays behind its predecessor."""
    placed: list[tuple[int, T]] = []
    last = -1
    for item in items:
        own = place(item)
        last = last if own is None else own
        placed.append((last, item))
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def _first(names: Sequence[str]) -> str:
    return first_few(names, _MOST_NAMED, ", ")


def short(name: str) -> str:
    """The first digits of a hash. Other names are returned unchanged."""
    return name[:_SHORT] if _HASH.fullmatch(name) else name
