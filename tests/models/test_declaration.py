"""Networks that are declared without TensorFlow.

Tests models/network.py.
"""

from __future__ import annotations

import pytest
from networks import model_of, shape_of

from cnnbench.errors import UsageError
from cnnbench.models import Initializer, declare
from cnnbench.models.declaration import (
    FlopCounts,
    ShapeNetwork,
    bytes_per_image,
    innermost_scope,
    scope_flops,
)
from cnnbench.models.network import broadcast_shape
from cnnbench.models.spec import LayerFlopsAndMemory


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


def test_flops_of_convolutions_over_parts_of_the_channels_by_hand():
    def body(net, images):
        x = net.conv(images, 12, 3, 2)  # 4 x 4 outputs of 27 inputs: 16 * 12 * 27 MACs
        x = net.conv(x, 8, 3, groups=4)  # of 9 * 3 inputs: 16 * 8 * 27
        x = net.depthwise_conv(x, 5, 2, multiplier=2)  # 2 x 2 x 16 outputs of 25: 64 * 25
        x = net.separable_conv(x, 6, 3, multiplier=2)  # 2 x 2 x 32 of 9, then 2 x 2 x 6 of 32
        return net.logits(net.multiply(net.global_avg_pool(x), net.global_avg_pool(x)))

    spec = declare(model_of(body), 10)
    first = 2 * 16 * 12 * 27
    others = 2 * (16 * 8 * 27 + 64 * 25 + 128 * 9 + 24 * 32 + 6 * 10)
    assert spec.forward_flops_per_image == first + others
    assert spec.training_flops_per_image == 2 * first + 3 * others
    grouped, depthwise, separable = 8 * 27 + 8, 25 * 16 + 16, 9 * 32 + 32 * 6 + 6
    assert spec.parameters == 12 * 27 + 12 + grouped + depthwise + separable + 60 + 10


def test_flops_of_sequences_by_hand():
    def body(net, images):
        x = net.affine(net.reshape(images, (16, 12)), 24)  # 16 tokens
        x = net.attention(*net.split(x, 3), 2)  # 8 channels: twice 16 * 16 * 8 MACs
        x = net.recurrent(x, 5, bidirectional=True)  # twice 16 tokens * (8 + 5) * 3 * 5
        return net.logits(net.flatten(net.layer_norm(x)))

    spec = declare(model_of(body), 10)
    first = 2 * 16 * 12 * 24
    others = 2 * (2 * 16 * 16 * 8 + 2 * 16 * 13 * 15 + 160 * 10)
    assert spec.forward_flops_per_image == first + others
    assert spec.training_flops_per_image == 2 * first + 3 * others
    cell = 8 * 15 + 5 * 15 + 15 + 15
    assert spec.parameters == 12 * 24 + 24 + 2 * cell + 2 * 10 + 160 * 10 + 10


@pytest.mark.parametrize("learned", ["query", "key"])
def test_attention_between_the_images_and_what_is_learned_has_one_gradient(learned):
    def body(net, images):
        x = net.reshape(images, (16, 12))
        own = net.affine(x, 12)
        query, key = (own, x) if learned == "query" else (x, own)
        return net.logits(net.flatten(net.attention(query, key, x, 2)))

    spec = declare(model_of(body), 10)
    first, attention, last = 2 * 16 * 12 * 12, 2 * 16 * 16 * 12, 2 * 192 * 10
    assert spec.forward_flops_per_image == first + 2 * attention + last
    # Of each product, the gradient of one factor; the images have none.
    assert spec.training_flops_per_image == 2 * first + 4 * attention + 3 * last


def test_attention_to_the_images_alone_has_no_gradient():
    def body(net, images):
        x = net.attention(*[net.reshape(images, (16, 12))] * 3, 2)
        return net.logits(net.flatten(x))

    spec = declare(model_of(body), 10)
    attention, last = 2 * 2 * 16 * 16 * 12, 2 * 192 * 10
    assert spec.forward_flops_per_image == attention + last
    assert spec.training_flops_per_image == attention + 2 * last


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


def convolution(net, images):
    return net.logits(net.flatten(net.max_pool(net.conv(images, 4, 3), 2, 2)))


def normalised(net, images):
    x = net.conv(images, 4, 3, 2, "SAME_RESNET", batch_norm=True, activation=None)
    return net.logits(net.global_avg_pool(net.add(x, x)))


