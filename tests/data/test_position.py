"""The stream of examples is one for all processes and towers, and goes on in a resumed run.

Tests cnnbench/data/records.py and cnnbench/data/pipeline.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from data_sets import SMALL, damage, input_spec, jpeg, write_records

from cnnbench.data import IMAGENET, RATINGS, imagenet, make_input, tfrecord
from cnnbench.data.folder import RecordDefect
from cnnbench.data.joined_input import JoinedWorkerInput
from cnnbench.data.records import RecordPipeline
from cnnbench.data.tfrecord import find_files

GLOBAL_BATCH = 4
FILES = (7, 5, 4, 4)  # records in them


def layout(spec, shards, towers):
    """The specs of all shards that make the global batches together."""
    batch = GLOBAL_BATCH // (shards * towers)
    return [
        dataclasses.replace(
            spec, num_shards=shards, shard_index=i, num_devices=towers, batch_per_device=batch
        )
        for i in range(shards)
    ]


def read(spec, steps, shards=1, towers=1, done=0, first=0):
    """Features and labels of so many global batches, behind `done` steps of an earlier run.

    Of their rows those of the shards from `first` on.
    """
    of_shards = []
    for own in layout(spec, shards, towers)[first:]:
        with make_input(own, ["CPU:0"] * towers) as source:
            if done:
                assert source.resume(done * GLOBAL_BATCH, GLOBAL_BATCH)
            of_shards.append([source.next() for _ in range(steps)])
    arrays = []
    for of_step in zip(*of_shards, strict=True):
        towers_parts = [tf.nest.flatten(batch[:2]) for batches in of_step for batch in batches]
        arrays += [np.concatenate(parts) for parts in zip(*towers_parts, strict=True)]
    return arrays


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def write_files(folder, prefix, record, counts=FILES):
    numbers = itertools.count()
    for file, count in enumerate(counts):
        name = f"{prefix}train-{file:05d}-of-{len(counts):05d}"
        write_records(folder / name, (record(next(numbers)) for _ in range(count)))
    return folder


class Plain(RecordPipeline):
    """Records that hold a number of thirty digits; other ones are no examples."""

    def decode(self, record, position):
        label = tf.strings.to_number(record, tf.int64)
        return {"image": tf.fill([1, 1, 3], tf.cast(position, tf.float32)), "label": label}

    def examine(self, record):
        if not record.isdigit():
            raise RecordDefect("it is not a number")


NUMBERS = dataclasses.replace(IMAGENET, name="numbers", open=Plain)


def number(number):
    return b"%030d" % number


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("numbered"), "", number)
    return input_spec(NUMBERS, 1, data_dir=str(folder), seed=5)


@pytest.fixture(scope="module")
def cifar10(small_set):
    return SMALL["cifar10"].spec(small_set("cifar10"), distortions=True, seed=5)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings")
    np.savez(folder / "ratings-train.npz", users=np.arange(9) // 3, items=np.arange(9) * 5)
    return input_spec(RATINGS, 0, data_dir=str(folder))


def half_of_seed(example, seed):
    """The left half of an image is the pipeline's, the right one the model's."""
    drawn = tf.random.stateless_uniform([8, 4, 3], seed)
    return {"image": tf.concat([example["image"][:, :4], drawn], 1), "label": example["label"]}


def alike(folder):
    """Records that are all the same, so that files dealt out differently make no difference."""
    record = imagenet.serialize(jpeg(0), 24, 32, 1, "", "", "")
    write_files(folder, "", lambda _: record)
    fields = {"data_dir": str(folder), "preprocess": half_of_seed}
    return input_spec(IMAGENET, 8, distortions=True, **fields)


@pytest.mark.parametrize(
    ("dataset", "shards"), slow_if([("ratings", 1)], [("cifar10", 2), ("ratings", 1)])
)
def test_arrays_are_one_stream_that_goes_on_where_it_was_left(dataset, shards, request):
    spec = request.getfixturevalue(dataset)
    whole = read(spec, 24)  # four epochs of cifar10's 22 images
    parts = len(whole) // 24
    if dataset == "cifar10":  # which distorts an image otherwise in every epoch
        assert len({image.tobytes() for image in np.concatenate(whole[::parts])}) > 22
    assert_same(read(spec, 14, 2, 2), whole[: 14 * parts])
    own = slice(GLOBAL_BATCH - GLOBAL_BATCH // shards, None)
    for done in (5, 18):
        wanted = [part[own] for part in whole[done * parts : (done + 6) * parts]]
        assert_same(read(spec, 6, shards, done=done, first=shards - 1), wanted)


def shifted_by_seed(example, seed):
    return {**example, "image": example["image"] + tf.random.stateless_uniform([], seed)}


def test_draws_of_an_exact_pass_depend_on_the_example_alone(small_set):
    spec = SMALL["cifar10"].spec(
        small_set("cifar10"), "validation", batch=2, preprocess=shifted_by_seed, seed=5
    )

    def images(shards, index):
        own = dataclasses.replace(spec, num_shards=shards, shard_index=index)
        with make_input(own, ["CPU:0"]) as source:
            batches = [source.next() for _ in range(2)]
        return np.concatenate([tower.features for (tower,) in batches])

    whole = images(1, 0)
    for index in (0, 1):
        np.testing.assert_array_equal(images(2, index)[:2], whole[index::2])


def test_draws_depend_on_the_row_of_the_global_batch_alone(tmp_path):
    spec = alike(tmp_path)
    wanted = read(spec, 3)
    images = np.concatenate([part for part in wanted if part.shape[1:] == (8, 8, 3)])
    for half in (images[:, :, :4], images[:, :, 4:]):
        assert len({one.tobytes() for one in half}) > len(images) // 2
    assert_same(read(spec, 3, 2, 2, first=1), [part[GLOBAL_BATCH // 2 :] for part in wanted])


@pytest.mark.parametrize(
    "options",
    slow_if(
        lambda options: options["num_shards"] != 2,  # those that are skipped below are cached
        [
            {"num_shards": 2, "shuffle_buffer": 4},  # a file is divided
            {"num_shards": 3, "shard_files": True, "datasets_parallel_interleave_cycle_length": 1},
        ],
    ),
    ids=str,
)
def test_records_go_on_where_they_were_left(numbers, options):
    spec = dataclasses.replace(numbers, batch_per_device=2, **options)
    spec = dataclasses.replace(spec, shard_index=spec.num_shards - 1)

    def steps(count, done=0):
        with make_input(spec, ["CPU:0"]) as source:
            batch = 2 * spec.num_shards
            source.resume(done * batch, batch)
            return [source.next() for _ in range(count)]

    per_epoch = 10 // spec.num_shards
    whole = steps(3 * per_epoch + 4)
    assert len({tuple(batch.labels.numpy()) for (batch,) in whole}) > per_epoch
    for done in (per_epoch // 2, 2 * per_epoch + 1):
        for one, other in zip(steps(4, done), whole[done : done + 4], strict=True):
            np.testing.assert_array_equal(one[0].labels, other[0].labels)
            np.testing.assert_array_equal(one[0].features, other[0].features)


@pytest.fixture(scope="module")
def flawed(tmp_path_factory):
    """The same with two records that are no examples, and one whose checksum is wrong."""
    folder = tmp_path_factory.mktemp("flawed")
    write_files(folder, "", lambda own: b"no" if own in (4, 13) else number(own))
    (first, *_) = find_files(str(folder), "train")
    damage(first, 2)
    return input_spec(NUMBERS, 1, data_dir=str(folder), on_bad_record="skip")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"num_shards": 2, "shuffle_buffer": 4}, {"datasets_use_caching": True}],
    ids=str,
)
def test_records_go_on_where_they_were_left_though_some_are_skipped(flawed, options):
    """In two interruptions, within an epoch and after it."""
    spec = dataclasses.replace(flawed, batch_per_device=2, **options)

    def steps(count, done=0, passed_over=()):
        shards = [dataclasses.replace(spec, shard_index=i) for i in range(spec.num_shards)]
        with JoinedWorkerInput([make_input(shard, ["CPU:0"]) for shard in shards]) as source:
            assert source.resume(done * 2 * len(shards), 2 * len(shards), passed_over)
            read = [
                [batch.labels.numpy().tolist() for batch in source.next()] for _ in range(count)
            ]
            return read, source.skipped_records_by_shard(7), source.skipped_records_by_shard(count)

    whole, by_then, in_all = steps(24)
    assert sum(in_all) > 5
    second, _, by_then = steps(10, 7, by_then)
    third, _, skipped = steps(7, 17, by_then)
    assert whole[:7] + second + third == whole
    assert skipped == in_all


def test_an_exact_pass_of_workers_deals_out_single_records(tmp_path):
    (tmp_path / "train").mkdir()
    for path in write_files(tmp_path / "train", "", number, (1, 4, 2)).iterdir():
        path.rename(tmp_path / path.name.replace("train", "validation"))
    spec = input_spec(NUMBERS, 1, "validation", data_dir=str(tmp_path))

    def numbers_of(own, of, steps):
        shard = dataclasses.replace(spec, num_shards=of, shard_index=own)
        with make_input(shard, ["CPU:0"]) as source:
            return [int(source.next()[0].labels[0]) for _ in range(steps)]

    whole = numbers_of(0, 1, 7)
    assert sorted(whole) == [*range(7)]
    for own in range(2):
        assert numbers_of(own, 2, 3) == whole[own::2][:3]


@pytest.mark.slow
def test_workers_share_out_uneven_files_evenly(tmp_path):
    """As one process: in two epochs of 23 records, 24 steps of two, two come a third time."""
    write_files(tmp_path, "", number, (1, 1, 21))
    spec = input_spec(NUMBERS, 1, data_dir=str(tmp_path))
    parts = []
    for own in range(3):
        shard = dataclasses.replace(spec, num_shards=3, shard_index=own)
        with make_input(shard, ["CPU:0"]) as source:
            parts.append([int(source.next()[0].labels[0]) for _ in range(16)])
    own_records = [set(part) for part in parts]
    assert {len(records) for records in own_records} <= {7, 8}
    assert sum(map(len, own_records)) == len(set.union(*own_records)) == 23
    times = Counter(label for part in parts for label in part)
    assert Counter(times.values()) == {2: 21, 3: 2}


@pytest.mark.slow
def test_files_that_are_not_counted_are_shared_out_completely(tmp_path, monkeypatch):
    """Those of the published ImageNet count as equal ones, which they are within a record."""
    monkeypatch.setitem(tfrecord._PUBLISHED_FILES, "train", 4)
    monkeypatch.setitem(tfrecord.PUBLISHED_EXAMPLES, "train", 22)
    write_files(tmp_path, "", number, (6, 5, 5, 6))
    own_records = []
    for own in range(3):
        spec = input_spec(NUMBERS, 1, data_dir=str(tmp_path), num_shards=3, shard_index=own)
        with make_input(spec, ["CPU:0"]) as source:
            own_records.append({int(source.next()[0].labels[0]) for _ in range(16)})
    assert sum(map(len, own_records)) == len(set.union(*own_records)) == 22


def test_no_file_is_opened_for_epochs_behind(numbers, monkeypatch):
    opened = tf.Variable(0)
    plain = RecordPipeline._read_file

    def counted(self, file, *part: tf.Tensor):
        with tf.control_dependencies([opened.assign_add(1)]):
            return plain(self, tf.identity(file), *part)

    monkeypatch.setattr(RecordPipeline, "_read_file", counted)
    read(numbers, 1, done=5 * 40)
    # Of this epoch and of those that the buffers already hold records of.
    assert 1 <= int(opened) // len(FILES) < 10


def test_closed_and_begun_anew_it_goes_on_from_the_same_place(numbers):
    with make_input(dataclasses.replace(numbers, batch_per_device=4), ["CPU:0"]) as source:
        source.resume(48, 4)
        first = source.next()[0].labels.numpy()
        source.close()
        np.testing.assert_array_equal(source.next()[0].labels, first)
