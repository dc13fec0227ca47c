"""Each module has tests of its own: whoever changes it knows which to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = [ROOT / name for name in ("cnnbench", "models", "variable_mgr")]


def has_code(path):
    """Whether the module defines a function or a class, and does not only list names."""
    return re.search(r"^(async def|def|class) ", path.read_text(), re.M) is not None


@pytest.fixture(scope="module")
def named():
    """The modules that docstrings of tests name as the ones that they test; * is any name."""
    texts = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        docstring = re.match(r'"""(.*?)"""', path.read_text(), re.S)
        if docstring is not None and re.search(r"\bTests\b", docstring[1]):
            texts.append(docstring[1])
    pattern = r"(?<![\w/])(?:cnnbench|models|variable_mgr)/[\w/]*[\w*]\.py"
    return {name for text in texts for name in re.findall(pattern, text)}


def test_a_module_has_a_test_of_its_name_or_is_named_by_one(named):
    modules = [path for tree in TREES for path in tree.rglob("*.py") if has_code(path)]
    without = []
    for path in modules:
        module = path.relative_to(ROOT)
        folder = module.relative_to("cnnbench") if module.parts[0] == "cnnbench" else module
        own = ROOT / "tests" / folder.parent / f"test_{module.name}"
        if not own.exists() and not any(map(module.match, named)):
            without.append(str(module))
    assert without == [], "name each in the docstring of a test file: Tests FILE."
    assert len(modules) > 200


def test_docstrings_name_modules_that_exist(named):
    assert [name for name in sorted(named) if not [*ROOT.glob(name)]] == []
