"""Weights for networks under test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from networks import forward
from residual_networks import relative_error

from cnnbench.models import Model, VariableSpec, declare


class Weights:
    """Values of variables, and a record of who read what."""

    def __init__(self, specs: Iterable[VariableSpec]) -> None:
        self.values = {spec.name: tf.constant(_draw(spec)) for spec in specs}
        self.read_shapes: dict[str, tuple[int, ...]] = {}
        self.read_dtypes: dict[str, tf.DType] = {}

    def read(self, spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
        self.read_shapes[spec.name] = spec.shape
        self.read_dtypes[spec.name] = dtype
        return tf.cast(self.values[spec.name], dtype)


def _draw(spec: VariableSpec) -> np.ndarray:
    """Initial values, moved off the constants so that no term of a formula hides."""
    rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
    stddev = spec.initializer.draw_stddev(spec.shape)
    if stddev > 0:
        return (stddev * rng.standard_normal(spec.shape)).astype(np.float32)
    shift = rng.uniform(-0.3, 0.3, spec.shape)
    return (spec.initializer.value + shift).astype(np.float32)


@pytest.fixture
def make_weights() -> Callable[[Iterable[VariableSpec]], Weights]:
    """Makes seeded weights with a `read` method for `forward`."""
    return Weights


@pytest.fixture
def check_logits(make_weights) -> Callable[..., Any]:
    """check_logits(model, reference, classes, count, **options of `forward`): compares logits.

    `reference(values)` is a function of float32 images for the values of the variables, by name.
    """

    def check(
        model: Model,
        reference: Callable[[dict[str, tf.Tensor]], Callable[[np.ndarray], Any]],
        classes: int = 7,
        count: int = 2,
        *,
        training: bool = False,
        **options: Any,
    ) -> Any:
        weights = make_weights(declare(model, classes).variables)
        shape = (count, model.image_size, model.image_size, 3)
        images = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        expected = reference(weights.values)(images)
        options["training"] = training
        made = forward(model, classes, tf.constant(images), weights.read, **options)
        assert relative_error(made.outputs, expected) < 1e-4
        return made

    return check


def nchw_runs() -> bool:
    """Stock CPU kernels are NHWC; oneDNN's take NCHW too."""
    try:
        tf.nn.conv2d(tf.zeros([1, 1, 4, 4]), tf.zeros([1, 1, 1, 1]), 1, "SAME", data_format="NCHW")
        tf.nn.max_pool2d(tf.zeros([1, 1, 4, 4]), 2, 2, "SAME", data_format="NCHW")
    except tf.errors.OpError:
        return False
    return True


@pytest.fixture
def nchw(request: pytest.FixtureRequest) -> None:
    """Skips a case whose ``layout`` is NCHW where the CPU has no such kernels."""
    if request.getfixturevalue("layout") == "NCHW" and not nchw_runs():
        pytest.skip("this TensorFlow build has no NCHW convolution for CPUs")
