"""Refuses comparisons in which A and B load the same files, although the code of A and the code of
B contain different versions of these files.

This happens if a plug-in is named by an absolute path, or if a package of the repository is
installed or on an absolute PYTHONPATH. A and B would then be measured with the same code.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cnnbench.campaigns.ab.same_code import paths_in_value
from cnnbench.campaigns.ab.side import WRITTEN, AbSide
from cnnbench.errors import FlagError, UsageError
from cnnbench.machine.repository import GitError, git

_DEPTH = 2
"""Maximum number of folders between the top of a repository and the folder of its packages."""


def refuse_shared_code(both: Mapping[str, AbSide]) -> None:
    """Raises UsageError if A and B load the same file or package, although it differs between their
    checkouts. The message names the file and the remedy.

    Of packages and of files that plug-ins use, those that are loaded when the flags are resolved
    are checked.
    """
    a, b = both.values()
    places = [_repo_root(Path(side.checkout or os.curdir).resolve()) for side in (a, b)]
    if places[0] == places[1]:
        return
    roots = [*dict.fromkeys(root for place in places for root in (place, *_worktrees(place)))]
    for flag, text, path in _shared_paths(a, b):
        inside = next((path.relative_to(root) for root in roots if root in path.parents), None)
        differing = None if inside is None else _differing_file(inside, places)
        if differing is not None:
            reason = (
                f"A and B both load {path}, although {differing} differs between them. Name it by "
                f"its path in the repository ({inside}); to measure both with one version, copy it "
                "to a folder outside of the repository"
            )
            raise FlagError(flag, text, reason) if flag else UsageError(reason)
    if a.python is None and b.python is None:
        _refuse_shared(a, b, places, roots)


def _repo_root(folder: Path) -> Path:
    """The top of the repository that contains a folder; the folder itself if there is none."""
    try:
        return Path(git("rev-parse", "--show-toplevel", folder=folder)).resolve()
    except GitError:
        return folder


def _worktrees(place: Path) -> list[Path]:
    """The folders of all worktrees of a repository, including the main one."""
    try:
        lines = git("worktree", "list", "--porcelain", folder=place).splitlines()
    except GitError:
        return []
    start = "worktree "
    return [Path(line.removeprefix(start)).resolve() for line in lines if line.startswith(start)]


def _shared_paths(a: AbSide, b: AbSide) -> Iterator[tuple[str, str, Path]]:
    """Yields the files and folders that A and B load from the same place: the flag that names the
    path and its value, both "" for files that plug-ins use, and the path.
    """
    for flag, text in a.given_flags.items():
        if text == b.given_flags.get(flag) and flag not in WRITTEN:
            for part in paths_in_value(text):
                if os.path.isabs(part) and os.path.exists(part):
                    yield flag, text, Path(os.path.realpath(part))
    for path in sorted({*a.resolved.parts} & {*b.resolved.parts}):
        yield "", "", Path(os.path.realpath(path))


def _differing_file(inside: Path, places: Sequence[Path]) -> Path | None:
    """The file that differs between the checkouts `places`, or None: the file `inside`, which is
    relative to the top of the repository, or the first one in this folder that git tracks.
    """
    a, b = (place / inside for place in places)
    if not (a.is_dir() and b.is_dir()):
        return inside if _files_differ(a, b) else None
    # Git compares the commits without reading the files, which may be a large data set.
    try:
        commits = [git("rev-parse", "HEAD", folder=place) for place in places]
        words = ("diff-tree", "-r", "-z", "--name-only", *commits, "--", f":(literal){inside}")
        changed = git(*words, folder=places[0])
    except GitError:
        return None
    return Path(changed.partition("\0")[0]) if changed else None


def _refuse_shared(a: AbSide, b: AbSide, places: Sequence[Path], roots: Iterable[Path]) -> None:
    shared = dict(a.resolved.packages.items() & b.resolved.packages.items())
    homes = [_package_homes(place, shared) for place in places]
    for name in sorted(homes[0].keys() & homes[1].keys()):
        loaded, own = Path(shared[name]), [home[name] for home in homes]
        differing = _differing_module(*own)
        if differing is None or not (
            any(root in loaded.parents for root in roots)
            or any(_has_equal_module(loaded, home) for home in own)
        ):
            continue
        folder = own[1].parent.relative_to(places[1]).as_posix()
        raise UsageError(
            f"A and B both load the package {name} from {loaded}, although "
            f"{differing.relative_to(places[1])} differs between them. Set PYTHONPATH={folder}, a "
            "relative path, so that each side loads its own version"
        )


def _package_homes(place: Path, names: Iterable[str]) -> dict[str, Path]:
    """Maps the names of the packages and modules that a checkout contains to their places. Packages
    within other packages are left out.
    """
    wanted = {*names}
    homes: dict[str, Path] = {}
    folders = [place]
    for _ in range(_DEPTH + 1):
        below = []
        for folder in folders:
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    if not (path / "__init__.py").is_file():
                        below.append(path)
                    elif entry.name in wanted:
                        homes.setdefault(entry.name, path)
                elif path.suffix == ".py" and path.stem in wanted:
                    homes.setdefault(path.stem, path)
        folders = below
    return homes


def _module_files(place: Path) -> dict[str, Path]:
    if place.is_file():
        return {place.name: place}
    return {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*.py"))}


def _differing_module(a: Path, b: Path) -> Path | None:
    """The first module that differs between two versions of a package, in B or, if only A has it,
    where B would have it.
    """
    in_a, in_b = _module_files(a), _module_files(b)
    for name in sorted(in_a.keys() | in_b.keys()):
        if not (name in in_a and name in in_b and not _files_differ(in_a[name], in_b[name])):
            return in_b.get(name, b / name)
    return None


def _has_equal_module(loaded: Path, home: Path) -> bool:
    """Whether a module that is not empty is equal in the loaded package and in a checkout, so that
    the loaded package is an installed copy, and not another package of the same name.
    """
    installed = _module_files(loaded)
    return any(
        name in installed and path.stat().st_size and not _files_differ(path, installed[name])
        for name, path in _module_files(home).items()
    )


def _files_differ(a: Path, b: Path) -> bool:
    """Whether two files exist and have different contents."""
    return a.is_file() and b.is_file() and not filecmp.cmp(a, b, shallow=False)
