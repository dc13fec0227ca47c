"""Images of ImageNet: cropped, resized, distorted and normalised.

Tests cnnbench/data/imagenet.py.
"""

import dataclasses
import io
import math

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs
from data_sets import input_spec
from PIL import Image

from cnnbench.data import IMAGENET, RESIZE_METHODS
from cnnbench.data import imagenet as image_module
from cnnbench.data.imagenet import (
    CHANNEL_MEANS,
    distort_colour,
    preprocess_eval_image,
    preprocess_train_image,
    resize_image,
    scale_and_rotate_chroma,
)

NO_BOXES = tf.zeros([1, 0, 4])
ODD_SIZES = [(31, 57), (97, 33), (64, 64), (40, 201)]


def spec(size=24, **fields):
    return input_spec(IMAGENET, size, **fields)


def position(i):
    return tf.constant(i, tf.int64)


def jpeg(image, **options):
    return tf.io.encode_jpeg(tf.constant(image), quality=100, **options)


def train(encoded, boxes, at, asked):
    return preprocess_train_image(encoded, tf.io.extract_jpeg_shape(encoded), boxes, at, asked)


def flat(height, width, colour):
    return jpeg(np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)))


@pytest.mark.parametrize(
    ("method", "size", "prepare"), covering_pairs(RESIZE_METHODS, ODD_SIZES, ["train", "eval"])
)
def test_a_flat_colour_stays_flat(method, size, prepare):
    colour = (200, 100, 40)
    for at in range(4):
        encoded = flat(*size, colour)
        if prepare == "train":
            image = train(encoded, NO_BOXES, position(at), spec(resize_method=method))
        else:
            image = preprocess_eval_image(encoded, position(at), spec(resize_method=method))
        assert image.shape == (24, 24, 3)
        assert image.dtype == tf.float32
        # JPEG itself rounds a colour by up to two steps.
        expected = np.broadcast_to(np.array(colour) / 127.5 - 1, (24, 24, 3))
        np.testing.assert_allclose(image, expected, atol=2.1 / 127.5)


def test_fused_decoding_sees_the_same_window(photos):
    encoded = jpeg(photos["flower"])
    for at in range(5):
        fused = train(encoded, NO_BOXES, position(at), spec(fuse_decode_and_crop=True))
        apart = train(encoded, NO_BOXES, position(at), spec(fuse_decode_and_crop=False))
        # Chroma at the window's edge may be upsampled from other neighbours.
        assert float(tf.reduce_mean(tf.abs(fused - apart))) < 0.01


@pytest.mark.parametrize("fused", [False, True])
def test_a_window_alone_is_decoded_when_asked(fused, monkeypatch):
    called = []

    def note(owner, name):
        decode = getattr(owner, name)
        noting = lambda *of, **options: called.append(name) or decode(*of, **options)  # noqa: E731
        monkeypatch.setattr(owner, name, noting)

    note(tf.io, "decode_jpeg")
    note(tf.image, "decode_and_crop_jpeg")
    train(flat(40, 30, (9, 9, 9)), NO_BOXES, position(0), spec(fuse_decode_and_crop=fused))
    assert called == ["decode_and_crop_jpeg" if fused else "decode_jpeg"]


def test_mlperf_ignores_boxes_and_subtracts_means():
    encoded = flat(50, 50, (200, 100, 40))
    box = tf.constant([[[0.1, 0.1, 0.2, 0.2]]])
    asked = spec(ml_perf=True)
    image = train(encoded, box, position(0), asked)
    expected = np.array((200, 100, 40)) - CHANNEL_MEANS
    np.testing.assert_allclose(image, np.broadcast_to(expected, image.shape), atol=2.1)
    np.testing.assert_allclose(preprocess_eval_image(encoded, position(0), asked), image, atol=1e-4)
    gradient = jpeg(np.tile(np.arange(0, 250, 5, dtype=np.uint8)[:, None, None], (1, 50, 3)))
    np.testing.assert_array_equal(
        train(gradient, box, position(3), asked),
        train(gradient, NO_BOXES, position(3), asked),
    )


