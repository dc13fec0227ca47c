"""Networks of their real size against logits that torchvision's made of equal weights.

Tests models/networks/*.py.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from networks import forward
from torchvision_logits import CLASSES, draw, images

from cnnbench.models import get_model

LOGITS = json.loads((Path(__file__).parent / "references/torchvision.json").read_text())["logits"]

PERCEPTRON = {"affine2": "mlp.0.", "affine3": "mlp.3."}
VIT = {
    **{"conv0": "conv_proj.", "token": "class_token", "positions": "encoder.pos_embedding"},
    **{"layernorm0": "encoder.ln.", "affine0": "heads.head."},
}
VIT_LAYER = {
    **{"layernorm0": "ln_1.", "layernorm1": "ln_2."},
    **{"affine0": "self_attention.in_proj_", "affine1": "self_attention.out_proj."},
    **PERCEPTRON,
}
SWIN = {
    **{"conv0": "features.0.0.", "layernorm0": "features.0.2."},
    **{"layernorm1": "norm.", "affine0": "head."},
}
SWIN_LAYER = {
    **{"layernorm0": "norm1.", "layernorm1": "norm2."},
    **{"affine0": "attn.qkv.", "affine1": "attn.proj."},
    "distances": "attn.relative_position_bias_table",
    **PERCEPTRON,
}
SWIN_MERGING = {"layernorm0": "norm.", "affine0": "reduction."}
# What of a layer; a variable of its own has no such part.
PARTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias", None: ""}


def vit_name(name):
    layer, at, part = re.fullmatch(r"(?:layer(\d+)/)?(\w+?)(?:/(\w+))?", name).groups()
    if layer is None:
        return VIT[at] + PARTS[part]
    return f"encoder.layers.encoder_layer_{layer}.{VIT_LAYER[at]}{PARTS[part]}"


def swin_name(name):
    pattern = r"(?:stage(\d)/)?(?:layer(\d)/)?(\w+?)(?:/(\w+))?"
    stage, layer, at, part = re.fullmatch(pattern, name).groups()
    if stage is None:
        return SWIN[at] + PARTS[part]
    if layer is None:  # features 2, 4 and 6 join patches, 1, 3, 5 and 7 are the stages
        return f"features.{2 * int(stage)}.{SWIN_MERGING[at]}{PARTS[part]}"
    return f"features.{2 * int(stage) + 1}.{layer}.{SWIN_LAYER[at]}{PARTS[part]}"


def inception_name(name):
    scope, at, part = re.fullmatch(r"(aux/)?(\w+)/(\w+)", name).groups()
    at = at.replace("batchnorm", "conv").replace("affine0", "fc")
    return f"{'aux.' if scope else ''}{at}.{PARTS[part]}"


def read_as(names, spec, dtype):
    """The value of a variable, which torchvision has with the outputs first."""
    shape = spec.shape
    if not spec.name.endswith("kernel"):
        value = draw(names(spec.name), shape)
    elif len(shape) == 2:
        value = draw(names(spec.name), shape[::-1]).T
    else:
        height, width, inputs, outputs = shape
        value = draw(names(spec.name), (outputs, inputs, height, width)).transpose(2, 3, 1, 0)
    return tf.cast(tf.constant(value.reshape(shape)), dtype)


def made(model, names, *, training):
    given = tf.constant(images(model.name).transpose(0, 2, 3, 1))
    return forward(model, CLASSES, given, functools.partial(read_as, names), training=training)


def relative_error(found, expected):
    return np.linalg.norm(found - np.array(expected)) / np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "names"),
    [("vit_b16", vit_name), ("swin_t", swin_name)],
)
def test_logits(name, names):
    found = made(get_model(name, "imagenet"), names, training=False).outputs
    assert relative_error(found, LOGITS[name]) < 1e-5


@pytest.mark.slow
def test_auxiliary_head_of_inception3():
    model = get_model("inception3", "imagenet")
    model.aux_head = True
    ((found, weight),) = made(model, inception_name, training=True).auxiliaries
    assert weight == 0.4
    assert relative_error(found, LOGITS["inception3"]) < 1e-3
