"""Networks that keras.applications defines alike: equal weights give equal logits."""

from __future__ import annotations

import collections
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models import declare, get_model
from cnnbench.models.graph import forward
from cnnbench.models.inception import InceptionV3

CLASSES = 7


def layers_as_made(theirs):
    """Keras' layers that have weights; numbers in its names follow the order of creation."""
    layers = [layer for layer in theirs.layers if layer.weights]
    number = {layer: int((re.findall(r"_(\d+)$", layer.name) or [0])[0]) for layer in layers}
    return sorted(layers, key=number.__getitem__)


def transfer(weights, theirs):
    """Gives our values to Keras' layers, kind by kind in order of creation."""
    ours = collections.defaultdict(list)
    for scope, names in itertools.groupby(weights.values, lambda name: name.rpartition("/")[0]):
        kind = re.sub(r"\d+$", "", scope.rpartition("/")[2])
        ours[kind].append([weights.values[name].numpy() for name in names])
    kinds = {"Conv2D": "conv", "BatchNormalization": "batchnorm", "Dense": "affine"}
    for layer in layers_as_made(theirs):
        layer.set_weights(ours[kinds[type(layer).__name__]].pop(0))
    assert not any(ours.values())


def check_equal(model, theirs, make_weights, bound=1e-4):
    size = model.image_size
    weights = make_weights(declare(model, CLASSES).variables)
    transfer(weights, theirs)
    images = np.random.default_rng(1).standard_normal((2, size, size, 3)).astype(np.float32)
    expected = theirs(images, training=False)
    ours = forward(model, CLASSES, tf.constant(images), weights.read, training=False).outputs
    assert float(tf.norm(ours - expected) / tf.norm(expected)) < bound


@pytest.mark.parametrize("depth", [16, 19])
def test_vgg(depth, make_weights):
    model = get_model(f"vgg{depth}", "imagenet")
    model.image_size = 32
    make = getattr(tf.keras.applications, f"VGG{depth}")
    theirs = make(
        weights=None, classes=CLASSES, classifier_activation=None, input_shape=(32, 32, 3)
    )
    check_equal(model, theirs, make_weights)


class KerasInceptionV3(InceptionV3):
    """The last module takes means too; ours, like the ancestor's, takes the maximum there."""

    def _e(self, net, x, *, last):
        return super()._e(net, x, last=False)


def test_inception3(make_weights):
    model = KerasInceptionV3()
    model.image_size = 75  # the least that Keras takes
    theirs = tf.keras.applications.InceptionV3(
        weights=None, classes=CLASSES, classifier_activation=None, input_shape=(75, 75, 3)
    )
    check_equal(model, theirs, make_weights)