def untouched(net, images):
    return net.logits(net.flatten(net.avg_pool(images, 2, 2)))


@pytest.mark.parametrize(
    ("body", "training", "forward"),
    [
        # At the ReLU: images and its output are kept, and its input and gradient lie there.
        (convolution, 192 + 256 + 2 * 256, 2 * 256),
        # The padded image is kept, and the gradients of it and of the convolution lie beside it.
        (normalised, 300 + 300 + 64, 192 + 300),
        # No gradient flows to the images: only what the matrix product reads is kept.
        (untouched, 192 + 48, 192 + 48),
    ],
)
def test_the_values_that_a_backward_pass_needs_are_kept(body, training, forward):
    for net_trains, peak in ((True, training), (False, forward)):
        net = ShapeNetwork(model_of(body), 10, training=net_trains)
        net.forward()
        assert net.peak == peak


@pytest.mark.parametrize(
    ("layer", "peak"),
    [
        # The image is kept: 192 values. Beside them are the inputs and the result of an operation.
        (lambda net, x: net.multiply(x, x), 192 + 192 + 3 * 192),  # its input is kept once
        (lambda net, x: net.add(x, x), 192 + 3 * 192),
        (lambda net, x: net.relu(x), 192 + 192 + 2 * 192),
        (lambda net, x: net.max_pool(x, 2, 2), 192 + (192 + 48) + (192 + 48)),
        # The largest is the last matrix product, which keeps its input.
        (lambda net, x: net.dropout(x), 192 + 48 + 192 + 192 + 10),
        (lambda net, x: net.layer_norm(net.reshape(x, (64, 3))), 192 + 3 * 192 + 192 + 192 + 10),
        (lambda net, x: net.pad_channels(x, 1, 2), 192 + 384 + 384 + 10),
        (lambda net, x: net.concat([x, x]), 192 + 384 + 384 + 10),
        (lambda net, x: net.batch_norm(x), 192 + 192 + 192 + 192 + 10),
        (lambda net, x: net.activate(x, "swish"), 192 + 192 + 192 + 192 + 10),
        # Two more values of each element.
        (lambda net, x: net.activate(x, "gelu"), 192 + 3 * 192 + 192 + 192 + 10),
        (lambda net, x: net.transpose(net.reshape(x, (64, 3)), (1, 0)), 192 + 192 + 192 + 10),
        # The shares of two heads and the inputs by head, beside three inputs and the result.
        (
            lambda net, x: net.attention(*[net.reshape(x, (16, 12))] * 3, 2),
            192 + (2 * 16 * 16 + 3 * 192) + 4 * 192,
        ),
        # Three values of each of 15 gates of 16 tokens, beside input and result.
        (
            lambda net, x: net.recurrent(net.reshape(x, (16, 12)), 5),
            192 + (192 + 80 + 3 * 16 * 15) + (192 + 80),
        ),
    ],
)
def test_peaks_of_layers_in_training_by_hand(layer, peak):
    def body(net, images):
        x = net.conv(images, 3, 1, bias=None, activation=None)
        return net.logits(net.flatten(layer(net, x)))

    net = ShapeNetwork(model_of(body), 10, training=True)
    net.forward()
    assert net.peak == peak


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


def test_a_depthwise_kernel_starts_by_the_inputs_of_one_output():
    def body(net, images):
        x = net.depthwise_conv(net.conv(images, 50, 1), 3)
        return net.logits(net.global_avg_pool(net.separable_conv(x, 7, 5)))

    first = {v.name: (v.initializer, v.shape) for v in declare(model_of(body), 10).variables}
    unit = 0.87962566  # of a standard normal cut off at two
    for name, inputs in (
        ("depthwise0/kernel", 9),
        ("separable0/depthwise_kernel", 25),
        ("separable0/pointwise_kernel", 50),
    ):
        initializer, shape = first[name]
        assert initializer.draw_stddev(shape) == pytest.approx(inputs**-0.5 / unit)


