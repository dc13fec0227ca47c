"""Images of CIFAR-10, which are kept in memory.

Tests cnnbench/data/in_memory.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from data_sets import CIFAR10_IMAGES, SMALL

from cnnbench.data import CIFAR10, make_input
from cnnbench.data.in_memory import pad_crop_flip
from cnnbench.errors import FlagError


@pytest.fixture
def folder(small_set):
    return small_set("cifar10")


def test_values_and_labels(folder, cpu_devices):
    spec = SMALL["cifar10"].spec(folder, "validation", batch=4)
    with make_input(spec, cpu_devices[:1]) as source:
        (batch,) = source.next()
    expected = CIFAR10_IMAGES[:4] / 127.5 - 1
    np.testing.assert_allclose(batch.features, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(batch.labels, [0, 1, 2, 3])


def test_each_distorted_image_is_a_window_of_the_padded_one():
    images = np.random.default_rng(1).integers(1, 255, (200, 32, 32, 3), np.uint8)
    out = pad_crop_flip(tf.constant(images), tf.range(200, dtype=tf.int64), 3).numpy()
    padded = np.pad(images, [(0, 0), (4, 4), (4, 4), (0, 0)])
    seen = set()
    for before, after in zip(padded, out, strict=True):
        found = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (1, -1)
            if np.array_equal(before[top : top + 32, left : left + 32][:, ::flip], after)
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {top for top, _, _ in seen} == set(range(9))
    assert {left for _, left, _ in seen} == set(range(9))
    assert {flip for _, _, flip in seen} == {1, -1}


def test_the_images_are_no_part_of_the_graph(folder):
    source = CIFAR10.open(SMALL["cifar10"].spec(folder))
    traced = tf.function(source._load_batch, autograph=False).get_concrete_function(
        tf.TensorSpec([4], tf.int64), tf.TensorSpec([4], tf.int64)
    )
    assert len(traced.graph.as_graph_def().SerializeToString()) < 20_000


def test_images_are_resized(folder, cpu_devices):
    """By half: each pixel is the mean of four, bilinear interpolation at their middle."""
    batches = []
    for size in (32, 16):
        spec = SMALL["cifar10"].spec(folder, "validation", image_size=size)
        with make_input(spec, cpu_devices[:1]) as made:
            batches.append(made.next()[0].features.numpy())
    whole, half = batches
    means = whole.reshape(len(whole), 16, 2, 16, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(half, means, atol=1e-6)


def test_grey_images_are_refused(folder, cpu_devices):
    with pytest.raises(FlagError, match="have 3 channels, but the model takes 1"):
        make_input(SMALL["cifar10"].spec(folder, channels=1), cpu_devices[:1])