def test_train_crop_is_a_window_of_the_image_or_its_mirror(photos):
    photo = photos["cat"][:40, :50]
    encoded = jpeg(photo)
    decoded = tf.io.decode_jpeg(encoded, dct_method="INTEGER_FAST").numpy()
    tops, steps = set(), set()
    for i in range(12):
        image = train(encoded, NO_BOXES, position(i), spec(36, resize_method="crop"))
        pixels = np.rint((image.numpy() + 1) * 127.5).astype(np.uint8)
        found = [
            (top, step)
            for top in range(5)
            for left in range(15)
            for step in (1, -1)
            if np.array_equal(decoded[top : top + 36, left : left + 36][:, ::step], pixels)
        ]
        assert found
        tops.update(top for top, _ in found)
        steps.update(step for _, step in found)
    assert len(tops) > 2
    assert steps == {1, -1}


def test_eval_crop_is_the_centre(photos):
    encoded = jpeg(photos["cat"][:41, :50])
    decoded = tf.io.decode_jpeg(encoded, dct_method="INTEGER_FAST").numpy()
    image = preprocess_eval_image(encoded, position(0), spec(36, resize_method="crop"))
    pixels = np.rint((image.numpy() + 1) * 127.5)
    np.testing.assert_array_equal(pixels, decoded[2:38, 7:43])


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "area"])
def test_round_robin_takes_the_methods_in_turn(photos, method):
    image = photos["flower"][150:210, 200:260]
    turn = ["nearest", "bilinear", "bicubic", "area"].index(method)
    alone = resize_image(image, 34, 23, position(0), spec(resize_method=method))
    in_turn = resize_image(image, 34, 23, position(4 * 7 + turn), spec(resize_method="round_robin"))
    np.testing.assert_array_equal(alone, in_turn)
    others = [
        resize_image(image, 34, 23, position(turn + i), spec(resize_method="round_robin"))
        for i in (1, 2, 3)
    ]
    assert all(np.abs(alone - other).max() > 1 for other in others)


def test_all_methods_stay_within_the_range_of_pixels():
    generator = np.random.default_rng(3)
    image = tf.constant(generator.choice(np.array([0, 1, 254, 255], np.uint8), (40, 31, 3)))
    for method in ("nearest", "bilinear", "bicubic", "area"):
        resized = resize_image(image, 17, 90, position(0), spec(resize_method=method)).numpy()
        assert resized.min() >= 0, method
        assert resized.max() <= 255, method


@pytest.fixture(scope="module")
def photo(photos):
    return tf.constant(photos["flower"][100:150, 100:160], tf.float32)


@pytest.mark.parametrize("in_yiq", [True, False])
def test_colours_change_within_bounds_and_repeatably(photo, in_yiq):
    asked = spec(distort_color_in_yiq=in_yiq)
    extreme = tf.where(photo > tf.reduce_mean(photo), 255.0, 0.0)
    results = [distort_colour(extreme, position(i), asked).numpy() for i in range(3)]
    for i, result in enumerate(results):
        assert result.shape == photo.shape
        assert result.min() >= 0
        assert result.max() <= 255
        assert np.abs(result - extreme).max() > 5
        again = distort_colour(extreme, position(i), asked)
        np.testing.assert_array_equal(result, again)
    assert len({result.tobytes() for result in results}) == 3


@pytest.mark.parametrize("in_yiq", [True, False])
def test_the_two_orders_take_turns(photo, in_yiq, monkeypatch):
    """With the two changes replaced by x -> x/2 and x -> x + .1 the order can be read off."""
    for owner, name, change in (
        (tf.image, "stateless_random_brightness", lambda x, *a, **k: x),
        (tf.image, "stateless_random_contrast", lambda x, *a, **k: x / 2),
        (image_module, "scale_and_rotate_chroma", lambda x, *a: x + 0.1),
        (tf.image, "stateless_random_saturation", lambda x, *a, **k: x),
        (tf.image, "stateless_random_hue", lambda x, *a: x + 0.1),
    ):
        monkeypatch.setattr(owner, name, change)
    grey, asked = tf.fill([2, 2, 3], 0.4 * 255), spec(distort_color_in_yiq=in_yiq)
    for at, value in ((0, 0.25), (1, 0.3)):  # with the contrast last, and first
        changed = distort_colour(grey, position(at), asked)
        np.testing.assert_allclose(changed, np.full((2, 2, 3), value * 255), rtol=1e-6)


