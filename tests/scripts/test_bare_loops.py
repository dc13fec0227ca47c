"""The bare loops that cnnbench is measured against are bare, and train what it trains."""

from __future__ import annotations

import argparse
import json
from collections import Counter

import bare_loop
import bare_network
import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import build

from cnnbench import BenchmarkCNN, Params
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.run.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("quick_start")
STEPS, WARMUP = 6, 2


def test_only_the_harness_goes_through_the_harness(monkeypatch, capsys):
    calls = Counter()

    def counted(owner, name):
        call = owner.__call__

        def count(self, *arguments):
            calls[name] += 1
            return call(self, *arguments)

        monkeypatch.setattr(owner, "__call__", count)

    counted(TrainStep, "harness")
    counted(TracedFunction, "function")
    params = Params(model="trivial", data_name="cifar10", device="cpu", batch_size=2)
    steps = {"num_batches": STEPS, "num_warmup_batches": WARMUP}
    bare_loop.BetweenBareLoops(params.replace(**steps)).run()
    harness, bare = STEPS + WARMUP, 2 * bare_loop.WARMUP + STEPS
    assert calls == {"harness": harness, "function": harness + bare}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "MEASURED" in line)
    measured = json.loads(line.removeprefix("MEASURED "))
    assert measured["batch"] == 2
    assert len(measured["step_seconds"]) == STEPS
    assert measured["bare_steps_per_sec"] > 0


def mirrored(args, devices):
    strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    return bare_network.make_step(args, strategy)


def central(args, devices):
    made = tf.distribute.experimental.CentralStorageStrategy(list(devices), devices[0])
    return bare_network.make_step(args, made)


def by_hand(args, devices):
    def means(number, gradients):
        return [tf.add_n(gradients) / float(len(gradients))] * len(gradients)

    return bare_network.make_step_by_hand(args, devices, means)


@pytest.mark.parametrize(
    ("make", "mode", "devices"),
    slow_if(
        lambda case: case[1] != "replicated",
        [
            (mirrored, "mirrored_strategy", 2),
            (central, "central_storage_strategy", 2),
            (by_hand, "replicated", 2),
        ],
    ),
)
def test_losses_are_those_of_the_mode(make, mode, devices, cpu_devices):
    args = argparse.Namespace(model="trivial", batch_size=4, learning_rate=0.01, weight_decay=0.001)
    step = make(args, cpu_devices[:devices])
    losses = [float(step()) for _ in range(3)]
    flags = {"variable_update": mode, "num_gpus": devices, "batch_size": 4 // devices}
    if mode == "mirrored_strategy":
        flags["cross_device_ops"] = "reduction_to_one_device"
    params = Params.from_dict(
        {
            **bare_network.network("trivial").as_dict(),
            **{"optimizer": "sgd", "init_learning_rate": 0.01, "weight_decay": 0.001},
            **{"num_batches": 3, "num_warmup_batches": 0, "loss_type_to_report": "base_loss"},
            **flags,
        }
    )
    np.testing.assert_allclose(losses, BenchmarkCNN(params).run().losses, rtol=1e-5)
    assert losses[2] < losses[0]


@pytest.mark.slow
def test_moving_averages_are_those_of_a_run():
    net = bare_network.BareNetwork(argparse.Namespace(model="resnet20"))
    variables = net.variables()
    _, _, moments = net.loss_and_gradients(variables, *net.rows(0, 2))
    bare_network.update_averages(variables, moments)
    built = build("resnet20", data_name="cifar10", batch_size=2)
    built.step(0.1)
    expected = built.manager.savable_variables()
    averages = [declared.name for declared, *_ in moments]
    assert len(averages) == 2 * 19
    for name in averages:
        found, wanted = variables[name].numpy(), expected[name].primary.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6, err_msg=name)