# The other layers are in test_layers.py.
@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda net, x: net.conv(x, 6, 3, groups=3), (8, 8, 6)),
        (lambda net, x: net.drop_path(x, 0.5), (8, 8, 3)),
        (lambda net, x: net.batch_norm(x), (8, 8, 3)),
        (lambda net, x: net.batch_norm(net.reshape(x, (64, 3)), activation="relu"), (64, 3)),
        (lambda net, x: net.lrn(x), (8, 8, 3)),
        (lambda net, x: net.embedding(x, 50, 7), (8, 8, 3, 7)),
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
        (lambda net, x: net.conv(x, 3, 3, padding="same"), "one of SAME, VALID, SAME_RESNET, not"),
        (lambda net, x: net.conv(x, 3, 0), "at least 1"),
        (lambda net, x: net.conv(x, 3, 3, 0), "at least 1"),
        (lambda net, x: net.conv(x, 3, 3, activation="elu"), "one of relu, .* None, not 'elu'"),
        (lambda net, x: net.conv(x, 4, 3, groups=2), "with 2 groups, channels .* 3 and 4"),
        (lambda net, x: net.depthwise_conv(net.flatten(x), 3), "takes an image-like input"),
        (
            lambda net, x: net.depthwise_conv(x, 3, (1, 2)),
            r"same stride in both directions, not \(1, 2\)",
        ),
        (lambda net, x: net.separable_conv(x, 4, 3, multiplier=0), "multiplier 0 must be at least"),
        (lambda net, x: net.multiply(x, net.reshape(x, (48, 4))), "shapes that broadcast, not"),
        (lambda net, x: net.drop_path(x, 1.5), "keep=1.5 must be above 0 and at most 1"),
        (lambda net, x: net.reshape(x, (8, 8)), r"\(8, 8, 3\) cannot become \(8, 8\)"),
        (lambda net, x: net.transpose(x, (0, 1)), r"a permutation of dimensions, not \(0, 1\)"),
        (
            lambda net, x: net.split(x, 2),
            r"is divisible by 2, but the shape is \(8, 8, 3\)",
        ),
        (lambda net, x: net.split(x, 0), "is divisible by 0"),
        (lambda net, x: net.attention(x, x, x, 1), "attention takes a query"),
        (lambda net, x: net.attention(*[net.reshape(x, (64, 3))] * 3, 0), "among 0 heads"),
        (lambda net, x: net.auxiliary(net.logits(net.flatten(x)), 0.0), "above 0, not 0.0"),
        (lambda net, x: net.recurrent(x, 4), "recurrent takes a sequence"),
        (
            lambda net, x: net.batch_norm(net.variable("A", (), Initializer.constant(0.0))),
            "channels, not a scalar",
        ),
        (lambda net, x: net.recurrent(x, 4, "peephole"), "one of gru, lstm, rnn, not 'peephole'"),
        (lambda net, x: net.max_pool(x, 3, 2, "SAME_RESNET"), "SAME and VALID"),
        (lambda net, x: net.add(x, net.flatten(x)), "add takes equal shapes"),
        (lambda net, x: net.concat([x, net.max_pool(x, 2, 2)]), "differ in channels only"),
        (lambda net, x: net.dropout(x, keep=0.0), "keep=0.0 must be above 0 and at most 1"),
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


def test_bytes_are_those_of_the_largest_number_of_values_and_a_share_more():
    def body(net, images):
        for _ in range(2):
            images = net.block(lambda net, x: net.relu(net.conv(x, 4, 3)), images)
        return net.logits(net.flatten(images))

    model = model_of(body)
    spec = declare(model, 10)
    found = {bytes_per_image(model, spec, value_bytes=size) for size in (2, 4)}
    assert found == {round(1.15 * size * spec.peak_values) for size in (2, 4)}
    assert bytes_per_image(model, spec) == max(found)
    for fields in ({"training": False}, {"training": True, "recomputes": True}):
        net = ShapeNetwork(model, 10, **fields)
        net.forward()
        assert net.peak != spec.peak_values
        assert bytes_per_image(model, spec, **fields) == round(1.15 * 4 * net.peak)


def test_a_function_of_several_layers_says_what_they_need():
    def body(net, images):
        layers = {"first": (100, 0, 70), "second": (20, 30, 40)}
        work = LayerFlopsAndMemory(layers, kept=10**6, forward=10**5)
        return net.apply(lambda x: x, images, shape=(10,), flops=work)

    model = model_of(body)
    spec = declare(model, 10)
    assert spec.forward_flops_per_image == 120
    assert spec.training_flops_per_image == 100 + 70 + 20 + 30 + 40
    assert spec.peak_values == 10**6
    counts = scope_flops(model, 10, training=True)
    assert counts["second"] == FlopCounts(20, 30, 40)
    net = ShapeNetwork(model, 10, training=False)
    net.forward()
    assert net.peak == 10**5


