"""Convolutions in 8-bit integers, against their arithmetic in NumPy and against float32."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from networks import convolved, cut, forward, images_for, normal

from cnnbench.machine.cpu import Host, processor_facts
from cnnbench.models import BatchNorm, declare, get_model
from cnnbench.models.int8 import Calibration, Int8Network, record_value_ranges

pytestmark = pytest.mark.skipif(
    {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(
        processor_facts(Host()).get("cpu_isa") or ()
    ),
    reason="this CPU has no products of 8-bit integers",
)


def eight(values, low, high):
    """What 8 bits make of values: integers, and how much one of them is."""
    step = high / (127 if low < 0 else 255)
    integers = np.rint(values / step)
    return np.clip(integers, -127 if low < 0 else 0, 127 if low < 0 else 255), step


def in_integers(images, kernel, bias, stride, zeros, depthwise, rectified, exact):
    """The result of a convolution of 8-bit integers, and a step of it."""
    from_zero = images.min() >= 0
    most = np.abs(images).max()
    x, step = eight(images, 0 if from_zero else -most, most)
    reach = np.abs(kernel).max((0, 1, 3) if depthwise else (0, 1, 2))
    by_output = reach[:, None] if depthwise else reach
    k = np.rint(kernel / by_output * 127)
    groups = 1
    if depthwise:
        groups = images.shape[3]
        k = k.reshape(*k.shape[:2], 1, -1)
        by_output = np.broadcast_to(by_output, kernel.shape[2:]).ravel()
    sums = convolved(x, k, stride, zeros, groups)
    result = sums * step * by_output / 127 + bias
    most = exact.max() if rectified else np.abs(exact).max()
    integers, step = eight(result, 0 if rectified else -1, most)
    return integers * step, step


CASES = {
    "relu": {},
    "relu6": {"activation": "relu6"},
    "linear": {"activation": None},
    "signed": {"signed": True},
    "signed linear": {"signed": True, "activation": None},
    "strided": {"stride": (2, 1), "padding": "VALID"},
    "explicit zeros": {"stride": (2, 2), "padding": "SAME_RESNET"},
    "batch norm": {"batch_norm": True},
    "linear batch norm": {"batch_norm": True, "activation": None},
    "depthwise": {"depthwise": True, "batch_norm": True},
    "depthwise, relu6": {"depthwise": True, "activation": "relu6"},
    "strided depthwise": {"depthwise": True, "stride": (2, 2), "padding": "SAME_RESNET"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_layer_computes_as_integers_do(case):
    case = {"activation": "relu", "padding": "SAME", "batch_norm": False, "stride": (1, 1), **case}
    signed, depthwise = case.pop("signed", False), case.pop("depthwise", False)
    images = normal(2, 8, 9, 5) if signed else np.abs(normal(2, 8, 9, 5))
    values = {}

    def read(spec, dtype):
        drawn = normal(*spec.shape, seed=len(values))
        values.setdefault(spec.name, np.abs(drawn) + 0.5 if "variance" in spec.name else drawn)
        return tf.constant(values[spec.name], dtype)

    calibration = Calibration()
    assert calibration.in_8_bits == 0  # until a network is made

    def layer(**more):
        net = Int8Network(
            *(get_model("lenet", "imagenet"), 4, read),
            calibration=calibration,
            training=False,
            **more,
        )
        x = tf.constant(images)
        if depthwise:
            strides = {**case, "stride": case["stride"][0]}
            return net.depthwise_conv(x, 3, **strides)
        return net.conv(x, 6, (3, 2), **case)

    exact = layer(recording=True).numpy()
    ours = tf.function(layer, autograph=False)().numpy()
    (name,) = (n for n in values if n.endswith("kernel"))
    kernel = values[name]
    found = {key.split("/")[-1]: value for key, value in values.items()}
    if case["batch_norm"]:
        settings = BatchNorm()
        scale = found.get("gamma", np.float32(1)) / np.sqrt(
            found["moving_variance"] + settings.epsilon
        )
        bias = found["beta"] - found["moving_mean"] * scale
        kernel = kernel * (scale.reshape(-1, kernel.shape[3]))
    else:
        bias = found["bias"]
    zeros = zeros_of(case, kernel.shape[:2], images.shape[1:3])
    rectified = case["activation"] is not None
    oracle, step = in_integers(
        images, kernel, bias, case["stride"], zeros, depthwise, rectified, exact
    )
    assert (calibration.in_8_bits, calibration.convolutions) == (1, 1)
    # One more or less where a value lies between two: sums are rounded in other orders.
    assert np.abs(ours - oracle).max() <= 1.01 * step
    assert np.abs(ours - oracle).mean() < 0.05 * step
    assert np.abs(ours - exact).max() < 0.05 * np.abs(exact).max()


def zeros_of(case, sizes, image):
    if case["padding"] == "VALID":
        return ((0, 0), (0, 0))
    if case["padding"] == "SAME_RESNET":
        return tuple(((k - 1) // 2, k - 1 - (k - 1) // 2) for k in sizes)
    missing = [
        max((-(-n // s) - 1) * s + k - n, 0)
        for n, s, k in zip(image, case["stride"], sizes, strict=True)
    ]
    return tuple((m // 2, m - m // 2) for m in missing)


# Convolutions, those in 8 bits, and how far logits may be off, in the norm.
NETWORKS = {
    ("resnet20", "cifar10"): (19, 19, 0.05),
    ("mobilenet", "imagenet"): (13, 13, 0.05),
    # Depthwise ones without a ReLU have no kernels for integers.
    ("efficientnet_b0", "imagenet"): (16, 11, 0.05),
}


@pytest.mark.parametrize(("name", "dataset"), slow_if([*NETWORKS][1:], NETWORKS))
def test_networks_are_close_to_float32(name, dataset, make_weights):
    convolutions, in_8_bits, tolerance = NETWORKS[name, dataset]
    model = cut(get_model(name, dataset))
    weights = make_weights(declare(model, 11).variables)
    images = tf.clip_by_value(images_for(model, 4), -1, 1)

    def read(spec, dtype):
        return tf.constant(weights.values[spec.name].numpy(), dtype)

    calibration = record_value_ranges(model, 11, images, read)

    @tf.function(autograph=False)
    def step():
        make = functools.partial(Int8Network, calibration=calibration)
        return forward(model, 11, images, read, training=False, make=make).outputs

    ours = step().numpy()
    assert (calibration.convolutions, calibration.in_8_bits) == (convolutions, in_8_bits)
    exact = forward(model, 11, images, read, training=False).outputs.numpy()
    off = np.linalg.norm(ours - exact) / np.linalg.norm(exact)
    assert 0 < off < tolerance


def test_what_lies_beyond_the_calibrated_range_is_cut_off():
    model = get_model("lenet", "imagenet")
    few = np.abs(normal(2, 28, 28, 3))
    variables = declare(model, 5).variables
    values = {one.name: 0.1 * normal(*one.shape, seed=i) for i, one in enumerate(variables)}

    def read(spec, dtype):
        return tf.constant(values[spec.name], dtype)

    calibration = record_value_ranges(model, 5, tf.constant(few), read)

    def logits(images):
        @tf.function(autograph=False)
        def step(images):
            make = functools.partial(Int8Network, calibration=calibration)
            return forward(model, 5, images, read, training=False, make=make).outputs

        return step(tf.constant(images)).numpy()

    np.testing.assert_array_equal(logits(9 * few), logits(np.minimum(9 * few, few.max())))
