from __future__ import annotations

import pytest

from cnnbench.errors import UsageError
from cnnbench.models import Initializer, LearningRateSpec, Model, declare


def model_of(body, image_size=8, channels=3):
    class Probe(Model):
        name = "probe"
        dataset = "imagenet"
        batch_size = 2
        learning_rate = LearningRateSpec(0.1)

        def build(self, net, images):
            return body(net, images)

    probe = Probe()
    probe.image_size, probe.channels = image_size, channels
    return probe


def shape_of(layer, image_size=8):
    """Shape that one layer makes of 8 x 8 x 3 images."""
    seen = []

    def body(net, images):
        seen.append(net.shape(layer(net, images)))
        return net.logits(net.flatten(images))

    declare(model_of(body, image_size), 10)
    return seen[0]


def test_flops_by_hand():
    def body(net, images):
        x = net.conv(images, 4, 3, 2)  # 4 x 4 outputs, 3 * 3 * 3 * 4 weights: 16 * 108 MACs
        x = net.conv(x, 5, 3, padding="VALID")  # 2 x 2 outputs, 3 * 3 * 4 * 5: 4 * 180
        return net.logits(net.flatten(x))  # 20 * 10

    spec = declare(model_of(body), 10)
    first, second, last = 2 * 16 * 108, 2 * 4 * 180, 2 * 20 * 10
    assert spec.forward_flops_per_image == first + second + last
    assert spec.training_flops_per_image == 2 * first + 3 * second + 3 * last
    assert spec.parameters == (108 + 4) + (180 + 5) + (200 + 10)


def test_layers_behind_the_images_alone_have_no_input_gradient():
    def body(net, images):
        pooled = net.avg_pool(net.pad_channels(images, 1, 1), 2, 2)
        joined = net.concat([net.relu(pooled), net.lrn(net.add(pooled, pooled))])
        return net.logits(net.global_avg_pool(net.dropout(joined)))

    spec = declare(model_of(body), 7)
    assert spec.forward_flops_per_image == 2 * 10 * 7
    assert spec.training_flops_per_image == 2 * 2 * 10 * 7


def test_apply_counts_the_flops_it_is_told_of():
    def body(net, images):
        fixed = net.apply(lambda x: x, images, flops=100)  # nothing to train behind it
        scale = net.variable("scale", (), Initializer.constant(1.0))
        learned = net.apply(lambda x, s: x * s, fixed, scale, flops=1000)
        return net.apply(lambda x: x, learned, shape=(10,))

    spec = declare(model_of(body), 10)
    assert spec.forward_flops_per_image == 1100
    assert spec.training_flops_per_image == 3100


def test_names_count_per_scope_and_kind():
    def body(net, images):
        with net.scope("stage"):
            x = net.conv(images, 2, 1, batch_norm=True)
            x = net.conv(x, 2, 1)
        x = net.conv(x, 2, 1, bias=None)
        with net.scope("stage"):  # entered again: goes on counting
            x = net.conv(x, 2, 1, bias=None)
            own = net.variable("own", (2,), Initializer.constant(0.0), weight_decay=False)
        return net.logits(net.apply(lambda x, v: x + v, net.global_avg_pool(x), own))

    spec = declare(model_of(body), 10)
    assert [v.name for v in spec.variables] == [
        "stage/conv0/kernel",
        "stage/batchnorm0/gamma",
        "stage/batchnorm0/beta",
        "stage/batchnorm0/moving_mean",
        "stage/batchnorm0/moving_variance",
        "stage/conv1/kernel",
        "stage/conv1/bias",
        "conv0/kernel",
        "stage/conv2/kernel",
        "stage/own",
        "affine0/kernel",
        "affine0/bias",
    ]
    decayed = [v.name for v in spec.variables if v.weight_decay]
    assert decayed == [
        "stage/conv0/kernel",
        "stage/conv1/kernel",
        "stage/conv1/bias",
        "conv0/kernel",
        "stage/conv2/kernel",
        "affine0/kernel",
        "affine0/bias",
    ]
    frozen = [v.name for v in spec.variables if not v.trainable]
    assert frozen == ["stage/batchnorm0/moving_mean", "stage/batchnorm0/moving_variance"]
    assert [v.name for v in spec.variables if v.statistic] == frozen


