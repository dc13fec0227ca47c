"""What makes two runs the same: digests (identity.py)."""

from __future__ import annotations

import ast
import contextlib
from importlib import util
from pathlib import Path

import pytest

from cnnbench.campaigns.processes import identity
from cnnbench.campaigns.processes.identity import source_digest


def test_keys_do_not_depend_on_the_order():
    key = identity.json_digest({"a": 1, "b": {"c": 2, "d": None}})
    assert key == identity.json_digest({"b": {"d": None, "c": 2}, "a": 1})
    assert key != identity.json_digest({"a": 1, "b": {"c": 2}})
    assert len(key) == identity.KEY_LENGTH
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

    monkeypatch.setattr(identity, "find_spec", find)
    return tmp_path / "cnnbench"


@pytest.mark.parametrize(
    ("change", "matters"),
    [("run.py", True), ("models/net.py", True), ("new.py", True), ("judge/x.py", False)],
)
def test_the_sources_of_runs_count(package, change, matters):
    before = source_digest()
    (package / change).write_text("2")
    assert (source_digest() != before) is matters


def _imports(body):
    """Modules that statements import when they are executed, without those in functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Expr | ast.Assign):
            for name in ("body", "orelse", "handlers", "finalbody"):
                yield from _imports(getattr(node, name, ()))


def test_a_run_imports_nothing_of_what_does_not_count():
    modules = "run.driver.benchmark_cnn run.driver.build cli.running lab.all_reduce.session"
    waiting = [f"cnnbench.{name}" for name in modules.split()]
    loaded = set()
    while waiting:
        name = waiting.pop()
        if not name.startswith("cnnbench.") or name in loaded:
            continue
        waiting.append(name.rpartition(".")[0])
        with contextlib.suppress(ModuleNotFoundError):  # a name that is no module
            if (found := util.find_spec(name)) is not None:
                loaded.add(name)
                waiting += _imports(ast.parse(Path(found.origin).read_text()).body)
    paths = {name.removeprefix("cnnbench.").replace(".", "/") + "/" for name in loaded}
    assert {"run/driver/build/", "models/model/", "records/run/"} <= paths
    assert not {path for path in paths if path.startswith(identity.OTHER_COMMANDS)}


def test_the_digest_covers_the_mapped_packages():
    for name in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        (folder,) = util.find_spec(name).submodule_search_locations
        assert list(Path(folder).glob("*.py"))
