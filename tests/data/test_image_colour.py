import colorsys
import math

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.data import image
from cnnbench.data.image import distort_colour, scale_and_turn_chroma


@pytest.fixture(scope="module")
def photo(photos):
    return tf.constant(photos["flower"][100:150, 100:160] / 255.0, tf.float32)


def position(i):
    return tf.constant(i, tf.int64)


@pytest.mark.parametrize("in_yiq", [True, False])
def test_colours_change_within_bounds_and_repeatably(photo, in_yiq):
    results = [distort_colour(photo, position(i), 1, in_yiq=in_yiq).numpy() for i in range(6)]
    for i, result in enumerate(results):
        assert result.shape == photo.shape
        assert result.min() >= 0
        assert result.max() <= 1
        assert np.abs(result - photo).max() > 0.02
        again = distort_colour(photo, position(i), 1, in_yiq=in_yiq)
        np.testing.assert_array_equal(result, again)
    assert len({result.tobytes() for result in results}) == 6


@pytest.mark.parametrize("in_yiq", [True, False])
def test_the_two_orders_take_turns(photo, in_yiq, monkeypatch):
    """With the two changes replaced by x -> x/2 and x -> x + .1 the order can be read off."""
    monkeypatch.setattr(tf.image, "stateless_random_brightness", lambda x, *a, **k: x)
    monkeypatch.setattr(tf.image, "stateless_random_contrast", lambda x, *a, **k: x / 2)
    for name in ("_saturation_and_hue_in_yiq", "_saturation_and_hue_in_hsv"):
        monkeypatch.setattr(image, name, lambda x, *a: x + 0.1)
    grey = tf.fill([2, 2, 3], 0.4)
    contrast_last = distort_colour(grey, position(0), 1, in_yiq=in_yiq)
    contrast_first = distort_colour(grey, position(1), 1, in_yiq=in_yiq)
    np.testing.assert_allclose(contrast_last, np.full((2, 2, 3), 0.25), rtol=1e-6)
    np.testing.assert_allclose(contrast_first, np.full((2, 2, 3), 0.3), rtol=1e-6)


def test_no_change_of_chroma_is_the_identity(photo):
    np.testing.assert_allclose(scale_and_turn_chroma(photo, 1.0, 0.0), photo, atol=1e-5)


def test_no_chroma_is_grey_of_the_same_brightness(photo):
    grey = scale_and_turn_chroma(photo, 0.0, 0.3).numpy()
    # TensorFlow's matrix is rounded to eight digits.
    np.testing.assert_allclose(grey[..., 0], grey[..., 1], atol=1e-5)
    np.testing.assert_allclose(grey[..., 0], grey[..., 2], atol=1e-5)
    np.testing.assert_allclose(grey[..., 0], tf.image.rgb_to_yiq(photo)[..., 0], atol=1e-5)


def test_turning_keeps_brightness_and_chroma_length(photo):
    before = tf.image.rgb_to_yiq(photo).numpy()
    after = tf.image.rgb_to_yiq(scale_and_turn_chroma(photo, 1.5, 0.7)).numpy()
    np.testing.assert_allclose(after[..., 0], before[..., 0], atol=1e-5)
    length = np.hypot(before[..., 1], before[..., 2])
    np.testing.assert_allclose(np.hypot(after[..., 1], after[..., 2]), 1.5 * length, atol=1e-5)
    strong = length > 0.05
    turned = np.arctan2(after[..., 2], after[..., 1]) - np.arctan2(before[..., 2], before[..., 1])
    np.testing.assert_allclose((turned[strong] + math.pi) % (2 * math.pi) - math.pi, 0.7, atol=1e-3)


def test_one_pixel_against_the_standard_library():
    red, green, blue = 0.8, 0.3, 0.1
    y, i, q = colorsys.rgb_to_yiq(red, green, blue)
    cosine, sine = 0.5 * math.cos(0.4), 0.5 * math.sin(0.4)
    expected = colorsys.yiq_to_rgb(y, cosine * i - sine * q, sine * i + cosine * q)
    pixel = scale_and_turn_chroma(tf.constant([[[red, green, blue]]]), 0.5, 0.4)
    # The standard library rounds the matrix to two digits.
    np.testing.assert_allclose(pixel[0, 0], expected, atol=0.02)
