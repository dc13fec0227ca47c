"""Roles of flags: what counts for the identity of a run, and that lists of flags follow."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from other_values import other

import cnnbench
from cnnbench.flags import FLAGS, Params
from cnnbench.flags.declare import Counted
from cnnbench.flags.params import SPECS, identity
from cnnbench.judge.compare.configuration import Configuration

MOST_LISTS = 15
"""Lists of names of flags in the package, each for a reason that no role or part tells."""

_LITERALS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def _own(statement):
    """The expressions of a statement, without those of statements in it."""
    waiting = [statement]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, ast.stmt):
                waiting.append(child)
                yield child


def _strings(node):
    """The strings of a literal and of literals in it, but not of calls."""
    if isinstance(node, ast.Constant):
        return {node.value}
    inner = ast.iter_child_nodes(node) if isinstance(node, (*_LITERALS, ast.Starred)) else ()
    return set().union(*map(_strings, inner))


def lists_of_flags(tree):
    """Lines of the statements with a literal that names three flags or more; a table is one.

    A dictionary in a function assigns values, and is no list.
    """
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
    }
    return [
        statement.lineno
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt)
        if any(
            isinstance(node, _LITERALS)
            and id(node) not in inner
            and len(_strings(node) & SPECS.keys()) >= 3
            for node in _own(statement)
        )
    ]


@pytest.mark.parametrize("spec", FLAGS, ids=lambda spec: spec.name)
def test_the_role_of_a_flag_decides_for_judge_and_campaigns(spec, runs):
    usual, changed = Params().as_dict(), {**Params().as_dict(), spec.name: other(spec)}
    counts = spec.role.counted is not Counted.NOTHING
    for of_places in (False, True):
        same = identity(usual, of_places=of_places) == identity(changed, of_places=of_places)
        assert same is not counts
    if spec.name != "use_fp16":  # compared as --precision
        record = replace(runs(), losses=(), warmup_losses=())
        keys = {Configuration.of(replace(record, config=one)).key for one in (usual, changed)}
        assert (len(keys) == 2) is counts


def test_of_places_their_presence_counts_and_on_one_machine_which():
    here, there = {"data_dir": "/a", "gpu_indices": "0"}, {"data_dir": "/b", "gpu_indices": "1"}
    assert identity(here) == identity(there) == {"data_dir": True, "gpu_indices": 1}
    assert identity(here, of_places=True) == here
    assert identity({"trace_file": "a"}, of_places=True) == {"trace_file": True}
    assert identity({"flag_of_a_later_version": 3}) == {"flag_of_a_later_version": 3}


def test_lists_of_names_of_flags_follow_from_declarations():
    root = Path(cnnbench.__file__).parent
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted(root.rglob("*.py"))
        # Declarations of optimizers say which flags they read, and readers know the words of other
        # programs.
        if not {"optimizers", "readers"} & {*path.parts}
        for line in lists_of_flags(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) <= MOST_LISTS, "\n".join(found)
