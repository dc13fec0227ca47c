"""One network of each family takes a step on two devices, at the smallest image it can."""

from __future__ import annotations

import dataclasses
import math

import pytest
from small_networks import CUT, cut

from cnnbench import BenchmarkCNN, Params
from cnnbench.models import get_model, registry
from cnnbench.models.nasnet import NasNet
from cnnbench.run.driver.console import Console

SMALLEST = {
    ("overfeat", "imagenet"): 71,
    ("vgg11", "imagenet"): 32,
    ("googlenet", "imagenet"): 32,
    ("inception3", "imagenet"): 75,
    ("official_resnet18", "imagenet"): 32,
    ("nasnet", "cifar10"): 32,
    ("densenet40_k12", "cifar10"): 32,
}


@pytest.mark.parametrize(("name", "dataset"), [*SMALLEST, *((name, "imagenet") for name in CUT)])
def test_a_step_on_two_devices(name, dataset, monkeypatch):
    model = cut(get_model(name, dataset))
    model.image_size = SMALLEST.get((name, dataset), model.image_size)
    if isinstance(model, NasNet):
        model.size = dataclasses.replace(model.size, cells=3, filters=8)
    monkeypatch.setitem(registry._factories, (dataset, name), lambda: model)
    record = BenchmarkCNN(
        Params(
            **{"model": name, "data_name": dataset, "device": "cpu", "num_gpus": 2},
            **{"batch_size": 1, "num_warmup_batches": 0, "num_batches": 1},
        ),
        console=Console(None),
    ).run()
    assert record.placement.num_towers == 2
    assert [math.isfinite(loss) for loss in record.losses] == [True]


@pytest.mark.parametrize("name", ["vit_b16", "convnext_tiny"])
def test_networks_without_batch_norm_learn_alike_on_one_device_and_on_two(name, monkeypatch):
    model = cut(get_model(name, "imagenet"))
    model.keep_last = 1.0  # towers drop branches of their own
    monkeypatch.setitem(registry._factories, ("imagenet", name), lambda: model)

    def losses(towers):
        flags = {"num_batches": 3, "num_warmup_batches": 0, "init_learning_rate": 0.05}
        params = Params(model=name, device="cpu", num_gpus=towers, batch_size=4 // towers, **flags)
        return BenchmarkCNN(params, console=Console(None)).run().losses

    alone = losses(1)
    assert abs(alone[2] - alone[0]) > 0.1  # it does learn
    assert losses(2) == pytest.approx(alone, rel=1e-4)