@pytest.mark.parametrize("in_yiq", [True, False])
def test_colours_are_drawn_from_the_ranges_of_tf_cnn_benchmarks(in_yiq, monkeypatch):
    drawn = {}

    def noting(name):
        def change(image, *limits, seed=None):
            drawn[name] = limits[:-1] if seed is None else limits
            return image

        return change

    def uniform(shape, seed, low, high):
        drawn[f"uniform {len(drawn)}"] = low, high
        return 1.0

    for name in ("brightness", "contrast", "saturation", "hue"):
        monkeypatch.setattr(tf.image, f"stateless_random_{name}", noting(name))
    monkeypatch.setattr(tf.random, "stateless_uniform", uniform)
    monkeypatch.setattr(image_module, "scale_and_rotate_chroma", lambda image, *of: image)
    distort_colour(tf.zeros([1, 1, 3]), position(1), spec(distort_color_in_yiq=in_yiq))
    limits = [("brightness", (32 / 255,)), ("contrast", (0.5, 1.5))]
    if in_yiq:
        angle = pytest.approx((-0.2 * math.pi, 0.2 * math.pi))
        limits += [("uniform 2", (0.5, 1.5)), ("uniform 3", angle)]
    else:
        limits += [("saturation", (0.5, 1.5)), ("hue", (0.2,))]
    assert [*drawn.items()] == limits


def test_windows_are_drawn_from_the_ranges_of_inception(monkeypatch):
    given = []

    def sample(shape, boxes, seed, **options):
        given.append(options)
        return tf.constant([2, 3, 0]), tf.constant([20, 10, -1]), None

    monkeypatch.setattr(tf.image, "stateless_sample_distorted_bounding_box", sample)
    image = train(flat(40, 30, (9, 9, 9)), NO_BOXES, position(0), spec(8))
    assert image.shape == (8, 8, 3)
    assert given == [
        {
            "min_object_covered": 0.1,
            "aspect_ratio_range": (0.75, 1.33),
            "area_range": (0.05, 1.0),
            "max_attempts": 100,
            "use_image_if_no_bounding_boxes": True,
        }
    ]


def test_turning_keeps_brightness_and_chroma_length(photo):
    before = tf.image.rgb_to_yiq(photo / 255).numpy()
    after = tf.image.rgb_to_yiq(scale_and_rotate_chroma(photo / 255, 1.5, 0.7)).numpy()
    np.testing.assert_allclose(after[..., 0], before[..., 0], atol=1e-5)
    length = np.hypot(before[..., 1], before[..., 2])
    np.testing.assert_allclose(np.hypot(after[..., 1], after[..., 2]), 1.5 * length, atol=1e-5)
    strong = length > 0.05
    turned = np.arctan2(after[..., 2], after[..., 1]) - np.arctan2(before[..., 2], before[..., 1])
    np.testing.assert_allclose((turned[strong] + math.pi) % (2 * math.pi) - math.pi, 0.7, atol=1e-3)


# The evaluation of tf_cnn_benchmarks, from the file to the pixels, with Pillow and NumPy alone


def decoded_by_pillow(file, mode):
    """float64 [height, width, 3] in 0..255."""
    pixels = np.asarray(Image.open(io.BytesIO(file)), float)
    if mode == "L":
        return np.repeat(pixels[..., None], 3, 2)
    if mode == "CMYK":
        return (255 - pixels[..., :3]) * (255 - pixels[..., 3:]) / 255
    return pixels


@pytest.mark.parametrize(
    ("mode", "subsampling", "height", "width", "size"),
    [
        ("RGB", "4:2:0", 333, 250, 48),
        ("RGB", "4:4:4", 63, 201, 31),
        ("L", None, 140, 91, 47),
        ("CMYK", "4:4:4", 57, 57, 33),
        ("RGB", "4:2:0", 41, 53, 64),
    ],
)
def test_evaluation_sees_the_pixels_that_the_ancestor_sees(
    photos, mode, subsampling, height, width, size
):
    image = Image.fromarray(photos["flower"][40 : 40 + height, 60 : 60 + width]).convert(mode)
    options = {} if subsampling is None else {"subsampling": subsampling}
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95, **options)
    pixels = decoded_by_pillow(file.getvalue(), mode)
    # In float32 and in this order.
    ratio = max(np.float32(size) / np.float32(side) for side in (height, width))
    rows, columns = (int(np.float32(s) * ratio * np.float32(1.145)) for s in (height, width))
    top, left = (rows - size) // 2, (columns - size) // 2
    expected = bilinear(pixels, rows, columns)[top : top + size, left : left + size]
    found = preprocess_eval_image(
        file.getvalue(), position(0), spec(size, subset="validation")
    ).numpy()
    # Pillow's inverse cosine transform is the exact one, TensorFlow's the fast one.
    off = np.abs((found + 1) * 127.5 - expected)
    assert off.max() < 12
    assert off.mean() < 1.5


