"""The auxiliary head of Inception 3 and the NASNets: off by default, and of training alone.

Tests models/shared_blocks.py, models/networks/nasnet.py and models/networks/inception.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from networks import forward
from short_runs import build

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.models import declare, get_model, register_model
from cnnbench.models.networks.nasnet import NasnetCell, NasNetCifar10, NasNetSize
from cnnbench.plan import make_plan


class SimpleCell(NasnetCell):
    def normal(self, x, previous):
        return self.net.conv(x, self.filters, 1)

    def reduction(self, x, previous):
        return self.net.conv(x, self.filters, 3, 2)


class Smallest(NasNetCifar10):
    """The smallest network with a head, of simple cells."""

    def __init__(self):
        super().__init__()
        self.size = NasNetSize(cells=3, filters=4, stem=12)

    def _cell(self, net, filters, number):
        return SimpleCell(net, filters, 1.0)


def switched_on(name, dataset="imagenet"):
    model = get_model(name, dataset)
    model.aux_head = True
    return model


def test_inception3_with_its_head_has_the_published_size():
    spec = declare(switched_on("inception3"), 1000)
    # torchvision's, whose batch norm has scales: half as many as there are moving averages.
    assert spec.parameters + spec.statistics // 2 == 27_161_264


def test_initial_values():
    first = {v.name: v.initializer for v in declare(switched_on("inception3"), 1001).variables}
    assert first["aux/conv1/kernel"].stddev == 0.01
    assert first["aux/affine0/kernel"].stddev == 0.001


# Channels of six branches of the second group; a 14, 21 and 16 pixels wide image averaged.
@pytest.mark.parametrize(
    ("name", "dataset", "channels", "side"),
    [
        *(("nasnet", "imagenet", 528, 4), ("nasnetlarge", "imagenet", 2016, 6)),
        ("nasnet", "cifar10", 384, 4),
    ],
)
def test_nasnets_have_it_before_their_second_reduction(name, dataset, channels, side):
    without = {v.name for v in declare(get_model(name, dataset), 11).variables}
    variables = declare(switched_on(name, dataset), 11).variables
    head = {v.name: v.shape for v in variables if v.name not in without}
    assert {name.partition("/")[0] for name in head} == {"aux"}
    assert head["aux/conv0/kernel"] == (1, 1, channels, 128)
    assert head["aux/conv1/kernel"] == (side, side, 128, 768)
    assert head["aux/affine0/kernel"] == (768, 11)


def test_only_training_has_the_head(make_weights):
    model = switched_on("nasnet", "cifar10")
    model.size = model.size._replace(cells=3, filters=4)
    spec = declare(model, 11)
    weights = make_weights(spec.variables)
    images = tf.zeros((2, 32, 32, 3))
    assert forward(model, 11, images, weights.read, training=False).auxiliaries == []
    model.aux_head = False
    without = declare(model, 11)
    assert spec.forward_flops_per_image == without.forward_flops_per_image
    assert spec.training_flops_per_image > without.training_flops_per_image


def test_the_flag_switches_it_on():
    def parameters(**flags):
        return make_plan(Params(device="cpu", **flags)).network.spec.parameters

    more = parameters(model="inception3", aux_head=True) - parameters(model="inception3")
    assert more == 768 * 128 + 128 + 25 * 128 * 768 + 768 + 769 * 1001
    with pytest.raises(FlagError, match="--aux_head=true: --model=vgg11 has no auxiliary head;"):
        parameters(model="vgg11", aux_head=True)


def test_its_loss_counts_four_tenths(own_registry, quick_start):
    """The loss of a step is that of the network's logits and of the head's; simple cells do."""
    register_model("smallest", "cifar10", Smallest)
    flags = {"data_name": "cifar10", "aux_head": True, "batch_size": 4, "weight_decay": 0.0}
    built = build("smallest", **flags)
    weights = {n: v.primary.numpy() for n, v in built.manager.savable_variables().items()}
    images, labels, _ = built.inputs.get_tower_batch(0, ())
    made = forward(
        switched_on("smallest", "cifar10"),
        11,
        images,
        lambda spec, dtype: tf.cast(weights[spec.name], dtype),
        training=True,
    )
    ((head, _),) = made.auxiliaries
    main, second = (
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for logits in (made.outputs, head)
    )
    expected = float(main + 0.4 * second)
    assert float(built.step(0.1).loss.numpy()) == pytest.approx(expected, rel=1e-5)
    built.close()
