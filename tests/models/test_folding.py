"""Batch norm folded into the kernels in front of it, for inference.

Tests models/graph.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from networks import cut, forward, images_for

from cnnbench.models import declare, get_model


def logits_of(model, weights, images, *, fold, frozen=False, **options):
    """Logits, and the operations of the graph by type."""
    variables = {name: tf.Variable(value) for name, value in weights.values.items()}

    def read(spec, dtype):
        if frozen:
            return tf.constant(weights.values[spec.name].numpy(), dtype)
        return tf.cast(variables[spec.name], dtype)

    @tf.function(autograph=False)
    def step(images):
        made = forward(model, 11, images, read, training=False, fold_batch_norm=fold, **options)
        return made.outputs

    graph = step.get_concrete_function(images).graph
    return step(images).numpy(), [operation.type for operation in graph.get_operations()]


def small(name, dataset="cifar10"):
    """Of a residual network a block in each stage, of a DenseNet four layers in each block."""
    model = cut(get_model(name, dataset))
    model.layers, model.blocks = 4, (1, 1, 1)
    return model


# How many of their batch norms follow something else than a convolution of their own.
NETWORKS = [
    ("resnet20", "cifar10", 0),
    ("resnet20_v2", "cifar10", 4),
    ("densenet40_k12", "cifar10", 15),
    ("mobilenet", "imagenet", 0),
]


@pytest.mark.parametrize(("name", "dataset", "left"), slow_if(NETWORKS[1:], NETWORKS))
def test_folded_equals_unfolded(name, dataset, left, make_weights):
    model = small(name, dataset)
    weights = make_weights(declare(model, 11).variables)
    images = images_for(model)
    plain, before = logits_of(model, weights, images, fold=False)
    scale = np.abs(plain).max()
    assert scale > 0.01
    for frozen in (False, True):
        folded, after = logits_of(model, weights, images, fold=True, frozen=frozen)
        np.testing.assert_allclose(folded, plain, rtol=1e-4, atol=1e-4 * scale)
        norms = after.count("FusedBatchNormV3")
        assert left <= norms <= before.count("FusedBatchNormV3")
        if frozen:
            assert norms == left
    _, elsewhere = logits_of(model, weights, images, fold=True, on_cpu=False)
    assert elsewhere == before


def test_variables_are_folded_only_where_the_result_is_large(make_weights):
    model = small("resnet20")
    weights = make_weights(declare(model, 11).variables)
    left = [
        logits_of(model, weights, images_for(model, count), fold=True)[1].count("FusedBatchNormV3")
        for count in (1, 64)
    ]
    assert left[0] > left[1] == 0


def test_16_bit_kernels_are_folded_in_float32(make_weights):
    model = small("resnet20")
    weights = make_weights(declare(model, 11).variables)
    images = images_for(model)
    exact, _ = logits_of(model, weights, images, fold=False)
    errors = []
    for fold in (False, True):
        half, _ = logits_of(
            model, weights, images, fold=fold, frozen=True, compute_dtype=tf.bfloat16
        )
        errors.append(np.abs(half - exact).max())
    assert errors[1] < 2 * errors[0] + 1e-3
