"""Networks, cut to a few blocks, take steps on two devices.

The gradients of all networks are those of models/test_networks.py.
"""

from __future__ import annotations

import math

import pytest
from small_networks import cut

from cnnbench import BenchmarkCNN, Params
from cnnbench.models import get_model, registry
from cnnbench.run.driver.console import Console

pytestmark = pytest.mark.usefixtures("quick_start")


def test_a_step_on_two_devices(monkeypatch):
    name = "mobilenet"
    model = cut(get_model(name, "imagenet"))
    monkeypatch.setitem(registry._factories, ("imagenet", name), lambda: model)
    record = BenchmarkCNN(
        Params(
            **{"model": name, "device": "cpu", "num_gpus": 2},
            **{"batch_size": 1, "num_warmup_batches": 0, "num_batches": 1},
        ),
        console=Console(None),
    ).run()
    assert record.placement.num_towers == 2
    assert [math.isfinite(loss) for loss in record.losses] == [True]


def test_a_network_without_batch_norm_learns_alike_on_one_device_and_on_two(monkeypatch):
    name = "vit_b16"
    model = cut(get_model(name, "imagenet"))
    monkeypatch.setitem(registry._factories, ("imagenet", name), lambda: model)

    def losses(towers):
        flags = {"num_batches": 3, "num_warmup_batches": 0, "init_learning_rate": 0.05}
        params = Params(model=name, device="cpu", num_gpus=towers, batch_size=4 // towers, **flags)
        return BenchmarkCNN(params, console=Console(None)).run().losses

    alone = losses(1)
    assert abs(alone[2] - alone[0]) > 0.1  # it does learn
    assert losses(2) == pytest.approx(alone, rel=1e-4)
