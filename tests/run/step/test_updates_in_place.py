"""No update of a step copies its variable: the weights stay where they are in memory.

Tests cnnbench/run/step/update.py.
"""

import numpy as np
import pytest
from covering import slow_if
from short_runs import build

pytestmark = pytest.mark.usefixtures("quick_start")

STEPS = 4


def _addresses(built):
    """Where each copy of a weight with many elements begins."""
    found = {}
    for name, variable in built.manager.savable_variables().items():
        for index, copy in enumerate(variable.copies):
            if copy.trainable and copy.shape.num_elements() > 1000:
                value = np.asarray(memoryview(copy.read_value()))
                found[name, index] = value.__array_interface__["data"][0]
    return found


@pytest.mark.parametrize(
    "flags",
    slow_if(
        lambda flags: flags and "variable_consistency" not in flags,
        [
            {},
            # Dense layers of 16 rows are made by `few_rows_matmul`.
            {"weight_decay": 0.0, "optimizer": "adam", "batch_size": 16},
            {"num_gpus": 2, "local_parameter_device": "cpu", "loss_type_to_report": "base_loss"},
            {"num_gpus": 2, "variable_update": "replicated", "optimizer": "momentum"},
            {
                **{"num_gpus": 2, "variable_update": "replicated"},
                **{"variable_consistency": "relaxed", "optimizer": "rmsprop"},
                **{"precision": "bf16", "gradient_clip": 1.0},
            },
        ],
    ),
    ids=lambda flags: " ".join(f"{k}={v}" for k, v in flags.items()) or "defaults",
)
def test_weights_stay_where_they_are(flags):
    built = build("lenet", **{"batch_size": 2, **flags})
    built.step(0.01)  # may still move them: the initial values belonged to others too
    before = _addresses(built)
    weights = {name: built.manager.variable(0, name).numpy() for name, _ in before}
    assert before
    for _ in range(STEPS):
        built.step(0.01)
        assert _addresses(built) == before
    for name, old in weights.items():
        assert (built.manager.variable(0, name).numpy() != old).any(), name
    built.close()
