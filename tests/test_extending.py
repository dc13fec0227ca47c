"""docs/extending.md says how many files a new part touches; here they are counted in the sources.

A file counts if it names a part of that kind that is there, outside docstrings.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def _words(tree: ast.AST) -> set[str]:
    """Identifiers and texts, without docstrings."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.add(node.value)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


@cache
def _sources() -> dict[str, set[str]]:
    files = [
        f for top in ("cnnbench", "models", "variable_mgr") for f in (ROOT / top).rglob("*.py")
    ]
    return {
        str(file.relative_to(ROOT)): _words(ast.parse(file.read_text(encoding="utf-8")))
        for file in files
    }


def files_naming(*words: str) -> set[str]:
    """The source files with one of these words."""
    return {file for file, found in _sources().items() if found & set(words)}


def touched(recipe: str) -> int:
    """How many files a recipe says that it touches."""
    section = TEXT.partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
    found = re.search(r"Touches\s+(\d+)\s+files?", section)
    assert found is not None, recipe
    return int(found[1])


# Where a recipe sends what not every new part has.
OPTIONAL = {
    "cnnbench/flags/checks.py",
    "cnnbench/flags/ineffective.py",
    "cnnbench/judge/metrics/comparable_facts.py",
}


@pytest.mark.parametrize(
    ("recipe", "words", "optional"),
    [
        ("A variable manager", ("distributed_replicated",), set()),
        ("A variable manager", ("central_storage_strategy",), set()),
        ("A flag", ("allow_nonfinite",), OPTIONAL),
        ("A flag", ("sparse_to_dense_grads",), OPTIONAL),
        ("An optimizer", ("rmsprop", "rmsprop_decay"), set()),
    ],
)
def test_a_recipe_counts_its_files(recipe: str, words: tuple[str, ...], optional: set[str]) -> None:
    files = files_naming(*words) - optional
    assert len(files) == touched(recipe), sorted(files)
