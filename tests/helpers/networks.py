"""Networks made small: of many equal blocks a few narrow ones, and of any network a small image.

Also the network of operations for tests of single layers, whose variables have given values.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.models import BatchNorm, Model, get_model, registry
from cnnbench.models.declare import declare
from cnnbench.models.efficientnet import B0
from cnnbench.models.graph import GraphNetwork
from cnnbench.models.regnet import Line

CUT = {
    "mobilenet": {"image_size": 32, "stages": ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2))},
    "efficientnet_b0": {"image_size": 32, "stages": B0[:3]},
    "regnety_400mf": {"image_size": 32, "line": Line(4, 48, 120.0, 2.09, 8, 4)},
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
    registry._factories[dataset, name] = lambda: model


def network(values, data_format="NHWC", dtype=tf.float32, **options):
    """A network, in training by default, which reads its variables from ``values`` by name."""
    given = {"training": True, "batch_norm": BatchNorm(), "seed": 0, "on_cpu": True, **options}
    return GraphNetwork(
        4,
        lambda spec, wanted: tf.cast(values[spec.name], wanted),
        data_format=data_format,
        compute_dtype=dtype,
        **given,
    )


def normal(*shape, seed=0):
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
