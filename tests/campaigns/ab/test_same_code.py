"""Commits whose files that differ no run loads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from cnnbench.campaigns.ab.same_code import find_same_code, matches_any_pattern

Commit = Callable[..., str]


FILES = {
    **{"README.md": "a", "docs/a.png": "x", "bench/notes.md": "n"},
    "bench/nets.py": "FILES = ['notes.md']\n",
    "bench/more.py": "FILES: list = []\nFILES = ('notes.md',)\n",
    "bench/computed.py": "FILES = [*map(str, ())]\n",
    "bench/changed.py": "FILES = []\nFILES.append('notes.md')\n",
    "bench/starred.py": "from nets import *\n",
    "bench/imported.py": "from nets import FILES\n",
    "bench/numbers.py": "FILES = [1]\n",
    "bench/broken.py": "FILES = [\n",
    "bench/plain.py": "x = 1\n",
}


def commit_in(folder: Path, git: Callable[..., str], files: Mapping[str, str | None]) -> str:
    """Commits files with these texts; None deletes one."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, git: Callable[..., str]) -> tuple[Path, str]:
    """A repository of plug-ins, which is copied, and its commit."""
    folder = tmp_path_factory.mktemp("nets")
    git(folder, "init", "--quiet", "-b", "main", "--template=")
    (folder / "bench").mkdir()
    (folder / "bench" / "linked.py").symlink_to("nets.py")
    return folder, commit_in(folder, git, FILES)


@pytest.fixture
def repository(
    first: tuple[Path, str],
    git: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, str, Commit]:
    """A repository of plug-ins, its commit, and commit({PATH: TEXT}): one more."""
    folder = tmp_path / "nets"
    shutil.copytree(first[0], folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder, first[1], partial(commit_in, folder, git)


PAGES = {"README.md": "b", "docs/b.png": "y", "LICENSE.txt": "z", ".github/x.yml": "w"}


@pytest.mark.parametrize(
    ("changed", "flags", "same"),
    [
        (PAGES, (), True),
        ({}, (), True),
        ({"README.md": None}, (), True),
        ({"bench/nets.txt": "m"}, (), False),
        ({"docs/helper.py": "m"}, (), False),  # a module
        ({"bench/own/notes.txt": "m"}, (), True),  # which further patterns say
        ({"bench/own/test_nets.py": "m"}, (), True),
        ({"bench/notes.md": "m"}, (), True),
        ({"bench/notes.md": "m"}, ("--plugin=bench/plain.py",), True),
        ({"bench/notes.md": "m"}, ("--plugin=bench/nets.py",), False),  # listed in FILES
        ({"docs/c.png": "m"}, ("--plugin=bench/nets.py",), True),
        ({"bench/notes.md": "m"}, ("--plugin=bench/plain.py,bench/nets.py",), False),
        ({"docs/a.png": "m"}, ("--data_dir=docs",), False),
        ({"README.md": "m"}, ("--data_dir=docs",), True),
        ({"README.md": "m"}, ("--data_dir=.",), False),
        ({"docs/a.png": "m"}, ("--data_dir", "bench,docs/*.png"), False),
        ({"docs/a.png": "m"}, ("--data_dir=../docs",), True),  # outside of the repository
        ({"docs/a.keras": "m"}, ("--model=keras:docs/a.keras",), False),
        ({"docs/b.keras": "m"}, ("--model=keras:docs/a.keras",), True),
        # What is unknown is a difference.
        ({"README.md": "m"}, ("--flagfile=bench/flags",), False),
        ({"README.md": "m"}, ("--plugin=bench/none.py",), False),
        ({"README.md": "m"}, ("--plugin=/nonesuch/own.py",), False),
        *(
            ({"README.md": "m"}, (f"--plugin=bench/{name}.py",), False)
            for name in ("computed", "changed", "starred", "imported", "numbers", "broken")
        ),
        ({"README.md": "m"}, ("--plugin=bench/more.py",), False),
        ({"README.md": "m"}, ("--plugin=bench/linked.py",), False),
    ],
)
def test_commits_of_the_same_code(
    repository: tuple[Path, str, Commit],
    changed: Mapping[str, str | None],
    flags: tuple[str, ...],
    same: bool,
) -> None:
    _, base, commit = repository
    new = commit(changed)
    found = find_same_code(base, new, ("--model=lenet", *flags), ("bench/own/",))
    if not same:
        assert found is None
        return
    assert found is not None
    assert (found.base, found.new, sorted(found.files)) == (base, new, sorted(changed))


def test_absolute_paths_may_be_inside(repository: tuple[Path, str, Commit]) -> None:
    folder, base, commit = repository
    new = commit({"docs/a.png": "m"})
    assert find_same_code(base, new, (f"--data_dir={folder}/docs",), ()) is None
    assert find_same_code(base, new, (f"--data_dir={folder}/docs/b",), ()) is not None
    assert find_same_code(base, new, (f"--data_dir={folder}/bench",), ()) is None  # with a link
    plugin = f"--plugin={folder}/bench/nets.py"
    assert find_same_code(base, new, (plugin,), ()) is not None
    assert find_same_code(base, commit({"bench/notes.md": "m"}), (plugin,), ()) is None


def test_files_with_the_names_of_the_commits_change_nothing(
    repository: tuple[Path, str, Commit],
) -> None:
    folder, base, commit = repository
    new = commit({"README.md": "m"})
    for name in (base, new):
        (folder / name).touch()
    assert find_same_code(base, new, (), ()) is not None


def test_plug_ins_outside_are_read(repository: tuple[Path, str, Commit], tmp_path: Path) -> None:
    folder, base, commit = repository
    plugin = tmp_path / "own.py"
    plugin.write_text(f"FILES = ['{folder}/docs/a.png']\n")
    new = commit({"docs/a.png": "m"})
    assert find_same_code(base, new, (f"--plugin={plugin}",), ()) is None
    plugin.write_text("FILES = ['a.png']\n")
    assert find_same_code(base, new, (f"--plugin={plugin}",), ()) is not None


def test_links_and_unknown_commits_are_differences(
    repository: tuple[Path, str, Commit], git: Callable[..., str]
) -> None:
    folder, base, commit = repository
    (folder / "docs" / "b.md").symlink_to("../README.md")
    assert find_same_code(base, commit({}), (), ()) is None
    assert find_same_code(base, "0" * 40, (), ()) is None
    assert git(folder, "rev-parse", "HEAD") != base


@pytest.mark.parametrize(
    ("path", "pattern", "matches"),
    [
        ("README.md", "*.md", True),
        ("a/b/README.md", "*.md", True),
        ("a/b/README.txt", "*.md", False),
        ("docs/a/b.png", "docs/**", True),
        ("docs/a/b.png", "docs/", True),
        ("docs/a/b.png", "docs/*", False),
        ("docs/b.png", "docs/*", True),
        ("my/docs/b.png", "docs/**", False),
        ("my/docs/b.png", "**/docs/*.png", True),
        ("docs/b.png", "**/docs/*.png", True),
        ("docs", "docs/a", False),
        ("docs/a", "docs/a/b", False),
    ],
)
def test_patterns_of_files(path: str, pattern: str, matches: bool) -> None:
    assert matches_any_pattern(path, (pattern,)) is matches
    assert matches_any_pattern(path, ("nonesuch", pattern)) is matches
    assert not matches_any_pattern(path, ())
