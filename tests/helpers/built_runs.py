"""Runs that are built but not started, for tests of the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.flags import Params
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
from cnnbench.run.driver.build import BuiltRun

PLUGINS = Path(__file__).parents[1] / "plugins"
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


def build(model: str = "poison", **flags: object) -> BuiltRun:
    """A built run of a model in plugins/, whose variables are initialised, at rate `RATE`."""
    plugin = str(PLUGINS / f"{model}_plugin.py")
    own = {"model": model, "model_plugin": plugin, "device": "cpu", "num_warmup_batches": 0}
    built = BenchmarkCNN(Params.from_dict({**own, **flags})).build()
    built.manager.after_initialization()
    built.step.set_learning_rate(RATE)
    return built
