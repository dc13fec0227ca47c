"""Augmentation: mixup and CutMix against their formulas in NumPy, single changes against Pillow."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import scipy  # which loads scipy.stats when it is used
import short_runs
import tensorflow as tf
from covering import slow_if
from data_sets import SMALL, input_spec
from PIL import Image, ImageEnhance, ImageOps

from cnnbench.data import CIFAR10, augment, make_input
from cnnbench.data.augment import (
    AUGMENTATIONS,
    OPERATIONS,
    Change,
    augment_image,
    draw_beta,
    mix_with_neighbours,
)
from cnnbench.data.pipeline import draw_uniform_int
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.flags.params import SPECS
from cnnbench.plan import make_plan

BOTH = {"mixup_alpha": 0.4, "cutmix_alpha": 1.0}


def read(spec, steps, done=0):
    """Images, classes, classes of the others and own shares of so many steps; by step and tower."""
    with make_input(spec, ["CPU:0"] * spec.num_devices) as source:
        if done:
            batch = spec.process_batch_size * spec.num_shards
            assert source.resume(done * batch, batch)
        batches = [batch for _ in range(steps) for batch in source.next()]
    arrays = []
    for batch in batches:
        labels = batch.labels if isinstance(batch.labels, dict) else {"label": batch.labels}
        named = ("label", "other_label", "own_share")
        parts = [batch.features, *(labels[name] for name in named if name in labels)]
        arrays.append([tf.convert_to_tensor(part).numpy() for part in parts])
    return [np.concatenate(parts) for parts in zip(*arrays, strict=True)]


def swapped(rows):
    return rows.reshape(-1, 2, *rows.shape[1:])[:, ::-1].reshape(rows.shape)


@pytest.fixture
def spec(small_set):
    return SMALL["cifar10"].spec(small_set("cifar10"), batch=4, seed=5)


def shares(count, alpha):
    draw = tf.function(draw_beta, autograph=False)
    return draw(tf.range(count, dtype=tf.int64), 7, tf.fill([count], alpha)).numpy()


@pytest.mark.parametrize("alpha", slow_if([1.0, 4.0], [0.2, 1.0, 4.0]))
def test_shares_have_the_distribution_beta(alpha):
    drawn = shares(3000, alpha)
    assert scipy.stats.kstest(drawn, scipy.stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_shares_of_small_alphas_are_finite():
    drawn = shares(500, 1e-30)
    assert set(drawn) == {0.0, 1.0}
    assert 200 < drawn.sum() < 300


@pytest.mark.parametrize("dtype", slow_if(["bfloat16"], ["float32", "bfloat16"]))
def test_mixup_is_the_mean_of_two_images_and_two_labels(spec, dtype):
    spec = dataclasses.replace(spec, dtype=dtype)
    images, classes = read(spec, 5)
    found, own, others, shares = read(dataclasses.replace(spec, mixup_alpha=1.0), 5)
    np.testing.assert_array_equal(own, classes)
    np.testing.assert_array_equal(others, swapped(classes))
    assert len({*shares.tolist()}) == len(shares) == 20
    share = shares.astype(np.float64)[:, None, None, None]
    exact = images.astype(np.float64)
    expected = share * exact + (1 - share) * swapped(exact)
    tolerance = 1e-6 if dtype == "float32" else 2.0**-8
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=tolerance)


def rectangle(height, width, share, row, column):
    """Which pixels are replaced, as `rand_bbox` of the authors says; `share` is lambda."""
    cut = np.sqrt(np.float32(1) - share)
    down, across = int(np.float32(height) * cut), int(np.float32(width) * cut)
    inside = np.zeros((height, width), bool)
    top, bottom = np.clip([row - down // 2, row + down // 2], 0, height)
    left, right = np.clip([column - across // 2, column + across // 2], 0, width)
    inside[top:bottom, left:right] = True
    return inside


@pytest.mark.parametrize("alphas", [{"cutmix_alpha": 1.0}, BOTH], ids=["CutMix", "both"])
def test_cutmix_replaces_a_rectangle(alphas, small_set):
    """Images that are not square, and half of them mixed as a whole if mixup is asked for too."""
    height, width, count = 12, 20, 64
    spec = SMALL["cifar10"].spec(small_set("cifar10"), batch=count, seed=5, **alphas)
    image = dataclasses.replace(spec.elements[0], shape=(height, width, 3))
    spec = dataclasses.replace(spec, elements=(image, spec.elements[1]))
    images = np.random.default_rng(0).normal(size=(count, height, width, 3)).astype(np.float32)
    classes = np.arange(count)
    positions = 1000 + tf.range(count, dtype=tf.int64)
    made = mix_with_neighbours(
        {"image": tf.constant(images), "label": tf.constant(classes)}, positions, spec
    )
    found, shares = made["image"].numpy(), made["own_share"].numpy()
    np.testing.assert_array_equal(made["other_label"], swapped(classes))
    rows, columns = (
        draw_uniform_int(positions, 5, f"CutMix {name}", size).numpy()
        for name, size in (("row", height), ("column", width))
    )
    cuts = np.ones(count, bool)
    if "mixup_alpha" in alphas:
        cuts = draw_uniform_int(positions, 5, "mixup or CutMix", 2).numpy() == 1
        assert 20 < cuts.sum() < 44
    drawn = draw_beta(positions, 5, tf.where(cuts, 1.0, 0.4)).numpy()
    for number in range(count):
        other = images[number ^ 1]
        if cuts[number]:
            inside = rectangle(height, width, drawn[number], rows[number], columns[number])
            expected = np.where(inside[:, :, None], other, images[number])
            np.testing.assert_array_equal(found[number], expected)
            assert shares[number] == pytest.approx(1 - inside.mean(), abs=1e-6)
        else:
            share = np.float64(drawn[number])
            expected = share * images[number] + (1 - share) * other
            np.testing.assert_allclose(found[number], expected, atol=1e-6)
            assert shares[number] == drawn[number]


@pytest.mark.slow
def test_a_global_batch_is_the_same_for_any_number_of_towers_and_processes(spec):
    whole = dataclasses.replace(spec, batch_per_device=8, **BOTH)
    expected = read(whole, 3)
    towers = dataclasses.replace(whole, batch_per_device=4, num_devices=2)
    shards = [
        dataclasses.replace(whole, batch_per_device=4, num_shards=2, shard_index=index)
        for index in range(2)
    ]
    together = [
        np.concatenate([part.reshape(3, 4, *part.shape[1:]) for part in parts], 1)
        for parts in zip(*(read(one, 3) for one in shards), strict=True)
    ]
    joined = [part.reshape(24, *part.shape[2:]) for part in together]
    for found in (read(towers, 3), joined, [part[8:] for part in expected]):
        wanted = expected if len(found[0]) == 24 else read(whole, 2, done=1)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_skipped_records_do_not_shift_the_shares_of_a_resumed_run(spec):
    with make_input(dataclasses.replace(spec, **BOTH), ["CPU:0"]) as source:
        assert source.resume(12, 4, [2])
        assert (source._pipeline.start, source._pipeline.delivered) == (14, 12)


def test_mixing_is_a_stage_of_its_own(spec):
    with make_input(dataclasses.replace(spec, **BOTH), ["CPU:0"]) as source:
        assert [stage.name for stage in source.stages()] == ["batch", "mix"]


@pytest.mark.parametrize("flag", ["mixup_alpha", "cutmix_alpha"])
def test_an_odd_batch_has_no_pairs(flag, small_set):
    flags = {"data_name": "cifar10", "data_dir": str(small_set("cifar10")), "model": "trivial"}
    flags |= {"batch_size": 3, flag: 1.0}
    with pytest.raises(FlagError, match=f"--{flag}=1: mixes pairs .* must be even, not 3"):
        make_plan(Params(**flags))
    make_plan(Params(**flags, forward_only=True))
    assert make_plan(
        Params(**flags | {"batch_size": 2}, input_only=True)
    ).input.training.mixes_images


@pytest.mark.slow
def test_a_strategy_distributes_what_towers_get(small_set, quick_start):
    found = []
    for flags in (
        {"variable_update": "replicated"},
        {"variable_update": "mirrored_strategy", "input_distribution": "strategy"}
        | {"cross_device_ops": "reduction_to_one_device"},
    ):
        own = {"data_name": "cifar10", "data_dir": str(small_set("cifar10")), "batch_size": 2}
        built = short_runs.build("trivial", **own, **flags, **BOTH, num_gpus=2)
        batches = [built.inputs.next() for _ in range(2)]
        built.close()
        found.append([np.asarray(one) for one in tf.nest.flatten(batches) if one is not None])
    assert len(found[0]) == 2 * 2 * 4
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


# TrivialAugment and RandAugment, against Pillow, whose operations the papers name ---------------

PATTERN = np.random.default_rng(4).integers(0, 256, (30, 44, 3), np.uint8)
SMOOTH = np.stack([np.add.outer(np.arange(30) * 5, np.arange(44) * 2 + c) for c in (3, 20, 9)], -1)
SMOOTH = SMOOTH.astype(np.uint8)
MOVING = ("rotate", "shear_x", "shear_y")
PICTURES = {"noise": PATTERN, "gradient": SMOOTH, "grey": np.full((30, 44, 3), 7, np.uint8)}


def by_pillow(name, pixels, strength, signed, policy):
    """What the papers' operations make of an image, for a strength of 0 to 1."""
    image = Image.fromarray(pixels)
    low, high = policy.factors
    width, height = image.size
    matrices = {
        "shear_x": (1, signed * policy.shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, signed * policy.shear, 1, 0),
        "translate_x": (1, 0, int(signed * policy.translation(width)), 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, int(signed * policy.translation(height))),
    }
    if name in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[name])
    enhanced = {"color": "Color", "contrast": "Contrast"}
    enhanced |= {"brightness": "Brightness", "sharpness": "Sharpness"}
    if name in enhanced:
        return getattr(ImageEnhance, enhanced[name])(image).enhance(low + (high - low) * strength)
    others = {
        "identity": lambda: image,
        "auto_contrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "rotate": lambda: image.rotate(signed * policy.angle),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(256 * strength)),
        "posterize": lambda: ImageOps.posterize(image, 8 - int((8 - policy.bits) * strength)),
    }
    return others[name]()


