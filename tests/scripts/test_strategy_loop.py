"""The bare loops of strategies train what cnnbench trains."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import tensorflow as tf
from peers.children import strategy_loop

from cnnbench import BenchmarkCNN, Params

pytestmark = pytest.mark.usefixtures("quick_start")


def _mirrored(devices):
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def _central(devices):
    return tf.distribute.experimental.CentralStorageStrategy(list(devices), devices[0])


@pytest.mark.parametrize(
    ("make", "mode", "devices"),
    [
        (_mirrored, "mirrored_strategy", 2),
        (_central, "central_storage_strategy", 2),
        (lambda devices: tf.distribute.OneDeviceStrategy(devices[0]), "one_device_strategy", 1),
    ],
)
def test_losses_are_those_of_the_mode(make, mode, devices, cpu_devices):
    args = argparse.Namespace(model="trivial", batch_size=4, learning_rate=0.01, weight_decay=0.001)
    step = strategy_loop.make_step(args, make(cpu_devices[:devices]))
    losses = [step() for _ in range(3)]
    flags = {"variable_update": mode, "num_gpus": devices, "batch_size": 4 // devices}
    if mode == "mirrored_strategy":
        flags["cross_device_ops"] = "reduction_to_one_device"
    params = Params.from_dict(
        {
            **vars(strategy_loop.network("trivial")),
            **{"optimizer": "sgd", "init_learning_rate": 0.01, "weight_decay": 0.001},
            **{"num_batches": 3, "num_warmup_batches": 0, "loss_type_to_report": "base_loss"},
            **flags,
        }
    )
    np.testing.assert_allclose(losses, BenchmarkCNN(params).run().losses, rtol=1e-5)
    assert losses[2] < losses[0]
