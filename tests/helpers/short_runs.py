"""Runs of a few steps in this process, with what they print; runs that are only built."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cnnbench import BenchmarkCNN, Params, RunRecord
from cnnbench.base.terminal import MessageWriter
from cnnbench.cli import main
from cnnbench.run.driver.console import Console

if TYPE_CHECKING:
    from cnnbench.run.driver.work import EvaluatedTrainingWork

TINY = {
    "model": "trivial",
    "data_name": "cifar10",
    "device": "cpu",
    "batch_size": 2,
    "num_batches": 4,
    "num_warmup_batches": 2,
    "init_learning_rate": 0.01,
    "weight_decay": 0,  # with it, the graph of an update is twice as large
}


class Ran(NamedTuple):
    """A record, the lines of standard output, and standard error."""

    record: RunRecord
    lines: list[str]
    err: str


def run(**flags: object) -> Ran:
    """A run with `flags`, else those of `TINY`."""
    out, err = io.StringIO(), io.StringIO()
    params = Params.from_dict({**TINY, **flags})
    record = BenchmarkCNN(params, console=Console(out), messages=MessageWriter(err)).run()
    return Ran(record, out.getvalue().splitlines(), err.getvalue())


def command(*words: str, **flags: object) -> int:
    """The exit code of a command line with `flags`, else those of `TINY`, then `words`."""
    given = {**TINY, **flags}
    return main([*(f"--{name}={value}" for name, value in given.items()), *words])


NETWORKS = str(Path(__file__).parents[1] / "plugins" / "networks_plugin.py")
"""The plug-in of small networks."""
RATE = 0.0625

MODES = [
    pytest.param({"variable_update": "parameter_server"}, id="ps"),
    pytest.param({"variable_update": "replicated"}, id="replicated"),
    pytest.param({"variable_update": "distributed_replicated"}, id="shadows"),
    pytest.param({"variable_update": "independent"}, id="independent"),
    pytest.param(
        {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu:8:xring"},
        id="distributed",
    ),
    pytest.param(
        {
            "variable_update": "mirrored_strategy",
            "cross_device_ops": "reduction_to_one_device",
        },
        id="mirrored",
    ),
]
EVERYDAY_MODES = ("parameter_server", "mirrored_strategy")
"""Modes of the everyday suite where runs of all modes take long."""
# Distributed all-reduce updates as replicated does.
KINDS = [mode for mode in MODES if mode.id != "distributed"]


def build(model: str = "poison", **flags: object) -> EvaluatedTrainingWork:
    """A built run of a model, perhaps in plugins/, with variables initialised."""
    own = {"model": model, "device": "cpu", "num_warmup_batches": 0, "weight_decay": 0}
    built = BenchmarkCNN(Params.from_dict({**own, "plugin": NETWORKS, **flags})).build()
    built.manager.after_initialization()
    return built
