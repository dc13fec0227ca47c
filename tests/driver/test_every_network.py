"""One network of each family takes a step on two devices, at the smallest image it can."""

from __future__ import annotations

import dataclasses
import math

import pytest
from small_networks import CUT, cut

from cnnbench import BenchmarkCNN, Params
from cnnbench.driver.console import Console
from cnnbench.models import get_model, registry
from cnnbench.models.nasnet import NasNet

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
