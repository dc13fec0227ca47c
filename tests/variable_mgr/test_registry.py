"""Modes by name: the rows of the table, and what they name."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from cnnbench.base.text.table import with_table
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params, validate
from cnnbench.variable_mgr import (
    Mode,
    Processes,
    VariableMgrSpec,
    create,
    document,
    modes,
    names,
    registry,
)
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.modes import BUILT_IN, Reduction
from cnnbench.variable_mgr.per_tower import ReplicatedVariableMgr
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr

ROOT = Path(__file__).parents[2]
WORKERS = {"job_name": "worker", "worker_hosts": "a:1,b:1"}


def spec(mode, **fields):
    return VariableMgrSpec(variable_update=mode, devices=("/CPU:0",), cpu_device="/CPU:0", **fields)


@pytest.mark.parametrize("mode", BUILT_IN, ids=lambda mode: mode.name)
def test_a_row_names_a_manager_of_its_kind(mode):
    made = mode.manager_class()
    assert issubclass(made, VariableMgr)
    assert bool(mode.strategy) is issubclass(made, StrategyVariableMgr)


@pytest.mark.parametrize("mode", BUILT_IN, ids=lambda mode: mode.name)
def test_a_row_says_what_validation_and_the_job_go_by(mode):
    flags = {"variable_update": mode.name, **WORKERS, **mode.needs}
    if mode.uses_ps:
        flags["ps_hosts"] = "c:1"
    if mode.processes is Processes.COORDINATOR:
        flags["controller_host"] = "d:1"
    if mode.processes is not Processes.ONE:
        validate(Params(**flags))
        return
    with pytest.raises(FlagError, match="works in one process only") as caught:
        validate(Params(**flags))
    assert caught.value.flag == "variable_update"


def test_unknown_manager(declared):
    with pytest.raises(FlagError) as error:
        create(spec("horovod"), declared)
    assert str(error.value).startswith("--variable_update=horovod: must be one of ")
    for mode in ("independent", "mirrored_strategy", "one_device_strategy"):
        assert f"{mode}, " in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "replicated"}, "a mode replicated of --variable_update is registered already"),
        ({"name": "horovod"}, "a mode horovod of --variable_update is registered already"),
        ({"name": "Own Mode"}, "lower-case letters, digits and underscores, not 'Own Mode'"),
        ({"name": None}, "lower-case letters, digits and underscores, not None"),
        ({"manager": None}, "mode own needs a manager: a subclass of VariableMgr"),
        ({"manager": Mode}, "mode own needs a manager: a subclass of VariableMgr"),
        ({"manager": "own.py"}, "or 'module:Class' that names one, not 'own.py'"),
        ({"reduction": "mean"}, "reduction must be a Reduction, not 'mean'"),
        ({"processes": True}, "processes must be a Processes, not True"),
    ],
)
def test_a_row_that_cannot_be_is_refused(fields, message):
    with pytest.raises(UsageError) as caught:
        registry.register_mode(Mode(**{"name": "own", "manager": ReplicatedVariableMgr, **fields}))
    assert message in str(caught.value)
    assert "own" not in names()


def test_nothing_but_rows_is_registered():
    with pytest.raises(UsageError, match=r"register_mode takes a .*, not 'replicated'"):
        registry.register_mode("replicated")


@pytest.mark.parametrize(
    "row", [{"refuses": {"nosuch=1": "whose"}}, {"needs": {"nosuch": "1"}}], ids=str
)
def test_a_row_that_names_no_flag_is_refused(row, monkeypatch):
    own = dataclasses.replace(registry.find("replicated"), **row)
    monkeypatch.setitem(registry._modes, "replicated", own)
    with pytest.raises(UsageError, match="mode replicated names --nosuch, which is no flag"):
        validate(Params(variable_update="replicated"))


def _mode_names_in(path):
    names = {mode.name for mode in BUILT_IN}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value in names]


def test_modes_are_named_in_their_table_and_hardly_anywhere_else():
    table = Path(modes.__file__)
    assert len(_mode_names_in(table)) == len(BUILT_IN)
    files = [
        f for top in ("cnnbench", "models", "variable_mgr") for f in (ROOT / top).rglob("*.py")
    ]
    elsewhere = {
        f.name: found for f in files if f.name != table.name and (found := _mode_names_in(f))
    }
    assert sum(map(len, elsewhere.values())) <= 5, elsewhere


def test_the_documented_table_is_current():
    text = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
    message = "run: python -m cnnbench.variable_mgr.document docs/modes.md"
    assert with_table(text, document.NAME, document.table()) == text, message


def test_the_readme_names_every_mode():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [mode.name for mode in BUILT_IN if f"`{mode.name}`" not in text] == []


def test_what_reduces_by_all_reduce_has_no_other_algorithm():
    for mode in BUILT_IN:
        assert mode.reduction is Reduction.ALL_REDUCE or not mode.all_reduce
        assert mode.reduction is Reduction.ALL_REDUCE or not mode.by_size


def test_variables_with_one_name_are_refused(declared):
    with pytest.raises(UsageError, match="'conv0/bias' twice"):
        create(spec("replicated"), (*declared, declared[1]))


def make(**fields):
    given = {"variable_update": "replicated", "devices": ("a", "b"), "cpu_device": "c"}
    return VariableMgrSpec(**{**given, **fields})


@pytest.mark.parametrize(
    ("towers", "reduction", "scale"),
    [(1, "mean", None), (1, "sum", None), (2, "mean", 0.5), (8, "mean", 0.125), (2, "sum", None)],
)
def test_the_scale_of_a_sum_is_given_only_when_it_changes_something(towers, reduction, scale):
    assert make(devices=("d",) * towers, reduction=reduction).reduction_scale == scale


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"devices": ()}, "num_gpus"),
        ({"reduction": "max"}, "gradient_reduction"),
        ({"parameter_device": "disk"}, "local_parameter_device"),
    ],
)
def test_refusals_name_the_flag(fields, flag):
    with pytest.raises(FlagError) as error:
        make(**fields)
    assert error.value.flag == flag