def test_default_initializers():
    def body(net, images):
        x = net.conv(images, 8, 3)
        x = net.affine(net.flatten(x), 50)
        return net.logits(x)

    first = {v.name: v.initializer for v in declare(model_of(body), 10).variables}
    assert first["conv0/kernel"] == Initializer.variance_scaling(1.0, "fan_in")
    assert first["conv0/bias"] == Initializer.constant(0.0)
    assert first["affine0/kernel"] == Initializer.truncated_normal((2 / 512) ** 0.5)
    assert first["affine1/kernel"] == Initializer.truncated_normal((1 / 50) ** 0.5)
    assert first["affine1/bias"] == Initializer.constant(0.0)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda net, x: net.conv(x, 5, 3, 2), (4, 4, 5)),
        (lambda net, x: net.conv(x, 5, (1, 7), (1, 2), "VALID"), (8, 1, 5)),
        (lambda net, x: net.conv(x, 5, 7, 2, "SAME_RESNET"), (4, 4, 5)),
        (lambda net, x: net.max_pool(x, 3, 2), (3, 3, 3)),
        (lambda net, x: net.avg_pool(x, 3, 2, "SAME"), (4, 4, 3)),
        (lambda net, x: net.concat([x, net.relu(x), x]), (8, 8, 9)),
        (lambda net, x: net.pad_channels(x, 1, 2), (8, 8, 6)),
        (lambda net, x: net.flatten(x), (192,)),
        (lambda net, x: net.flatten(net.flatten(x)), (192,)),
        (lambda net, x: net.global_avg_pool(x), (3,)),
        (lambda net, x: net.batch_norm(x), (8, 8, 3)),
        (lambda net, x: net.apply(lambda y: y, x, shape=[4, 4, 1]), (4, 4, 1)),
        (lambda net, x: net.variable("v", (3, 3, 1, 2), Initializer.constant(0.0)), (3, 3, 1, 2)),
    ],
)
def test_shapes(layer, expected):
    assert shape_of(layer) == expected


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda net, x: net.affine(x, 3), r"affine takes a flat input, not shape \(8, 8, 3\)"),
        (lambda net, x: net.conv(net.flatten(x), 3, 3), "conv takes an image-like input"),
        (lambda net, x: net.conv(x, 3, 9, padding="VALID"), "does not fit"),
        (lambda net, x: net.conv(x, 3, 3, activation="gelu"), "activation is 'relu' or None"),
        (lambda net, x: net.max_pool(x, 3, 2, "SAME_RESNET"), "SAME or VALID"),
        (lambda net, x: net.add(x, net.flatten(x)), "add takes equal shapes"),
        (lambda net, x: net.concat([x, net.max_pool(x, 2, 2)]), "differ in channels only"),
        (lambda net, x: net.dropout(x, keep=0.0), r"a share in \(0, 1\], not 0.0"),
        (lambda net, x: net.apply(lambda: 0), "at least one input"),
        (
            lambda net, x: [net.variable("A", (), Initializer.constant(0.0)) for _ in range(2)],
            "variable A is declared twice",
        ),
    ],
)
def test_bodies_that_cannot_be_are_refused_in_one_line(layer, message):
    with pytest.raises(UsageError, match=message) as caught:
        shape_of(layer)
    assert "\n" not in str(caught.value)


def test_logits_of_the_wrong_size_are_refused_unless_the_loss_is_ones_own():
    wrong = model_of(lambda net, images: net.affine(net.flatten(images), 7))
    with pytest.raises(UsageError, match=r"model probe must return logits of shape \(10,\)"):
        declare(wrong, 10)

    class OwnLoss(type(wrong)):
        def loss(self, logits, labels):
            return logits[:, 0]

    own = OwnLoss()
    own.image_size = 8
    assert declare(own, 10).parameters == 192 * 7 + 7
