import numpy as np
import pytest
import tensorflow as tf
from cifar10_writer import write_cifar10
from input_specs import input_spec

from cnnbench.data import CIFAR10, make_input
from cnnbench.data.cifar10 import pad_crop_flip
from cnnbench.errors import FlagError

COUNT = 22


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """22 noise images; the label and the first pixel tell which."""
    directory = tmp_path_factory.mktemp("cifar10")
    images = np.random.default_rng(0).integers(0, 255, (COUNT, 32, 32, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(COUNT)
    for subset in ("train", "validation"):
        write_cifar10(directory, images, np.arange(COUNT) % 10, subset=subset)
    return str(directory), images


def spec(data_dir, subset="train", towers=1, batch=4, **fields):
    fields = {"batch_per_device": batch, "num_devices": towers, "data_dir": data_dir, **fields}
    return input_spec(CIFAR10, 32, subset, **fields)


def numbers(batch):
    """Which images a batch holds, from the first pixel."""
    return np.rint((batch.features.numpy()[:, 0, 0, 0] + 1) * 127.5).astype(int)


def stream(source, steps):
    """Numbers of the images over towers and steps, in order."""
    with source:
        return [int(n) for _ in range(steps) for batch in source.next() for n in numbers(batch)]


def test_values_labels_and_dtype(data_dir, cpu_devices):
    directory, images = data_dir
    with make_input(spec(directory, "validation"), cpu_devices[:1]) as source:
        (batch,) = source.next()
    np.testing.assert_allclose(batch.features, images[:4] / 127.5 - 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(batch.labels, [0, 1, 2, 3])
    assert batch.labels.dtype == tf.int64
    with make_input(spec(directory, dtype="bfloat16"), cpu_devices[:1]) as source:
        assert source.next()[0].features.dtype == tf.bfloat16


def test_every_epoch_holds_every_image_once_in_a_new_order(data_dir, cpu_devices):
    order = stream(make_input(spec(data_dir[0], batch=11), cpu_devices[:1]), 4)
    first, second = order[:COUNT], order[COUNT:]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    assert first != list(range(COUNT))


def test_the_stream_depends_on_the_seed_and_not_on_the_towers(data_dir, cpu_devices):
    one = stream(make_input(spec(data_dir[0], batch=8), cpu_devices[:1]), 6)
    four = stream(make_input(spec(data_dir[0], towers=4, batch=2), cpu_devices[:4]), 6)
    other = stream(make_input(spec(data_dir[0], batch=8, seed=5), cpu_devices[:1]), 6)
    assert one == four
    assert one != other


def test_the_global_random_seed_plays_no_part(data_dir, cpu_devices):
    def images():
        with make_input(spec(data_dir[0], distortions=True), cpu_devices[:1]) as source:
            return np.concatenate([source.next()[0].features for _ in range(3)])

    tf.random.set_seed(1)
    first = images()
    tf.random.set_seed(2)
    np.testing.assert_array_equal(first, images())


def test_distortions_differ_between_epochs_and_not_with_the_batch_size(data_dir, cpu_devices):
    def epochs(batch):
        asked = spec(data_dir[0], batch=batch, distortions=True)
        with make_input(asked, cpu_devices[:1]) as source:
            return np.concatenate([source.next()[0].features for _ in range(2 * COUNT // batch)])

    images = epochs(2)
    np.testing.assert_array_equal(images, epochs(11))
    assert len({image.tobytes() for image in images}) > COUNT


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


@pytest.mark.parametrize(("towers", "batch"), [(1, 22), (1, 5), (2, 4), (4, 3), (8, 1)])
@pytest.mark.parametrize("prefetch", [True, False])
def test_validation_is_an_exact_pass_that_wraps(data_dir, cpu_devices, towers, batch, prefetch):
    asked = spec(data_dir[0], "validation", towers, batch, datasets_use_prefetch=prefetch)
    with make_input(asked, cpu_devices[:towers]) as source:
        assert source.steps_per_epoch == -(-COUNT // (towers * batch))
        for _ in range(2):
            batches = [b for _ in range(source.steps_per_epoch) for b in source.next()]
            assert all(b.features.shape == (batch, 32, 32, 3) for b in batches)
            weights = np.concatenate([b.weights for b in batches])
            order = np.concatenate([numbers(b) for b in batches])
            assert order[weights == 1].tolist() == list(range(COUNT))
            assert set(weights[COUNT:]) <= {0.0}


def test_shards_cover_every_image_once(data_dir, cpu_devices):
    def shard(subset, index, steps):
        asked = spec(data_dir[0], subset, batch=1, num_shards=3, shard_index=index)
        return stream(make_input(asked, cpu_devices[:1]), steps)

    sizes = [8, 7, 7]
    for subset in ("train", "validation"):
        seen = [n for i, size in enumerate(sizes) for n in shard(subset, i, size)]
        assert sorted(seen) == list(range(COUNT))


def test_shards_of_unequal_size_take_the_same_number_of_steps(data_dir, cpu_devices):
    weights = []
    for index in range(3):
        asked = spec(data_dir[0], "validation", batch=1, num_shards=3, shard_index=index)
        with make_input(asked, cpu_devices[:1]) as source:
            weights.append(sum(float(source.next()[0].weights[0]) for _ in range(8)))
    assert weights == [8, 7, 7]


def test_one_sample_for_ever(data_dir, cpu_devices):
    asked = spec(data_dir[0], datasets_repeat_cached_sample=True)
    assert set(stream(make_input(asked, cpu_devices[:1]), 20)) == {0}


def test_the_images_are_no_part_of_the_graph(data_dir):
    source = CIFAR10.open(spec(data_dir[0]))
    source._images = tf.zeros([1000, 32, 32, 3], tf.uint8)
    traced = tf.function(source._load).get_concrete_function(
        tf.TensorSpec([4], tf.int64), tf.TensorSpec([4], tf.int64)
    )
    assert len(traced.graph.as_graph_def().SerializeToString()) < 20_000


def test_another_image_size_is_refused(data_dir, cpu_devices):
    with pytest.raises(FlagError, match=r"32x32x3, but the model takes 224x224x3"):
        make_input(input_spec(CIFAR10, 224, data_dir=data_dir[0]), cpu_devices[:1])
