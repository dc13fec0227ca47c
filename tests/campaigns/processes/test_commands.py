"""What makes two runs the same."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from cnnbench.campaigns.processes import commands


def test_keys_do_not_depend_on_the_order():
    key = commands.digest_key({"a": 1, "b": {"c": 2, "d": None}})
    assert key == commands.digest_key({"b": {"d": None, "c": 2}, "a": 1})
    assert key != commands.digest_key({"a": 1, "b": {"c": 2}})
    assert len(key) == commands.KEY_LENGTH
    assert int(key, 16) >= 0


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A cnnbench of our own, of which the digest is taken."""
    for name in ("run.py", "judge/x.py", "models/net.py"):
        (tmp_path / "cnnbench" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cnnbench" / name).write_text("1")

    class Found:
        def __init__(self, folder):
            self.submodule_search_locations = [str(folder)]

    def find(name):
        folder = tmp_path.joinpath(*name.split("."))
        return Found(folder) if folder.is_dir() else None

    monkeypatch.setattr(commands, "find_spec", find)
    commands.source_digest.cache_clear()
    yield tmp_path / "cnnbench"
    commands.source_digest.cache_clear()


@pytest.mark.parametrize(
    ("change", "matters"),
    [("run.py", True), ("models/net.py", True), ("new.py", True), ("judge/x.py", False)],
)
def test_the_sources_of_runs_count(package, change, matters):
    before = commands.source_digest()
    (package / change).write_text("2")
    commands.source_digest.cache_clear()
    assert (commands.source_digest() != before) is matters


def test_a_run_imports_nothing_of_what_does_not_count():
    modules = "run.driver.benchmark_cnn, run.driver.build, cli.commands.run, lab.allreduce.session"
    imports = "; ".join(f"import cnnbench.{name}" for name in modules.split(", "))
    code = f"import sys; {imports}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    names = [name for name in done.stdout.split() if name.startswith("cnnbench.")]
    loaded = {name.removeprefix("cnnbench.").replace(".", "/") + "/" for name in names}
    assert "run/driver/" in loaded
    assert not {name for name in loaded if name.startswith(commands.OTHER_COMMANDS)}


def test_the_digest_covers_the_mapped_packages():
    for name in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        (folder,) = util.find_spec(name).submodule_search_locations
        assert list(Path(folder).glob("*.py"))


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    assert commands._file_digest(str(tmp_path / "none")) is None
