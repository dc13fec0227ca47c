"""Networks that keras.applications defines alike: equal weights give equal logits.

Tests models/networks/inception.py, models/networks/nasnet.py, models/networks/efficientnet.py and
models/networks/convnext.py.
"""

from __future__ import annotations

import collections
import itertools
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models import get_model
from cnnbench.models.networks.inception import InceptionV3
from cnnbench.models.networks.nasnet import NasNet, NasnetCell, NasNetSize

pytestmark = pytest.mark.slow  # Keras takes seconds to import, and to build networks

CLASSES = 7


@pytest.fixture
def keras_layers(monkeypatch):
    """Keras' layers in the order in which they are made."""
    layers = []
    call = tf.keras.layers.Layer.__call__

    def recorded(layer, *args, **kwargs):
        if layer not in layers:
            layers.append(layer)
        return call(layer, *args, **kwargs)

    monkeypatch.setattr(tf.keras.layers.Layer, "__call__", recorded)
    return layers


KINDS = {
    **{"Conv2D": "conv", "SeparableConv2D": "separable", "DepthwiseConv2D": "depthwise"},
    **{"BatchNormalization": "batchnorm", "LayerNormalization": "layernorm", "Dense": "affine"},
    "LayerScale": "block",  # a variable of the block itself
}


def kind_of(layer):
    """Kind of our layer for a layer of Keras; None if it has no weights."""
    if "_se_" in layer.name and layer.weights:
        return "affine"  # in Keras a convolution of one pixel
    if "pointwise" in layer.name:
        return "conv"  # in Keras a matrix product over channels
    if getattr(layer, "groups", 1) > 1:
        return "depthwise"
    return KINDS.get(type(layer).__name__)


def transfer(values, layers):
    """Gives our values to Keras' layers, kind by kind in order of creation."""
    ours = collections.defaultdict(list)
    for scope, names in itertools.groupby(values, lambda name: name.rpartition("/")[0]):
        kind = re.sub(r"\d+$", "", scope.rpartition("/")[2])
        ours[kind].append([values[name].numpy() for name in names])
    for layer in layers:
        if kind := kind_of(layer):
            values = ours[kind].pop(0)
            # Before a norm, where ours have none, ResNet's convolutions have biases.
            values += [np.zeros(weight.shape) for weight in layer.weights[len(values) :]]
            pairs = zip(values, layer.weights, strict=True)
            layer.set_weights([value.reshape(weight.shape) for value, weight in pairs])
    assert not any(ours.values())


@pytest.fixture
def check_equal(keras_layers, check_logits):
    """check_equal(model, name, **options): compares it with a network of keras.applications.

    With `general`, it is what that function of the same module makes, with fewer layers.
    """

    def check(model, name, general=None, /, **options):
        size = model.image_size
        make = getattr(tf.keras.applications, name)
        if general is not None:
            make = getattr(sys.modules[make.__module__], general)
        theirs = make(
            weights=None,
            classes=CLASSES,
            classifier_activation=None,
            input_shape=(size, size, 3),
            **options,
        )
        for layer in theirs.layers:  # EfficientNet divides the images by 255 first
            if isinstance(layer, tf.keras.layers.Rescaling):
                layer.scale = 1.0

        def reference(values):
            transfer(values, keras_layers)
            return lambda images: theirs(images, training=False)

        check_logits(model, reference, CLASSES)

    return check


class KerasInceptionV3(InceptionV3):
    """The last module takes means too; ours, like the ancestor's, takes the maximum there."""

    last_pooling = (("mean", 192),)


def test_inception3(check_equal):
    model = KerasInceptionV3()
    model.image_size = 75  # the least that Keras takes
    check_equal(model, "InceptionV3")


class KerasCell(NasnetCell):
    """Where a pooling strides, Keras lets zeros around the image count; we follow the original."""

    def _pool(self, kind, x, stride=1):
        if stride == 1:
            return super()._pool(kind, x)
        height, width, channels = self.net.shape(x)
        before = height % 2
        pool = getattr(tf.nn, f"{kind}_pool2d")
        return self.net.apply(
            lambda y: pool(tf.pad(y, [(0, 0), (before, 1), (before, 1), (0, 0)]), 3, 2, "VALID"),
            x,
            shape=(-(-height // 2), -(-width // 2), channels),
        )


class KerasNasNet(NasNet):
    def _cell(self, net, filters, number):
        return KerasCell(net, filters, 1.0)


def test_nasnet(check_equal):
    model = KerasNasNet(
        "nasnet", NasNetSize(cells=3, filters=4, stem=8), image_size=40, batch_size=1
    )
    sizes = {"penultimate_filters": 24 * 4, "num_blocks": 1, "stem_block_filters": 8}
    check_equal(model, "NASNetMobile", "NASNet", skip_reduction=False, **sizes)


def scaled(depth, **options):
    """Options of an EfficientNet."""
    return {"width_coefficient": 1, "depth_coefficient": depth, "default_size": 32, **options}


@pytest.mark.parametrize(
    ("name", "sizes", "theirs", "options"),
    [
        ("vgg16", {}, ("VGG16",), {}),
        ("mobilenet", {}, ("MobileNetV2",), {}),
        ("efficientnet_b0", {"depth": 0.25}, ("EfficientNetB0", "EfficientNet"), scaled(0.25)),
        (
            *("efficientnetv2_s", {"depth": 0.25}, ("EfficientNetV2S", "EfficientNetV2")),
            scaled(0.25, name="efficientnetv2-s", include_preprocessing=False),
        ),
        (
            *("convnext_tiny", {"blocks": (1, 2, 1, 1)}, ("ConvNeXtTiny", "ConvNeXt")),
            {
                **{"depths": (1, 2, 1, 1), "projection_dims": (96, 192, 384, 768)},
                "include_preprocessing": False,
            },
        ),
    ],
)
def test_others(name, sizes, theirs, options, check_equal):
    model = get_model(name, "imagenet")
    for attribute, value in {"image_size": 32, **sizes}.items():
        setattr(model, attribute, value)
    check_equal(model, *theirs, **options)
