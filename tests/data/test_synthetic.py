"""Synthetic examples.

Tests cnnbench/data/pipeline.py and cnnbench/data/open.py.
"""

import zlib

import numpy as np
import pytest
import tensorflow as tf
from data_sets import input_spec

from cnnbench.data import IMAGENET, make_input
from cnnbench.data.pipeline import count_examples_before, draw_uniform_int, positions_of
from cnnbench.data.synthetic import draw_synthetic_rows
from cnnbench.models import Draw, Element


def spec(towers, batch, **fields):
    return input_spec(IMAGENET, 9, batch_per_device=batch, num_devices=towers, **fields)


def global_batch(towers, batch, devices, **fields):
    source = make_input(spec(towers, batch, **fields), devices[:towers])
    batches = [source.get_tower_batch(t, ()) for t in range(towers)]
    images = np.concatenate([batch.features.numpy() for batch in batches])
    return images, np.concatenate([batch.labels.numpy() for batch in batches])


def test_the_global_batch_does_not_depend_on_the_number_of_towers(cpu_devices):
    images, labels = global_batch(1, 8, cpu_devices)
    for towers in (2, 4, 8):
        other_images, other_labels = global_batch(towers, 8 // towers, cpu_devices)
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_images_are_normalised_and_labels_in_range(cpu_devices):
    images, labels = global_batch(1, 64, cpu_devices, num_classes=5)
    assert images.shape == (64, 9, 9, 3)
    assert np.abs(images).max() <= 1
    assert abs(images.mean()) < 0.02
    assert 0.35 < images.std() < 0.55
    assert labels.dtype == np.int64
    assert set(labels) == set(range(5))


def test_rows_differ_and_the_seed_matters(cpu_devices):
    images, labels = global_batch(1, 4, cpu_devices)
    assert len({row.tobytes() for row in images}) == 4
    other_images, other_labels = global_batch(1, 4, cpu_devices, seed=1)
    assert not np.array_equal(images, other_images)
    assert not np.array_equal(labels, other_labels)


def test_steps_read_the_same_variables_on_the_towers_devices(cpu_devices):
    source = make_input(spec(3, 2), cpu_devices[:3])
    for tower, device in enumerate(cpu_devices[:3]):
        steps = []
        for _ in range(2):
            assert source.next() == ()
            with tf.device(device):
                steps.append(source.get_tower_batch(tower, ())[:2])
        for first, second in zip(*steps, strict=True):
            assert first.device == second.device == device
            np.testing.assert_array_equal(first, second)


def test_passes_of_a_step_read_parts_of_its_rows_in_turn(cpu_devices):
    """Of two workers of two towers with three passes of two examples, the second."""
    images, labels = global_batch(1, 24, cpu_devices)
    source = make_input(spec(2, 2, passes=3, num_shards=2, shard_index=1), cpu_devices[:2])
    (argument,) = source.step_argument_specs
    assert argument.features == tf.TensorSpec([], tf.int32)
    for number in (0, 1, 2, 0):
        batches = source.next()
        assert int(batches[0].features) == number
        for tower in (0, 1):
            first = 12 + 6 * tower + 2 * number
            batch = source.get_tower_batch(tower, batches)
            np.testing.assert_array_equal(batch.features, images[first : first + 2])
            np.testing.assert_array_equal(batch.labels, labels[first : first + 2])
    assert source.batches == 4


def test_dtype_and_epoch(cpu_devices):
    source = make_input(spec(2, 4, dtype="bfloat16", subset="validation"), cpu_devices[:2])
    assert source.get_tower_batch(1, ()).features.dtype == tf.bfloat16
    assert source.synthetic
    assert source.examples_per_epoch == 50_000
    assert source.steps_per_epoch == 6250
    assert source.wait_seconds == 0
    element = source.element_spec[1]
    assert element.features == tf.TensorSpec([4, 9, 9, 3], tf.bfloat16)
    assert element.weights == tf.TensorSpec([4], tf.float32)


ELEMENTS = (
    Element("boxes", (6, 4), "label", draw=Draw.boxes(), rows="number"),
    Element("number", (), "label", "int64", Draw.integers(0, 7)),
    Element("share", (2,), "feature", draw=Draw.uniform(2, 5)),
    Element("ones", (3,), "feature", "int32", Draw.constant(1)),
)


def test_every_element_is_drawn_as_it_says():
    rows = draw_synthetic_rows(tf.range(200), 1, ELEMENTS)
    assert {name: (x.dtype.name, tuple(x.shape)) for name, x in rows.items()} == {
        "boxes": ("float32", (200, 6, 4)),
        "number": ("int64", (200,)),
        "share": ("float32", (200, 2)),
        "ones": ("int32", (200, 3)),
    }
    number, boxes, share = (rows[name].numpy() for name in ("number", "boxes", "share"))
    assert set(number) == set(range(7))
    assert 2 <= share.min() < 2.2 < 4.8 < share.max() < 5
    assert (rows["ones"].numpy() == 1).all()
    there = np.arange(6) < number[:, None]
    assert (boxes[~there] == 0).all()
    top, left, bottom, right = boxes[there].T
    for first, last in ((top, bottom), (left, right)):
        assert first.min() >= 0
        assert (first + 0.09 < last).all()
        assert 0.8 < (last - first).max() < 0.91
        assert last.max() <= 1
    assert top.std() > 0.1


def test_what_a_model_makes_of_examples_depends_on_the_row_alone(cpu_devices):
    def preprocess(example, seed):
        noise = tf.random.stateless_uniform([2], seed)
        return {"share": example["share"] + noise, "number": example["number"]}

    made = (ELEMENTS[1], ELEMENTS[2])
    batches = []
    for towers in (1, 4):
        asked = spec(
            towers,
            8 // towers,
            examples=ELEMENTS,
            elements=made,
            preprocess=preprocess,
            dtype="bfloat16",
        )
        source = make_input(asked, cpu_devices[:towers])
        of_towers = [source.get_tower_batch(t, ()) for t in range(towers)]
        assert of_towers[0].features.dtype == tf.bfloat16
        batches.append(
            (
                np.concatenate([tf.cast(b.features, tf.float32) for b in of_towers]),
                np.concatenate([b.labels for b in of_towers]),
            )
        )
    np.testing.assert_array_equal(batches[0][0], batches[1][0])
    np.testing.assert_array_equal(batches[0][1], batches[1][1])
    assert len(np.unique(batches[0][0])) > 12


def test_an_element_without_a_draw_is_named():
    with pytest.raises(ValueError, match="element wind: no distribution of synthetic"):
        draw_synthetic_rows(tf.range(1), 1, (Element("wind", (), "feature"),))


@pytest.mark.parametrize(("shards", "towers", "batch"), [(1, 2, 3), (2, 1, 1), (3, 2, 2)])
def test_shards_number_the_examples_of_the_whole_run(shards, towers, batch):
    """Rows of global batches in training, and every so-manieth example in an exact pass."""
    share, steps = towers * batch, 4
    numbers = np.arange(share * steps)
    for own in range(shards):
        shard = spec(towers, batch, num_shards=shards, shard_index=own)
        rows = [
            (step * shards + own) * share + row for step in range(steps) for row in range(share)
        ]
        assert positions_of(numbers, shard).tolist() == rows
        assert positions_of(share + 1, shard) == [*rows, *rows][share + 1] or share == 1
        for position in range(share * shards * steps):
            before = count_examples_before(tf.constant(position, tf.int64), shard)
            assert int(before) == sum(row < position for row in rows)
        exact = spec(towers, batch, num_shards=shards, shard_index=own, subset="validation")
        assert positions_of(numbers, exact).tolist() == [*range(own, len(numbers) * shards, shards)]


@pytest.mark.parametrize("below", [1, 7, 2**40])
def test_draws_are_those_of_splitmix64(below):
    def drawn(position, seed, purpose):
        x = position * 0x9E3779B97F4A7C15
        x = (x + seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode())) % 2**64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return (x ^ (x >> 31)) % below

    positions = [0, 1, 2, 1000, 2**40]
    for seed, purpose in ((0, ""), (3, "mirror"), (2**62, "box")):
        found = draw_uniform_int(tf.constant(positions, tf.int64), seed, purpose, below)
        assert found.numpy().tolist() == [drawn(one, seed, purpose) for one in positions]
        assert found.dtype == tf.int64