# The others are of no amount, or have that of one of these.
_BY_AMOUNT = ("shear_x", "translate_x", "rotate", "color", "posterize", "solarize")


@pytest.mark.parametrize(
    ("policy", "name"),
    slow_if(
        lambda case: case[0] == "randaugment" and case[1] not in _BY_AMOUNT,
        itertools.product(AUGMENTATIONS, OPERATIONS),
    ),
)
def test_operations_are_those_of_pillow(name, policy):
    of = AUGMENTATIONS[policy]
    change = tf.function(
        lambda image, *strengths: OPERATIONS[name](image, Change(*strengths, of)), autograph=False
    )
    for pixels in PICTURES.values():
        for strength in (0.0, 0.25, 0.75, 1.0) if of.strength is None else (of.strength,):
            for signed in (strength, -strength):
                given = [tf.constant(value, tf.float64) for value in (strength, signed)]
                found = change(tf.constant(pixels), *given).numpy().astype(int)
                expected = np.asarray(by_pillow(name, pixels, strength, signed, of)).astype(int)
                differ = np.any(found != expected, -1).mean()
                # A place halfway between two pixels may be rounded either way.
                assert differ <= (0.03 if name in MOVING else 0.0), (strength, signed, differ)


def test_translations_of_randaugment_depend_on_the_size():
    image = tf.constant(np.random.default_rng(1).integers(1, 256, (331, 331, 3), np.uint8))
    strength = tf.constant(0.9, tf.float64)
    change = Change(strength, strength, AUGMENTATIONS["randaugment"])
    moved = OPERATIONS["translate_x"](image, change).numpy()
    np.testing.assert_array_equal(moved[:, : 331 - 135], image[:, 135:])
    assert not moved[:, 331 - 135 :].any()


