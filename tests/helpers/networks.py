"""Networks made small: of many equal blocks a few narrow ones, and of any network a small image.

Also the network of operations for tests of single layers, whose variables have given values.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.models import LearningRateSpec, Model, get_model, registry
from cnnbench.models.declaration import declare
from cnnbench.models.graph import GraphNetwork
from cnnbench.models.networks.efficientnet import B0, MOBILE
from cnnbench.models.networks.regnet import WidthParameters

CUT = {
    "mobilenet": {"image_size": 32, "stages": (*MOBILE[:2], MOBILE[2]._replace(blocks=1))},
    "efficientnet_b0": {"image_size": 32, "stages": B0[:3]},
    "regnety_400mf": {"image_size": 32, "line": WidthParameters(4, 48, 120.0, 2.09, 8, 4)},
    "convnext_tiny": {"image_size": 32, "blocks": (1, 2, 1), "widths": (48, 96, 192)},
    "vit_b16": {"image_size": 32, "width": 192, "layers": 2, "heads": 3},
    "swin_t": {"image_size": 32, "window": 2, "width": 48, "layers": (2, 2), "heads": (2, 4)},
}
# Utterances of a second or so.
_SHORT = {"max_frames": 60, "min_frames": 50, "max_letters": 4}
# Batch norm at the end of most networks then has four values of each example.
_IMAGE_SIZES = (64, 96)


def cut(model: Model) -> Model:
    """The model itself, smaller if it is one of those."""
    for attribute, value in CUT.get(model.name, {}).items():
        setattr(model, attribute, value)
    return model


def with_small_examples(name: str, dataset: str) -> None:
    """Has a model take the smallest examples that it accepts, from now on in this process."""
    model = get_model(name, dataset)
    own = getattr(model, "image_size", 0)
    for attribute, value in _SHORT.items():
        if hasattr(model, attribute):
            setattr(model, attribute, value)
    for size in (*(size for size in _IMAGE_SIZES if size < own), *([own] if own else ())):
        model.image_size = size
        try:
            declare(model, 1001)
        except UsageError:
            continue
        break
    registry.MODELS[dataset, name] = lambda: model


def network(values, data_format="NHWC", dtype=tf.float32, **options):
    """A network, in training by default, which reads its variables from ``values`` by name."""
    return GraphNetwork(
        get_model("lenet", "imagenet"),
        4,
        lambda spec, wanted: tf.cast(values[spec.name], wanted),
        data_format=data_format,
        compute_dtype=dtype,
        **{"training": True, **options},
    )


def forward(model, num_classes, features, read, *, make=GraphNetwork, **settings):
    """Outputs, moments and auxiliary heads of a network, once made."""
    net = make(model, num_classes, read, **settings)
    outputs = net.forward(features)
    return SimpleNamespace(outputs=outputs, updates=net.updates, auxiliaries=net.auxiliaries)


def model_of(body, image_size=8):
    """A model with that body."""

    class Probe(Model):
        name = "probe"
        dataset = "imagenet"
        batch_size = 2
        learning_rate = LearningRateSpec(0.1)

        def build(self, net, images):
            return body(net, images)

    probe = Probe()
    probe.image_size = image_size
    return probe


def shape_of(layer, image_size=8):
    """Shape that one layer makes of square images of three channels, computed without them."""
    seen = []

    def body(net, images):
        seen.append(net.shape(layer(net, images)))
        return net.logits(net.flatten(images))

    declare(model_of(body, image_size), 10)
    return seen[0]


def normal(*shape, seed=0):
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def images_for(model, count=2):
    """Random images that a model takes."""
    return tf.constant(normal(count, model.image_size, model.image_size, model.channels))


def convolved(images, kernel, strides, zeros, groups=1):
    """A convolution by its definition, in NHWC, after zeros around height and width."""
    padded = np.pad(images, [(0, 0), *zeros, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[:2], (1, 2))
    windows = np.split(windows[:, :: strides[0], :: strides[1]], groups, 3)
    pairs = zip(windows, np.split(kernel, groups, 3), strict=True)
    return np.concatenate([np.einsum("nrcihw,hwio->nrco", *pair) for pair in pairs], 3)
