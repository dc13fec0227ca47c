import shutil
import struct
from collections import Counter

import pytest
import tensorflow as tf
from data_sets import SMALL, damage, examples, write_records

from cnnbench.data import IMAGENET, make_input, tfrecord
from cnnbench.data.imagenet import ENCODED, LABEL
from cnnbench.data.imagenet_files import count_examples, find_files
from cnnbench.errors import DataError

SPEC = SMALL["imagenet"].spec
TRAIN, VALIDATION = (set(SMALL["imagenet"].examples[s]) for s in ("train", "validation"))


@pytest.fixture
def folder(small_set):
    return small_set("imagenet")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def examples_of(path):
    return [
        tf.train.Example.FromString(data)
        for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]


def label_in(example):
    return example.features.feature[LABEL].int64_list.value[0]


def labels(asked, devices, steps):
    """Labels over towers and steps, in order, but for padding."""
    with make_input(asked, devices[: asked.num_devices]) as source:
        batches = [batch for _ in range(steps) for batch in source.next()]
    return examples(batches, SMALL["imagenet"].of)


@pytest.mark.parametrize(
    "options",
    [
        {
            "datasets_parallel_interleave_cycle_length": 1,
            "datasets_parallel_interleave_prefetch": 2,
            "datasets_use_prefetch": False,
            "datasets_num_private_threads": 2,
        },
        {
            "datasets_sloppy_parallel_interleave": True,
            "datasets_num_private_threads": 0,
            "datasets_prefetch_buffer_size": 3,
            "multi_device_iterator_max_buffer_size": 2,
        },
    ],
)
def test_reader_options_keep_every_record(folder, cpu_devices, options):
    seen = labels(SPEC(folder, batch=4, **options), cpu_devices, 2 * len(TRAIN) // 4)
    assert Counter(seen) == Counter([*TRAIN, *TRAIN])


def test_caching_reads_the_files_once(copy, cpu_devices):
    fields = {"datasets_use_caching": True, "datasets_use_prefetch": False, "batch": len(TRAIN)}
    with make_input(SPEC(copy, shuffle_buffer=3, **fields), cpu_devices[:1]) as source:
        assert set(source.next()[0].labels.numpy()) == TRAIN
        shutil.rmtree(copy)
        assert set(source.next()[0].labels.numpy()) == TRAIN


def edit(path, record, change):
    found = examples_of(path)
    change(found[record].features.feature)
    write_records(path, (example.SerializeToString() for example in found))


def test_an_image_too_small_for_the_crop(folder, cpu_devices):
    needed = r"record \d: the image is 24x32, but --resize_method=crop needs 25x25"
    with pytest.raises(DataError, match=needed):
        labels(SPEC(folder, resize_method="crop", image_size=25), cpu_devices, 1)


def test_the_published_set_is_known_by_its_files(tmp_path):
    """128 files with 390 records in the first are ImageNet's; with another number they are not."""
    first = tmp_path / "validation-00000-of-00128"
    rest = [tmp_path / f"validation-{i:05d}-of-00128" for i in range(1, 128)]
    write_records(first, [b"x"] * 390)
    for path in rest:
        path.touch()
    files = find_files(str(tmp_path), "validation")
    assert files == [first, *rest]
    assert count_examples(files, "validation") == 50_000
    write_records(first, [b"x"])
    assert count_examples(files, "validation") == 1


@pytest.mark.parametrize(
    "options",
    [
        {
            **{"datasets_use_caching": True, "datasets_use_prefetch": False},
            "datasets_num_private_threads": 1,
        },
        {"datasets_sloppy_parallel_interleave": True},
    ],
)
def test_bad_records_are_skipped_and_all_others_delivered(copy, cpu_devices, options):
    """One that is damaged, one undecodable, two of unusable labels."""
    files = find_files(str(copy), "train")
    classes = [label_in(example) for path in files for example in examples_of(path)]
    sizes = [tfrecord.count_records(path) for path in files]
    bad = {1, sizes[0] + 2, sizes[0] + sizes[1], sizes[0] + sizes[1] + 3}
    edit(files[0], 1, lambda feature: feature[ENCODED].bytes_list.value.__setitem__(0, b"no"))
    damage(files[1], 2)
    for record in (0, 3):
        edit(files[2], record, lambda feature: feature[LABEL].int64_list.value.__setitem__(0, 2000))
    asked = SPEC(copy, on_bad_record="skip", **options)
    with make_input(asked, cpu_devices[:1]) as source:
        epochs = [int(source.next()[0].labels[0]) for _ in range(2 * (len(TRAIN) - 4))]
        skipped = source.skipped()
    counts = Counter(epochs)
    assert set(counts) == {one for i, one in enumerate(classes) if i not in bad}
    # In sloppy order the first examples of the third pass may come before the last of the second.
    sloppy = "datasets_sloppy_parallel_interleave" in options
    assert set(counts.values()) <= ({1, 2, 3} if sloppy else {2})
    assert skipped.count == 4
    assert skipped.first == (
        f"{files[0]}: record 1: the image is no JPEG; cnnbench data make-imagenet writes JPEGs",
        f"{files[1]}: record 2: its checksum is wrong",
        f"{files[2]}: record 0: label 2000 is not in [0, 1001)",
    )


def test_an_evaluation_gives_skipped_records_no_weight(copy, cpu_devices):
    first, second = find_files(str(copy), "validation")
    bad = {label_in(examples_of(first)[0]), label_in(examples_of(second)[2])}
    damage(first, 0)
    edit(second, 2, lambda feature: feature[LABEL].int64_list.value.__setitem__(0, -5))
    asked = SPEC(copy, "validation", towers=2, batch=2, on_bad_record="skip")
    with make_input(asked, cpu_devices[:2]) as source:
        for _ in range(2):  # passes
            batches = [b for _ in range(source.steps_per_epoch) for b in source.next()]
            assert sorted(examples(batches, SMALL["imagenet"].of)) == sorted(VALIDATION - bad)
        assert source.skipped().count == 2


@pytest.mark.parametrize("options", [{}, {"on_bad_record": "skip"}])
def test_no_file_of_autograph_is_written(folder, cpu_devices, tmp_path, temporary_folders, options):
    """Processes of a job end without TensorFlow's clean-up, which would remove it."""
    temporary_folders(tmp_path)
    assert labels(SPEC(folder, num_shards=2, shard_index=1, **options), cpu_devices, 1)
    assert not list(tmp_path.iterdir())


def test_a_length_beyond_all_memory_is_not_believed(copy):
    path = copy / "validation-00001-of-00002"
    *_, (record, offset, _) = tfrecord.frames(path)
    content = bytearray(path.read_bytes())
    length = struct.pack("<Q", 2**40)
    checksum = struct.pack("<I", tfrecord.masked_crc32c(length))
    content[offset : offset + 12] = length + checksum
    path.write_bytes(content)
    found = IMAGENET.check(find_files(str(copy), "validation"), 1001)
    (defect,) = found.defects
    assert defect.startswith(f"{path}: record {record}: truncated, ")
    assert found.records == 7