def test_what_layers_take_unless_they_are_told():
    noted = []

    class Noting(ShapeNetwork):
        def _dropout(self, x, keep, index):
            noted.append(("dropout", keep, index))
            return x

        def _drop_path(self, x, keep, index, by_progress):
            noted.append(("drop_path", keep, index, by_progress))
            return x

        def _layer_norm(self, x, gamma, beta, epsilon):
            noted.append(("layer_norm", epsilon))
            return x

        def _recurrent(self, x, cell, weights, reverse):
            noted.append((cell, len(weights), reverse))
            return super()._recurrent(x, cell, weights, reverse)

    def body(net, images):
        x = net.drop_path(net.drop_path(net.dropout(net.layer_norm(images)), 1.0), 0.25)
        net.recurrent(net.reshape(x, (16, 12)), 5)
        net.auxiliary(net.logits(net.flatten(x)), 1e-9)
        assert len(net.split(x, 1)) == 1
        return net.logits(net.flatten(net.embedding(x, 7, 2)))

    for training in (True, False):
        net = Noting(model_of(body), 10, training=training)
        net.forward()
        first = {spec.name: spec.initializer for spec in net.variables}
        assert first["embedding0/table"] == Initializer.truncated_normal(0.05)
        assert first["gru0/forward/bias"] == Initializer.constant(0.0)
        assert len(net.auxiliaries) == training
    drawn = [("dropout", 0.5, 0), ("drop_path", 0.25, 2, False)]
    norm, cell = ("layer_norm", 1e-6), ("gru", 4, False)
    assert noted == [norm, *drawn, cell, norm, cell]


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ((), (), ()),
        ((3,), (2, 3), (2, 3)),
        ((2, 1), (1, 3), (2, 3)),
        ((2, 3), (), (2, 3)),
        ((2, 3), (3, 2), None),
        ((2,), (3,), None),
    ],
)
def test_shapes_broadcast_as_those_of_numpy(first, other, expected):
    assert broadcast_shape(first, other) == broadcast_shape(other, first) == expected


def test_memory_of_a_training_needs_no_further_description():
    described = []

    def body(net, images):
        described.append(net.training)
        return net.logits(net.flatten(net.conv(images, 4, 3)))

    model = model_of(body)
    spec = declare(model, 10)
    training = bytes_per_image(model, spec)
    assert described == [True]
    assert 0 < bytes_per_image(model, spec, training=False) < training
    assert described == [True, False]


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("a/b/MatMul", "a/b"),
        ("a/b", "a/b"),
        ("a/c", "a"),
        ("b", ""),
        ("a_2/b_1/c", "a/b"),  # entered again
        ("a_2/b_x", "a"),
        ("d_1/x", "d_1"),  # a name of its own
        ("d_2/x", ""),
        ("", ""),
    ],
)
def test_the_innermost_scope_of_a_path(path, scope):
    assert innermost_scope(path.split("/"), {"a": 1, "a/b": 2, "d_1": 3}) == scope


def test_flops_are_counted_in_the_scope_of_their_layer():
    def body(net, images):
        with net.scope("stage"):
            x = net.conv(images, 4, 3, 2)
            with net.scope("inner"):
                x = net.conv(x, 5, 1)
        return net.logits(net.flatten(x))

    first, second, last = 2 * 16 * 108, 2 * 16 * 20, 2 * 80 * 10
    model = model_of(body)
    training = scope_flops(model, 10, training=True)
    assert {name: counts for name, counts in training.items() if any(counts)} == {
        "stage/conv0": (first, 0, first),
        "stage/inner/conv0": (second, second, second),
        "affine0": (last, last, last),
    }
    assert list(training) == [
        *("", "stage", "stage/conv0", "stage/inner", "stage/inner/conv0", "affine0"),
    ]
    assert scope_flops(model, 10, training=False) == {
        name: FlopCounts(counts.forward) for name, counts in training.items()
    }


def test_a_block_uses_its_arguments_its_variables_and_what_it_computes():
    def block(net, x, y):
        own = net.variable("own", (4,), Initializer.constant(1.0))
        return net.apply(lambda a, b, v: a + b * v, net.relu(x), net.reshape(y, (8, 8, 3)), own)

    def body(net, images):
        return net.logits(net.flatten(net.block(block, images, net.relu(images))))

    assert declare(model_of(body), 10).parameters == 4 + 192 * 10 + 10
