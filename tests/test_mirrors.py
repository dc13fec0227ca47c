"""Each module of some packages has tests of its own: whoever changes it knows which to run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("base", "judge")
MODULES = [
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in sorted((ROOT / "cnnbench" / package).rglob("*.py"))
]


def has_code(path):
    """Whether the module defines a function or a class, and does not only list names."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(path.read_text()).body)


@pytest.fixture(scope="module")
def named():
    """The modules that docstrings of tests name as the ones that they test."""
    files = (path for package in PACKAGES for path in (ROOT / "tests" / package).rglob("test_*.py"))
    texts = (ast.get_docstring(ast.parse(path.read_text())) or "" for path in files)
    return {name for text in texts for name in re.findall(r"cnnbench/[\w/]+\.py", text)}


@pytest.mark.parametrize("module", [one for one in MODULES if has_code(ROOT / one)], ids=str)
def test_a_module_has_a_test_of_its_name_or_is_named_by_one(module, named):
    own = ROOT / "tests" / module.parent.relative_to("cnnbench") / f"test_{module.name}"
    assert own.exists() or module.as_posix() in named


def test_docstrings_name_modules_that_exist(named):
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
