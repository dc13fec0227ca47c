from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from networks import forward, images_for

from cnnbench.errors import UsageError
from cnnbench.models import declare, get_model
from cnnbench.models.graph import GraphNetwork

SMALL = [("resnet20", "cifar10"), ("resnet20_v2", "cifar10"), ("alexnet", "cifar10")]


def logits_and_gradients(model, num_classes, weights, images, **options):
    labels = tf.range(len(images), dtype=tf.int32)

    @tf.function(autograph=False)
    def step(images, values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = forward(
                model,
                num_classes,
                images,
                lambda spec, dtype: tf.cast(values[spec.name], dtype),
                **options,
            )
            loss = tf.reduce_mean(model.loss(result.outputs, labels))
        gradients = tape.gradient(loss, values)
        learned = [gradients[n] for n in sorted(values) if "/moving_" not in n]
        return [result.outputs, *learned]

    return step(images, weights.values)


@pytest.mark.parametrize(
    ("name", "dataset", "training"),
    [("resnet20", "cifar10", True), ("resnet20_v2", "cifar10", False), (*SMALL[2], True)],
)
def test_forward_reads_the_declared_variables_and_no_others(name, dataset, training, make_weights):
    model = get_model(name, dataset)
    spec = declare(model, 11)
    weights = make_weights(spec.variables)
    forward(model, 11, images_for(model), weights.read, training=training)
    # In training the batch's own moments take the place of the moving averages.
    expected = {v.name: v.shape for v in spec.variables if not (training and v.statistic)}
    assert weights.read_shapes == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_batch_norm_reads_float32_and_all_else_the_compute_dtype(dtype, make_weights):
    model = get_model("resnet20_v2", "cifar10")
    weights = make_weights(declare(model, 11).variables)
    for training in (True, False):
        result = forward(
            model, 11, images_for(model), weights.read, training=training, compute_dtype=dtype
        )
        assert result.outputs.dtype == tf.float32
        assert tuple(result.outputs.shape) == (2, 11)
    for name, read in weights.read_dtypes.items():
        assert read == (tf.float32 if "batchnorm" in name else dtype), name


def test_moments_come_in_the_order_of_the_layers_and_only_in_training(make_weights):
    model = get_model("resnet20", "cifar10")
    spec = declare(model, 11)
    weights = make_weights(spec.variables)
    result = forward(model, 11, images_for(model), weights.read, training=True)
    means = [v for v in spec.variables if v.name.endswith("moving_mean")]
    variances = [v for v in spec.variables if v.name.endswith("moving_variance")]
    assert [u.variable for u in result.updates[::2]] == means
    assert [u.variable for u in result.updates[1::2]] == variances
    assert all(tuple(u.value.shape) == u.variable.shape for u in result.updates)
    assert forward(model, 11, images_for(model), weights.read, training=False).updates == []


@pytest.mark.parametrize(
    ("name", "dataset", "training"),
    slow_if(
        lambda case: case[0] != "lenet",
        [
            ("resnet20", "cifar10", False),
            ("resnet20_v2", "cifar10", True),
            ("alexnet", "cifar10", True),
            ("lenet", "imagenet", True),
            ("trivial", "imagenet", True),
        ],
    ),
)
@pytest.mark.parametrize("layout", ["NCHW"])
def test_nchw_equals_nhwc(name, dataset, training, layout, nchw, make_weights, monkeypatch):
    # Without kinks: where rounding flips a single ReLU, gradients differ by a hundredth.
    monkeypatch.setattr(GraphNetwork, "_elementwise", lambda self, kind, x: tf.nn.softplus(x))
    model = get_model(name, dataset)
    if name.startswith("resnet"):
        model.blocks = (1, 1, 1)
    weights = make_weights(declare(model, 11).variables)
    images = images_for(model, count=4)
    results = [
        logits_and_gradients(model, 11, weights, images, training=training, data_format=each)
        for each in ("NHWC", layout)
    ]
    for one, other in zip(*results, strict=True):
        assert float(tf.norm(one - other)) < 3e-4 * float(tf.norm(one)) + 1e-6


def operations(model, num_classes, **options):
    """Types of the operations of a forward pass, once per operation."""
    weights = {
        v.name: tf.TensorSpec(v.shape, tf.float32) for v in declare(model, num_classes).variables
    }

    @tf.function(autograph=False)
    def run(images, values):
        return forward(
            model, num_classes, images, lambda s, d: tf.cast(values[s.name], d), **options
        ).outputs

    size = model.image_size
    traced = run.get_concrete_function(tf.TensorSpec([4, size, size, 3]), weights)
    return [op.type for op in traced.graph.get_operations()]


def test_resnet50_has_no_operation_beyond_its_layers():
    ops = operations(get_model("resnet50_v1.5", "imagenet"), 1001, training=True)
    plumbing = {"Placeholder", "Const", "Identity", "IdentityN", "NoOp"}
    counts = {kind: ops.count(kind) for kind in set(ops) - plumbing}
    assert counts == {
        "Conv2D": 53,
        "FusedBatchNormV3": 53,
        "Relu": 49,
        "AddV2": 16,
        "Pad": 4,  # the stem and the three strided 3 x 3 convolutions
        "MaxPool": 1 + 3,  # the stem's, and those that subsample for the projections
        "Mean": 1,
        "MatMul": 1,
        "BiasAdd": 1,
    }


def test_images_are_cast_and_transposed_once():
    options = {"training": True, "data_format": "NCHW", "compute_dtype": "bfloat16"}
    ops = operations(get_model("resnet20", "cifar10"), 11, **options)
    assert ops.count("Transpose") == 1
    # The images, each kernel and bias that the test's reader casts, and the logits.
    kernels = 19 + 2
    assert ops.count("Cast") == 1 + kernels + 1
    # Where images are flattened, one is made, but nothing hangs on it: pruned.
    ops = operations(get_model("trivial", "imagenet"), 1001, training=True, data_format="NCHW")
    assert ops.count("Transpose") <= 1


def test_operations_carry_the_names_of_their_layers():
    model = get_model("resnet20", "cifar10")
    with tf.Graph().as_default() as graph, tf.name_scope("tower_1"):
        images = tf.zeros([2, 32, 32, 3])
        forward(model, 11, images, lambda s, d: tf.zeros(s.shape, d), training=True)
    names = {op.name for op in graph.get_operations()}
    for spec in declare(model, 11).variables:
        layer, variable = spec.name.rsplit("/", 1)
        if variable == "kernel":
            kind = "MatMul" if layer.startswith("affine") else "Conv2D"
            assert f"tower_1/{layer}/{kind}" in names


@pytest.mark.parametrize("dtype", [tf.uint8, tf.float32, tf.bfloat16])
def test_images_may_come_in_any_dtype(dtype, make_weights):
    model = get_model("resnet20", "cifar10")
    weights = make_weights(declare(model, 11).variables)
    whole = tf.cast(np.random.default_rng(0).integers(0, 4, (2, 32, 32, 3)), dtype)
    options = {"training": False}
    given = forward(model, 11, whole, weights.read, **options).outputs
    plain = forward(model, 11, tf.cast(whole, tf.float32), weights.read, **options).outputs
    np.testing.assert_array_equal(given, plain)


@pytest.mark.parametrize(("name", "dataset"), SMALL)
def test_bfloat16_is_near_float32(name, dataset, make_weights):
    model = get_model(name, dataset)
    weights = make_weights(declare(model, 11).variables)
    images = images_for(model, count=4)
    exact = forward(model, 11, images, weights.read, training=False).outputs
    rough = forward(
        model, 11, images, weights.read, training=False, compute_dtype="bfloat16"
    ).outputs
    assert float(tf.norm(rough - exact) / tf.norm(exact)) < 0.03


def test_images_of_another_size_are_refused(make_weights):
    model = get_model("lenet", "imagenet")
    weights = make_weights(declare(model, 11).variables)
    with pytest.raises(UsageError, match=r"takes images of shape \(28, 28, 3\), not \(32, 32, 3\)"):
        forward(model, 11, tf.zeros([2, 32, 32, 3]), weights.read, training=True)


def test_the_default_loss_is_softmax_cross_entropy():
    logits = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    labels = np.array([4, 0, 2], np.int32)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(shares[np.arange(3), labels])
    losses = get_model("lenet", "imagenet").loss(tf.constant(logits), tf.constant(labels))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