@pytest.mark.parametrize("policy", slow_if(["randaugment"], AUGMENTATIONS))
def test_choices_are_uniform_and_independent(policy, monkeypatch):
    """Operations, strengths and directions of many images, noted down instead of images."""
    made = {}
    for number, name in enumerate(OPERATIONS):

        def note(image, change, number=number):
            row = tf.stack([tf.cast(number, tf.float64), change.strength, tf.sign(change.signed)])
            return tf.concat([image, row], 0)[3:]

        made[name] = note
    monkeypatch.setattr(augment, "OPERATIONS", made)
    count = AUGMENTATIONS[policy].operations
    spec = input_spec(CIFAR10, 32, augment=policy, seed=3)
    positions = tf.range(2100, dtype=tf.int64)

    @tf.function(autograph=False)
    def draw():
        empty = tf.zeros([3 * count], tf.float64)
        return tf.map_fn(
            lambda at: augment_image(empty, at, spec),
            positions,
            fn_output_signature=tf.TensorSpec([3 * count], tf.float64),
        )

    rows = draw().numpy().reshape(-1, count, 3)
    for number in range(count):
        operations, strengths, signs = rows[:, number].T
        assert (
            scipy.stats.chisquare(np.bincount(operations.astype(int), minlength=14)).pvalue > 0.01
        )
        moved = strengths > 0
        assert scipy.stats.binomtest(int((signs[moved] > 0).sum()), int(moved.sum())).pvalue > 0.01
        if AUGMENTATIONS[policy].strength is None:
            levels = np.round(strengths * 30).astype(int)
            np.testing.assert_allclose(strengths, levels / 30, rtol=1e-6)
            assert scipy.stats.chisquare(np.bincount(levels, minlength=31)).pvalue > 0.01
        else:
            np.testing.assert_allclose(strengths, 0.9, rtol=1e-6)
    if count == 2:
        both = np.histogram2d(*rows[:, :, 0].T, bins=14)[0]
        assert scipy.stats.chi2_contingency(both).pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_images_of_files_are_changed_by_their_position(name, small_set):
    spec = SMALL[name].spec(small_set(name), batch=4, seed=5)
    size = spec.image_size
    plain, _ = read(spec, 2)
    given = dataclasses.replace(spec, augment="trivialaugment")
    found, _ = read(given, 2)
    pixels = tf.saturate_cast(tf.round((plain + 1.0) * 127.5), tf.uint8)
    change = tf.function(
        lambda image, position: augment_image(image, position, given), autograph=False
    )
    for position in range(8):
        image = tf.ensure_shape(pixels[position], [size, size, 3])
        expected = change(image, tf.constant(position, tf.int64)).numpy() / 127.5 - 1
        # Resized values of almost x.5 may be rounded differently after they were normalised.
        assert (np.abs(found[position] - expected) > 1e-5).mean() < 0.02
    assert np.abs(found - plain).max() > 0.1


@pytest.mark.slow
def test_images_of_an_evaluation_are_not_changed(spec):
    validation = dataclasses.replace(spec, augment="trivialaugment", subset="validation")
    with make_input(validation, ["CPU:0"]) as source:
        changed = source.next()[0].features.numpy()
    with make_input(dataclasses.replace(validation, augment="none"), ["CPU:0"]) as source:
        np.testing.assert_array_equal(source.next()[0].features, changed)


def test_the_flag_takes_every_augmentation():
    assert {*SPECS["augment"].choices} == {"none", *AUGMENTATIONS}
