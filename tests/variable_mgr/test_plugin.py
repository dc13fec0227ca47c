"""Modes of the user's own: plug-in files and entry points, and what is wrong with them.

Tests variable_mgr/spec.py and variable_mgr/registry.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench import BenchmarkCNN, Params
from cnnbench.errors import FlagError, UsageError
from cnnbench.plan import check_flags, parse_run
from cnnbench.variable_mgr import VariableMgrSpec, create, load_plugin, names
from cnnbench.variable_mgr.registry import find_mode

pytestmark = pytest.mark.usefixtures("quick_start")

OWN = (f"--plugin={LOCAL_SGD_PLUGIN}", f"--variable_update={LOCAL_SGD}")
SMALL = ("--model=lenet", "--num_gpus=2", "--batch_size=4")

OWN_FLAG = "--plugin="

MANAGER = """
from cnnbench.variable_mgr import Mode, Reduction, register_mode
from cnnbench.variable_mgr.per_tower import IndependentVariableMgr

class Own(IndependentVariableMgr):
    {body}

register_mode(Mode(name="{name}", manager=Own, {row}))
"""


RULES = """
from cnnbench.variable_mgr import no_effect, refuse

RULES = (
    refuse("bn_stats", lambda plan: plan.params.bn_stats == "mean", "mode own has no means"),
    no_effect("weight_decay", lambda plan: plan.params.optimizer == "sgd", "in mode own with sgd"),
)
"""


@pytest.fixture
def plugin(tmp_path):
    """plugin(text) or plugin(body=..., row=...): the path of a file that registers a mode `own`."""

    def write(text="", body="pass", row="", name="own"):
        path = tmp_path / "own.py"
        path.write_text(text or MANAGER.format(body=body, row=row, name=name))
        return str(path)

    return write


def test_the_documented_example_is_the_one_that_is_tested():
    plugin = Path(LOCAL_SGD_PLUGIN)
    lines = plugin.read_text(encoding="utf-8").splitlines()
    assert 30 <= len(lines) <= 40
    document = (plugin.parents[1] / "own_mode.md").read_text(encoding="utf-8")
    words = " ".join(document.split())
    assert f"(examples/{plugin.name}) is a complete plug-in of {len(lines)} lines" in words
    assert f"```python\n{lines[-1]}\n```" in document


def test_the_mode_of_a_plug_in_is_a_value_of_the_flag():
    with pytest.raises(FlagError, match=r"must be one of .*parameter_server, .*strategy$"):
        parse_run([OWN[1]])
    assert parse_run([*OWN, "--num_gpus=2"]).place.mode.name == LOCAL_SGD
    assert names()[-1] == LOCAL_SGD
    check_flags(Params(plugin=LOCAL_SGD_PLUGIN, variable_update=LOCAL_SGD))


def test_help_lists_it(call):
    assert LOCAL_SGD not in call("run", "--help").out
    for words in ([OWN[0]], ["--plugin", LOCAL_SGD_PLUGIN]):
        assert f", {LOCAL_SGD})" in " ".join(call("run", *words, "--help").out.split())


def test_its_row_gives_refusals_and_notices(plugin):
    text = MANAGER.format(body="pass", row="rules=RULES, in_sync=False", name="own")
    path = plugin(text.replace("\nclass Own", RULES + "\nclass Own"))
    own = [f"--plugin={path}", "--variable_update=own", "--num_gpus=2"]
    with pytest.raises(FlagError, match=r"--bn_stats=mean: mode own has no means"):
        parse_run([*own, "--bn_stats=mean"])
    notices = parse_run(
        [*own, "--check_replica_consistency=1", "--all_reduce_spec=xring", "--weight_decay=1"]
    ).notices
    assert notices == (
        "--check_replica_consistency has no effect with --variable_update=own: this mode does not "
        "keep the copies of a variable equal",
        "--weight_decay has no effect in mode own with sgd",
        "--all_reduce_spec has no effect without --variable_update=replicated, "
        "distributed_all_reduce or collective_all_reduce",
    )


def test_a_mode_that_says_nothing_of_processes_is_refused_in_several():
    with pytest.raises(FlagError, match="works in one process only; with --job_name use") as caught:
        parse_run([*OWN, "--job_name=worker", "--worker_hosts=a:1,b:1"])
    assert caught.value.flag == "variable_update"


@pytest.mark.parametrize("processes", ["CONTROLLER", "CLIENT_PER_WORKER"])
def test_a_mode_that_says_so_runs_in_several(processes, plugin):
    text = MANAGER.format(body="pass", row=f"processes=Processes.{processes}", name="own")
    path = plugin(text.replace("import Mode,", "import Mode, Processes,"))
    job = ["--job_name=worker", "--worker_hosts=a:1,b:1"]
    found = parse_run([f"--plugin={path}", "--variable_update=own", *job])
    assert found.place.mode.processes.name == processes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MANAGER.format(body="pass", row="", name="replicated"), "replicated is registered"),
        (MANAGER.format(body="pass", row="rules=1", name="own"), "rules must be a tuple"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(
    text: str, message: str, plugin: Callable[..., str], call: Callable[..., Any]
) -> None:
    path = plugin(text)
    before = names()
    out, err = call("--variable_update=own", *SMALL, f"--plugin={path}", code=2)
    assert out == ""
    first, *frames = err.splitlines()
    assert first.startswith(f"cnnbench: error: {'' if frames else OWN_FLAG}{path}:")
    assert message in first
    assert all(line.startswith(f"cnnbench: at {path}:") for line in frames)
    assert names() == before


def spec(mode, devices):
    return VariableMgrSpec(mode=find_mode(mode), devices=devices, cpu_device=devices[0])


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (("manager=Own", 'manager="no_such_module:Own"'), "ModuleNotFoundError: No module named"),
        (("manager=Own", 'manager="json:Own"'), "AttributeError: module 'json' has no attribute"),
        (("manager=Own", 'manager="json:dumps"'), "TypeError: issubclass() arg 1 must be a class"),
        (
            ("manager=Own", "manager=Own, asynchronous=True"),
            "the manager of mode own must be a subclass of ParameterServerVariableMgr, not Own",
        ),
        (
            ("manager=Own", 'manager=Own, strategy="MirroredStrategy"'),
            "the manager of mode own must be a subclass of StrategyVariableMgr, not Own",
        ),
        (("pass", "def __init__(self, *of): 1 / 0"), "ZeroDivisionError"),
        (("IndependentVariableMgr", "VariableMgr"), "abstract"),
    ],
)
def test_a_class_that_cannot_be_made_is_one_line(replaced, message, plugin, cpu_devices):
    text = MANAGER.format(body="pass", row="", name="own").replace(*replaced)
    path = plugin(text.replace("per_tower import VariableMgr", "base import VariableMgr"))
    load_plugin(path)
    with pytest.raises(UsageError) as caught:
        create(spec("own", cpu_devices[:2]), ())
    assert f"{path}:" in str(caught.value)
    assert message in str(caught.value)


LIST = "must return a list, not None"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def preprocess_device_grads(self, columns): return columns[99999]", ": IndexError: list"),
        ("def read(self, tower, name, dtype): pass", " must return a Tensor, not None"),
        ("def append_apply_gradients(self, *of, **more): pass", f" {LIST}"),
        ("def after_updates(self): pass", f" {LIST}"),
        ("def updated(self, name): pass", " must return a TowerVariable, not None"),
        ("def create_variables(self): pass", " must return after all variables exist, not without"),
        ("def _create(self, variable): return 1 / 0", ": ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_a_method_names_file_line_and_method(body, told, plugin, call):
    path = plugin(body=body)
    own = [f"--plugin={path}", "--variable_update=own", "--num_warmup_batches=0"]
    printed = call(*SMALL, *own, "--device=cpu", "--num_batches=1", code=2)
    (err,) = (line for line in printed.err.splitlines() if "error: " in line)
    assert err.startswith(f"cnnbench: error: {path}:6: Own.{body[4 : body.index('(')]}(){told}")


def test_a_run_trains_and_its_record_names_mode_and_file():
    flags = {"variable_update": LOCAL_SGD, "plugin": LOCAL_SGD_PLUGIN}
    sizes = {"num_gpus": 2, "data_name": "cifar10", "num_batches": 3, "num_warmup_batches": 0}
    record = BenchmarkCNN(Params(model="trivial", device="cpu", **flags, **sizes)).run()
    assert record.status == "ok"
    assert record.placement is not None
    assert record.placement.variable_update == LOCAL_SGD
    assert record.placement.variable_copies == 2 * (record.placement.variables or 0)
    assert record.config["plugin"] == [LOCAL_SGD_PLUGIN]


# Installed entry points -----------------------------------------------------------------------

GROUP = "cnnbench.variable_mgr"


PROVIDER = """
from cnnbench.variable_mgr import Mode, register_mode
MANAGER = "cnnbench.variable_mgr.per_tower:ReplicatedVariableMgr"
register_mode(Mode(name="installed", manager=MANAGER))
"""


def test_the_mode_of_an_entry_point_is_a_value_of_the_flag(install):
    install(GROUP, PROVIDER)
    assert parse_run(["--variable_update=installed"]).place.mode.name == "installed"


def test_a_broken_entry_point_is_named_and_other_modes_still_work(install, call):
    install(GROUP, "raise OSError('gone')")
    assert parse_run(["--variable_update=replicated"]).params.variable_update == "replicated"
    message = r"/cnnbench_provider\.py:1: <module>: OSError: gone"
    for ask in (names, lambda: parse_run(["--variable_update=installed"])):
        with pytest.raises(UsageError, match=message):
            ask()
    assert "parameter_server_strategy" in call("run", "--help").out
