"""Blocks whose values the backward pass computes again, against networks that store them.

Tests models/declaration.py and models/graph.py.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from networks import cut, forward, images_for, model_of

from cnnbench.errors import UsageError
from cnnbench.models import Initializer, declare, get_model
from cnnbench.models.declaration import ShapeNetwork, bytes_per_image
from cnnbench.models.networks.efficientnet import B0
from cnnbench.models.networks.resnet import ResNetCifar10
from cnnbench.run.observe.traffic import _needed_operations

BATCH, CLASSES = 2, 7


def smaller(model, **attributes):
    """A model with other attributes, which make it smaller."""
    vars(model).update(attributes)
    return model


def with_everything(net, images):
    """Two inputs, a nested block, dropout, a path that is dropped by progress, a look-up, an
    auxiliary head, and a value used twice.
    """

    def inner(net, x, filters):
        dropped = net.dropout(net.conv(x, filters, 3, batch_norm=True), 0.5)
        return net.add(x, net.drop_path(dropped, 0.6, by_progress=True))

    def body(net, x, y, filters):
        x = net.block(inner, x, filters=filters)
        net.auxiliary(net.logits(net.global_avg_pool(x)), 0.5)
        scale = net.variable("scale", (filters,), Initializer.constant(0.5))
        return net.add(x, net.multiply(y, scale))

    def table(net, x):
        ids = net.apply(lambda x: tf.cast(x > 0.0, tf.int32)[..., 0], x, shape=(64,))
        return net.embedding(ids, 2, 4)

    x = net.conv(images, 4, 3, batch_norm=True)
    y = net.relu(net.block(body, x, x, filters=4))
    looked_up = net.reshape(net.block(table, net.reshape(x, (64, 4))), (8, 8, 4))
    return net.logits(net.flatten(net.add(looked_up, net.multiply(x, y))))


NETWORKS = {
    "resnet v2": lambda: ResNetCifar10(8, "v2"),
    "swin": lambda: smaller(cut(get_model("swin_t", "imagenet")), layers=(2,), heads=(2,)),
    "convnext": lambda: smaller(
        cut(get_model("convnext_tiny", "imagenet")), blocks=(1, 1), widths=(8, 16)
    ),
    "efficientnet": lambda: smaller(cut(get_model("efficientnet_b0", "imagenet")), stages=B0[1:2]),
    "everything": lambda: model_of(with_everything),
}
EVERYDAY = "everything"


def trained(model, weights, **options):
    """The results of a traced step: outputs, loss, gradients and moments; and its graph."""
    images = images_for(model, BATCH)
    labels = tf.constant([1, 2])

    @tf.function(autograph=False)
    def step(images, values, seed):
        with tf.GradientTape() as tape:
            tape.watch(values)
            made = forward(
                model,
                CLASSES,
                images,
                lambda spec, dtype: tf.cast(values[spec.name], dtype),
                training=True,
                seed=seed,
                training_steps=2,
                **options,
            )
            heads = (made.outputs, *(head for head, _ in made.auxiliaries))
            loss = tf.add_n([tf.reduce_mean(model.loss(head, labels)) for head in heads])
        gradients = tape.gradient(loss, values)
        found = {n: tf.convert_to_tensor(g) for n, g in gradients.items() if g is not None}
        return loss, found, {one.variable.name: one.value for one in made.updates}

    traced = step.get_concrete_function(images, weights.values, tf.constant([3, 1], tf.int64))
    loss, gradients, moments = traced(images, weights.values, tf.constant([3, 1], tf.int64))
    return SimpleNamespace(
        loss=loss.numpy(), gradients=gradients, moments=moments, graph=traced.graph
    )


def flops(graph):
    """FLOPs of the products in a graph, for one example."""
    total = 0
    for one in _needed_operations(graph):
        if one.type == "Conv2D":
            inner = math.prod(one.inputs[1].shape[:-1])
        elif one.type == "DepthwiseConv2dNative":
            inner = math.prod(one.inputs[1].shape[:2])
        elif one.type in ("MatMul", "BatchMatMulV2"):
            transposed = one.get_attr("transpose_a" if one.type == "MatMul" else "adj_x")
            inner = one.inputs[0].shape[-2 if transposed else -1]
        else:
            continue
        total += 2 * inner * one.outputs[0].shape.num_elements()
    return total // BATCH


def assert_equal_gradients(again, stored):
    np.testing.assert_allclose(again.loss, stored.loss, rtol=1e-6)
    assert again.gradients.keys() == stored.gradients.keys()
    for name, expected in stored.gradients.items():
        tolerance = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(again.gradients[name], expected, 1e-5, tolerance, err_msg=name)


@pytest.mark.parametrize("name", slow_if(lambda name: name != EVERYDAY, NETWORKS))
def test_gradients_are_those_of_stored_values_and_flops_grow_as_declared(name, make_weights):
    model = NETWORKS[name]()
    spec = declare(model, CLASSES)
    weights = make_weights(spec.variables)
    stored, again = (trained(model, weights, recomputes=each) for each in (False, True))
    assert_equal_gradients(again, stored)
    assert [*again.moments] == [*stored.moments]
    for one, expected in stored.moments.items():
        np.testing.assert_allclose(again.moments[one], expected, rtol=1e-6, atol=1e-7, err_msg=one)
    assert spec.recomputed_flops_per_image == flops(again.graph) - flops(stored.graph)
    memory = [bytes_per_image(model, spec, recomputes=each) for each in (False, True)]
    assert memory[1] < memory[0]


@pytest.mark.parametrize("layout", ["NCHW"])
def test_blocks_in_another_layout(layout, nchw, make_weights):
    model = model_of(with_everything)
    weights = make_weights(declare(model, CLASSES).variables)
    how = {"data_format": layout}
    stored, again = (trained(model, weights, recomputes=each, **how) for each in (False, True))
    assert_equal_gradients(again, stored)


def test_only_the_inputs_of_blocks_are_stored():
    def body(net, x):
        return net.conv(net.conv(x, 4, 3, bias=None), 4, 3, bias=None)

    def build(net, images):
        x = net.conv(images, 4, 3, bias=None, activation=None)
        for _ in range(3):
            x = net.block(body, x)
        return net.logits(net.global_avg_pool(x))

    image, value = 8 * 8 * 3, 8 * 8 * 4
    peaks = []
    for recomputes in (False, True):
        net = ShapeNetwork(model_of(build), 10, training=True, recomputes=recomputes)
        net.forward()
        peaks.append(net.peak)
        # Three blocks with two convolutions.
        assert net.recomputed_flops == 3 * 2 * 2 * 64 * 9 * 16
    # At the last ReLU, its input and its gradient are beside what is stored: the image, the input
    # of the first block, and two ReLUs of each block; or the inputs of all and two ReLUs of one.
    assert peaks == [image + (1 + 3 * 2 + 2) * value, image + (3 + 2 + 2) * value]


def test_operations_without_later_use_are_not_repeated():
    def body(net, x):
        y = net.conv(net.conv(x, 4, 1, bias=None), 4, 3, bias=None, activation=None)
        return net.add(x, net.drop_path(net.dropout(y, 0.5), 0.5))

    def build(net, images):
        x = net.conv(images, 4, 3)
        return net.logits(net.global_avg_pool(net.block(body, x)))

    assert declare(model_of(build), 10).recomputed_flops_per_image == 2 * 64 * 16
    assert (
        declare(model_of(lambda net, x: net.logits(net.flatten(x))), 10).recomputed_flops_per_image
        is None
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x, outside: net.add(x, outside),
        lambda net, x, outside: net.reshape(net.flatten(outside), (8, 8, 4)),
        lambda net, x, outside: net.conv(outside, 4, 1),
    ],
)
def test_a_value_from_outside_is_refused(use):
    def build(net, images):
        x, outside = (net.conv(images, 4, 3) for _ in range(2))
        return net.logits(net.flatten(net.block(lambda net, x: use(net, x, outside), x)))

    with pytest.raises(UsageError, match="a block uses a value that was created outside of it"):
        declare(model_of(build), 10)


def test_a_block_that_changes_is_refused_in_one_line(make_weights):
    def build(net, images):
        x = images
        for filters in (4, 8):
            # The mistake of a plug-in: `filters` has another value when the block runs again.
            x = net.block(lambda net, x: net.conv(x, filters, 3), x)  # noqa: B023
        return net.logits(net.flatten(x))

    model = model_of(build)
    weights = make_weights(declare(model, CLASSES).variables)
    with pytest.raises(UsageError, match=r"a block creates variable conv0/kernel \(3, 3, 3, 8\)"):
        trained(model, weights, recomputes=True)