def test_colour_at_half_resolution_is_repeated_when_asked():
    colours = np.random.default_rng(2).integers(0, 256, (8, 8, 3)).repeat(8, 0).repeat(8, 1)
    file = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(file, "JPEG", subsampling="4:2:0")
    asked = spec(64, resize_method="crop", subset="validation")
    exact, fast = (
        preprocess_eval_image(
            file.getvalue(), position(0), dataclasses.replace(asked, **given)
        ).numpy()
        for given in ({}, {"jpeg_fancy_upscaling": False})
    )
    pixels = decoded_by_pillow(file.getvalue(), "RGB")
    exact, fast = (np.abs((image + 1) * 127.5 - pixels) for image in (exact, fast))
    assert exact.max() < 8
    assert fast.max() > 20


# The preparation of TensorFlow's official models ----------------------------------------------


def bilinear(image, height, width):
    """Resized by sampling at pixel centres, without smoothing; float64 [height, width, 3]."""

    def taps(old, new):
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, old - 1), at - low

    top, bottom, y = taps(image.shape[0], height)
    left, right, x = taps(image.shape[1], width)
    image = image.astype(float)
    rows = image[top] * (1 - y)[:, None, None] + image[bottom] * y[:, None, None]
    return rows[:, left] * (1 - x)[:, None] + rows[:, right] * x[:, None]


def official(size, **fields):
    return spec(size, input_preprocessor="official_models_imagenet", **fields)


@pytest.mark.parametrize(
    ("shape", "size", "resized"),
    [
        ((300, 451), 224, (256, 384)),  # 451 * 256 // 300
        ((420, 300), 224, (358, 256)),
        ((200, 310), 299, (299, 463)),  # a larger input than 256 is the shorter side itself
    ],
)
def test_official_evaluation_resizes_the_shorter_side_and_cuts_the_centre(
    photos, shape, size, resized
):
    encoded = jpeg(photos["china"][: shape[0], : shape[1]])
    expected = bilinear(image_module.decode_jpeg(encoded, spec()).numpy(), *resized)
    top, left = ((side - size) // 2 for side in resized)
    expected = expected[top : top + size, left : left + size] - (123.68, 116.78, 103.94)
    # Whatever the other flags say.
    given = official(size, subset="validation", resize_method="area", ml_perf=True)
    np.testing.assert_allclose(
        preprocess_eval_image(encoded, position(3), given), expected, atol=0.01
    )


def test_official_training_resizes_the_window_mirrors_and_subtracts(photos, monkeypatch):
    pixels = photos["flower"]
    encoded = jpeg(pixels)
    window = (17, 40, 200, 150)
    boxes = tf.constant([[[0.2, 0.3, 0.7, 0.8]]])
    given_boxes = []

    def sample(shape, boxes, *rest, **options):
        given_boxes.append(boxes)
        top, left, height, width = window
        return tf.constant([top, left, 0]), tf.constant([height, width, -1]), None

    monkeypatch.setattr(tf.image, "stateless_sample_distorted_bounding_box", sample)
    top, left, height, width = window
    decoded = image_module.decode_jpeg(encoded, spec()).numpy()[
        top : top + height, left : left + width
    ]
    expected = bilinear(decoded, 96, 96) - (123.68, 116.78, 103.94)
    mirrored = 0
    given = official(96, resize_method="nearest", distortions=True, ml_perf=True)
    given = dataclasses.replace(given, fuse_decode_and_crop=False)
    for at in range(6):
        image = train(encoded, boxes, position(at), given).numpy()
        as_is = np.abs(image - expected).max() < 0.01
        assert as_is or np.abs(image[:, ::-1] - expected).max() < 0.01
        mirrored += not as_is
    assert 0 < mirrored < 6
    assert all(boxes.shape == (1, 1, 4) for boxes in given_boxes)
