"""Steps whose backward pass computes the values of blocks again, against steps that store them.

Tests cnnbench/run/step/tower.py.
"""

import re

import numpy as np
import pytest
import short_runs
from short_runs import RATE

from cnnbench.models import LearningRateSpec, Model, register_model
from cnnbench.run.observe.graphs import collecting_partitions
from cnnbench.run.step.tower import Tower

pytestmark = pytest.mark.usefixtures("quick_start")


class Blocks(Model):
    """Two blocks of a convolution with batch norm and dropout."""

    name, dataset, image_size, batch_size = "blocks", "imagenet", 8, 2
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        x = net.conv(images, 8, 3, batch_norm=True)
        for number in range(2):
            with net.scope(f"block{number}"):
                x = net.block(self._block, x, keep=0.5)
        return net.logits(net.flatten(x))

    @staticmethod
    def _block(net, x, keep):
        y = net.conv(x, 8, 3, batch_norm=True, activation=None)
        return net.relu(net.add(x, net.dropout(y, keep)))


register_model("blocks", "imagenet", Blocks)


def trained(recompute, **flags):
    """Losses of three executions, and the weights, moving averages and slots after them."""
    own = {"optimizer": "momentum", "batch_size": 2, "recompute": recompute}
    built = short_runs.build("blocks", **own, **flags)
    rates = [RATE] * flags.get("steps_per_execution", 1)
    losses = [built.step(*rates).loss.numpy() for _ in range(3)]
    state = {**built.manager.savable_variables(), **built.slots}
    return losses, {name: one.primary.numpy() for name, one in state.items()}


def assert_equal_training(tolerance=1e-6, **flags):
    (losses, weights), (found, others) = (trained(each, **flags) for each in ("none", "blocks"))
    assert len(np.unique(losses)) == np.size(losses)
    np.testing.assert_allclose(found, losses, rtol=tolerance)
    for name, value in weights.items():
        error = np.abs(others[name] - value).max()
        assert error <= 10 * tolerance * np.abs(value).max(), name


@pytest.mark.slow
def test_a_strategy_trains_as_with_stored_values():
    """The ways below have variables that are shared, and copies."""
    how = {"variable_update": "mirrored_strategy", "cross_device_ops": "reduction_to_one_device"}
    assert_equal_training(num_gpus=2, **how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "tolerance"),
    [
        ({"bn_stats": "sync"}, 1e-6),
        ({"gradient_accumulation_steps": 2, "steps_per_execution": 2, "num_gpus": 1}, 1e-6),
        ({"staged_vars": True, "variable_update": "parameter_server"}, 1e-6),
        ({"precision": "fp16", "fp16_enable_auto_loss_scale": True}, 0.02),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_other_ways_of_a_step_train_as_with_stored_values(flags, tolerance):
    assert_equal_training(tolerance, **{"num_gpus": 2, "variable_update": "replicated", **flags})


@pytest.mark.slow
def test_towers_are_copied(monkeypatch):
    """The second tower is a copy of the graph of the first, as it is without recomputation."""
    traced = []
    trace = Tower.__call__

    def counted(tower, *args):
        traced.append(tower)
        return trace(tower, *args)

    monkeypatch.setattr(Tower, "__call__", counted)
    built = short_runs.build(
        "blocks", batch_size=2, num_gpus=2, variable_update="replicated", recompute="blocks"
    )
    assert len(traced) == 1
    assert built.step.notices == []


def test_tensorflow_stores_only_the_inputs_of_blocks():
    """In the graph after TensorFlow's optimizers, which merge equal operations."""
    built = short_runs.build("blocks", batch_size=2, num_gpus=1, recompute="blocks")
    graphs = []
    with collecting_partitions(graphs):
        built.step(RATE)
    nodes = {node.name: node for graph in graphs for node in graph.node}
    read = {
        name.partition(":")[0]
        for node in nodes.values()
        if "gradient_tape" in node.name
        for name in node.input
        if re.match(r"tower_0/block\d/", name)
    }
    values = {name for name in read if nodes[name].op not in ("Const", "ReadVariableOp")}
    # The result of the first block, which is the input of the second.
    assert values == {"tower_0/block0/IdentityN"}
    again = [n for n in nodes.values() if re.match(r"gradient_tape/tower_0/block\d/", n.name)]
    convolutions = [n for n in again if "Conv2D" in n.op and "Backprop" not in n.op]
    assert len(convolutions) == 2
    assert sum(node.op == "StatelessRandomUniformV2" for node in again) == 2
