"""The matrix of versions covers what pyproject.toml promises, and its page has all of it.

Tests scripts/noxfile.py and scripts/first_losses.py.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import first_losses
import pytest
from first_losses import Case, problem_of

from cnnbench.variable_mgr.modes import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def cells():
    """The table CELLS, without an import of nox."""
    tree = ast.parse((ROOT / "scripts" / "noxfile.py").read_text(encoding="utf-8"))
    (found,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CELLS"
    ]
    return ast.literal_eval(found)


def test_each_promised_python_is_tried_with_each_tensorflow():
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    (least,) = set(re.findall(r'"tensorflow>=2\.(\d+)"', PROJECT))
    (newest,) = re.findall(
        r"than 2\.(\d+), cnnbench prints", (ROOT / "docs/install.md").read_text()
    )
    versions = [f"2.{minor}" for minor in range(int(least), int(newest) + 1)]
    absent = {("3.13", "2.18"), ("3.13", "2.19")}  # without wheels
    expected = {(python, version) for python in pythons for version in versions} - absent
    assert {*cells()} == expected | {(pythons[0], "least"), (pythons[-1], "newest")}


def test_the_page_has_a_row_for_each_cell():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+) \| (least|newest|2\.\d+)", page, re.MULTILINE)
    assert rows == [*cells()]


def case(code="", loss=None, exit_code=0):
    return Case("one", [sys.executable, "-c", code], loss, exit_code)


def writes(**record):
    return f"open('one.json', 'w').write({json.dumps(json.dumps(record))})"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (case(), ("ok", "")),
        (case("raise SystemExit(3)", exit_code=3), ("ok", "")),
        (case("raise SystemExit('cnnbench: error: no')"), ("", "exit code 1: cnnbench: error: no")),
        (case(writes(warmup_losses=[2.5], losses=[1.0]), 2.5001), ("2.5", "")),
        (case(writes(warmup_losses=[], losses=[1.0]), 1.0), ("1", "")),
        (
            case(writes(warmup_losses=[], losses=[1.01]), 1.0),
            ("1.01", "the first loss is 1.01, not 1"),
        ),
    ],
)
def test_a_case_holds_or_says_why_not(of, expected, tmp_path):
    assert problem_of(of, tmp_path) == expected


def test_every_mode_is_among_the_cases():
    words = [word for one in first_losses.CASES for word in one.words]
    named = {word.partition("=")[2] for word in words if word.startswith("--variable_update=")}
    assert named == {mode.name for mode in BUILT_IN}


def test_the_page_installs_all_dependencies_but_tensorflow():
    """Those of pyproject.toml, for packages such as tf-nightly."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^pip install \"absl-py.*(?:\n {4}.*)*", page, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))[2:]
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.DOTALL | re.MULTILINE)
    wanted = re.findall(r'^\s*"([^"]+)"', listed[1], re.MULTILINE)
    assert {one for one in wanted if one not in words} == {"tensorflow>=2.18", "keras>=3.5"}
    assert {*words} <= {*wanted}
