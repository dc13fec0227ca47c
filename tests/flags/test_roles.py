"""What flags affect: what counts for the identity of a run, and that lists of flags follow.

Tests cnnbench/flags/declare.py and cnnbench/flags/identity.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from other_values import other

from cnnbench.flags import FLAGS, Params
from cnnbench.flags.declare import ComparedBy
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.flags.identity import (
    changed_flags,
    identity_flags,
    nondefault_identity,
    recorded_defaults,
)
from cnnbench.flags.obsolete import OBSOLETE
from cnnbench.flags.params import SPECS
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.optimizers import OPTIMIZERS, SCHEDULES
from cnnbench.records.codec import encode

MOST_LISTS = 11
"""Lists of names of flags in the package, each for a reason that no declaration tells."""

REPEATED = {
    "attributes of networks, which plug-ins set": (
        *("aux_head", "batch_size", "data_format", "image_size", "keras_layers", "num_classes"),
    ),
    "keys of records": ("cluster", "device", "dtype", "model", "peers", "variable_update"),
    "keys of the packing in records of reductions": (
        *("agg_small_grads_max_bytes", "agg_small_grads_max_group", "allreduce_merge_scope"),
        *("gradient_bucket_bytes", "gradient_repacking", "variable_consistency"),
    ),
    "public fields of ReduceContext": ("communication_hint", "network_topology"),
    "public fields of VariableMgrSpec": ("ps_strategy", "variable_caching"),
    "a public field of VariableSpec": ("weight_decay",),
    "a public field of ScheduledSteps": ("warmup",),
}
"""Fields outside of cnnbench.flags with the name of a flag, and why they keep this name.

A part of the plan holds its flags, or a value of another name that follows from them.
"""

_DECLARING = {"flag", "redeclare_flag", "declare_quiet_flag"}
"""Functions that declare the flags of a command, which may have names of flags of runs."""

_LITERALS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


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
    lines = set()
    waiting = [(tree, 0, False)]
    while waiting:
        node, line, in_function = waiting.pop()
        if isinstance(node, ast.stmt):
            line = node.lineno
            in_function |= isinstance(node, ast.FunctionDef)
        is_list = isinstance(node, _LITERALS) and not (in_function and isinstance(node, ast.Dict))
        if is_list and len(_strings(node) & SPECS.keys()) >= 3:
            lines.add(line)
        waiting += ((child, line, in_function) for child in ast.iter_child_nodes(node))
    return sorted(lines)


def repeated_fields(tree, names):
    """Fields of the classes of a module with one of the names, except declarations of flags."""
    return {
        field.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if field.target.id in names
        if not (isinstance(field.value, ast.Call) and _name(field.value.func) in _DECLARING)
    }


def _name(function):
    return function.id if isinstance(function, ast.Name) else ""


@cache
def _sources():
    """The text of the modules of the product by path relative to the repository."""
    root = Path(__file__).parents[2]
    return {
        path.relative_to(root): path.read_text(encoding="utf-8")
        for top in ("cnnbench", "models", "variable_mgr")
        for path in sorted((root / top).rglob("*.py"))
    }


def _trees(pattern, names, least=1):
    """Path and tree of the modules in whose text a pattern finds so many of the names."""
    for path, text in _sources().items():
        if len({*re.findall(pattern, text, re.MULTILINE)} & names) >= least:
            yield path, ast.parse(text)


def test_how_a_flag_is_compared_decides_for_judge_and_campaigns(runs):
    usual, record = Params().as_dict(), replace(runs(), losses=(), warmup_losses=())

    def key(config):
        return Configuration.of(replace(record, config=config)).key

    for spec in FLAGS:
        changed = {**usual, spec.name: other(spec)}
        counts = spec.compared_by not in (ComparedBy.NOTHING, ComparedBy.SEED)
        for of_places in (False, True):
            one, another = (identity_flags(each, of_places=of_places) for each in (usual, changed))
            assert (one != another) is counts, spec.name
        if spec.name != "use_fp16":  # compared as --precision
            assert (key(usual) != key(changed)) is counts, spec.name


def test_what_distinguishes_a_record_from_a_run_without_flags():
    config = encode(Params(num_gpus=2, result_json="x", weight_decay=0.5).as_dict())
    earlier = {spec.name: spec.before for spec in FLAGS if spec.before is not None}
    assert earlier
    usual = {spec.name: encode(spec.default) for spec in (*FLAGS, *OBSOLETE)}
    assert recorded_defaults() == {**usual, **earlier}
    # What the flags do now that earlier versions did otherwise is no default of a record.
    now = {name: usual[name] for name in earlier}
    assert nondefault_identity(config) == {"num_gpus": 2, "weight_decay": 0.5, **now}
    assert nondefault_identity({**config, **earlier}) == {"num_gpus": 2, "weight_decay": 0.5}
    assert changed_flags({**config, **earlier})["result_json"] == "x"


def test_of_places_their_presence_counts_and_on_one_machine_which():
    here, there = {"data_dir": "/a", "gpu_indices": "0"}, {"data_dir": "/b", "gpu_indices": "1"}
    assert identity_flags(here) == identity_flags(there) == {"data_dir": True, "gpu_indices": 1}
    assert identity_flags(here, of_places=True) == here
    assert identity_flags({"trace_file": "a"}, of_places=True) == {"trace_file": True}
    assert identity_flags({"flag_of_a_later_version": 3}) == {"flag_of_a_later_version": 3}


def test_lists_of_names_of_flags_follow_from_declarations():
    found = [
        f"{path}:{line}"
        for path, tree in _trees(r"[\"'](\w+)[\"']", SPECS.keys(), 3)
        # Declarations of optimizers say which flags they read, readers know the words of other
        # programs, and the rules of a group of flags name the flags.
        if not {"optimizers", "readers", "groups"} & {*path.parts}
        for line in lists_of_flags(tree)
    ]
    assert len(found) <= MOST_LISTS, "\n".join(found)


def test_no_field_repeats_a_flag_without_a_reason():
    names = {spec.name for spec in (*FLAGS, *ALL_REDUCE_FLAGS)}
    names -= {*OPTIMIZERS.constants, *SCHEDULES.constants}
    found = {
        name
        for path, tree in _trees(r"^ +(\w+) *:", names)
        if path.parts[:2] != ("cnnbench", "flags")
        for name in repeated_fields(tree, names)
    }
    known = {name for fields in REPEATED.values() for name in fields}
    message = (
        "tests/flags/test_roles.py: REPEATED needs the reason for fields that have names of flags"
    )
    assert found <= known, f"{message}: {found - known}"
    assert known <= found
