"""Files that A and B load from one place, although their checkouts contain two versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cnnbench.base.plugins import loaded_packages
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.errors import UsageError


def write(folder, **files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


FILES = {
    "bench/nets.py": "x = 1",
    "bench/same.py": "same",
    "src/ours/__init__.py": "",
    "src/ours/sub/__init__.py": "common = 1",
    "src/ours/sub/width.py": "width = 1",
    "src/equal/__init__.py": "equal = 1",
    "one.py": "one = 1",
}


@pytest.fixture
def sides(tmp_path, git):
    """A repository, and A and B in worktrees of its two commits."""
    top = tmp_path / "top"
    write(top, **FILES)
    git(top, "init", "--quiet", "--initial-branch=main")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "one")
    changed = {"bench/nets.py": "x = 2", "src/ours/sub/width.py": "width = 2", "one.py": "one = 2"}
    write(top, **changed, **{"bench/new.py": "new"})
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "two")
    made = {}
    for name, commit in {"a": "HEAD~1", "b": "HEAD"}.items():
        git(top, "worktree", "add", "--quiet", "--detach", tmp_path / name, commit)
        made[name] = AbSide(checkout=tmp_path / name, flags=("--model=ours",))
    return made


def with_all(sides, flags=(), **resolved):
    return {
        name: replace(side, flags=(*side.flags, *flags), resolved=ResolvedRun(**resolved))
        for name, side in sides.items()
    }


@pytest.mark.parametrize(
    ("plugin", "is_refused"),
    [
        ("{top}/bench/nets.py", True),
        ("{a}/bench/nets.py", True),
        ("{top}/bench/same.py,{top}/bench/nets.py", True),
        ("bench/nets.py", False),
        ("{top}/bench/same.py", False),
        ("{top}/bench/new.py", False),  # A does not contain it
        ("{outside}/nets.py", False),
    ],
)
def test_a_plug_in_from_one_place(sides, tmp_path, plugin, is_refused):
    write(tmp_path / "outside", **{"nets.py": "x = 3"})
    places = {name: tmp_path / name for name in ("top", "a", "outside")}
    both = with_all(sides, [f"--plugin={plugin.format(**places)}"])
    if not is_refused:
        refuse_shared_code(both)
        return
    message = "although bench/nets.py differs between them. Name it by its path in the repository"
    with pytest.raises(UsageError, match=message):
        refuse_shared_code(both)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--data_dir={top}/bench", "bench/nets.py"),
        ("--data_dir={top}/src", "src/ours/sub/width.py"),
        ("--model=keras:{top}/one.py", "one.py"),  # a file behind a prefix
        ("--data_dir={top}/src/equal", None),
        ("--data_dir=bench", None),
        ("--data_dir={outside}", None),
        ("--data_dir={top}/none", None),
        ("--benchmark_log_dir={top}/bench", None),  # a run writes it
    ],
)
def test_a_folder_or_a_model_from_one_place(sides, tmp_path, flag, named):
    write(tmp_path / "outside", **{"nets.py": "x = 3"})
    write(tmp_path / "top", **{"bench/untracked.txt": "differs"})
    places = {name: tmp_path / name for name in ("top", "outside")}
    both = with_all(sides, [flag.format(**places)])
    if named is None:
        refuse_shared_code(both)
        return
    with pytest.raises(UsageError, match=f"although {named} differs between them. Name it by its"):
        refuse_shared_code(both)


def test_files_that_plug_ins_use(sides, tmp_path):
    refuse_shared_code(with_all(sides, parts=(str(tmp_path / "top/bench/same.py"),)))
    with pytest.raises(UsageError, match=r"both load .*/top/bench/nets\.py, although bench/nets"):
        refuse_shared_code(with_all(sides, parts=(str(tmp_path / "top/bench/nets.py"),)))


@pytest.mark.parametrize(
    ("name", "files", "path"),
    [
        ("ours", None, "src"),
        ("one", None, "."),
        ("equal", None, ""),
        ("ours", {"__init__.py": "", "sub/__init__.py": "common = 1", "sub/width.py": "3"}, "src"),
        ("ours", {"__init__.py": "", "other.py": "another package of this name"}, ""),
        ("sub", {"__init__.py": "common = 1"}, ""),  # not a package of its own in the repository
    ],
)
def test_a_package_from_one_place(sides, tmp_path, name, files, path):
    """Of the repository's own files, or of an installed copy of them."""
    place = tmp_path / "top" / ("one.py" if name == "one" else f"src/{name}")
    if files is not None:
        place = tmp_path / "site-packages" / name
        write(place, **files)
    both = with_all(sides, packages={name: str(place)})
    if not path:
        refuse_shared_code(both)
        return
    with pytest.raises(UsageError, match=rf"the package {name} from .* Set PYTHONPATH={path}, a"):
        refuse_shared_code(both)
    own = {
        side: replace(part, resolved=ResolvedRun(packages={name: str(part.checkout / name)}))
        for side, part in sides.items()
    }
    refuse_shared_code(own)


def test_packages_of_this_process():
    packages = loaded_packages()
    assert Path(packages["numpy"]).name == "numpy"
    assert not {"os", "json", "cnnbench", "__main__"} & packages.keys()
