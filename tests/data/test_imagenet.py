"""Files of ImageNet: found, counted, shared out and read.

Tests cnnbench/data/tfrecord.py.
"""

import shutil
import struct
from collections import Counter

import pytest
from covering import slow_if
from data_sets import SMALL, examples, write_records

from cnnbench.data import IMAGENET, make_input, tfrecord
from cnnbench.data.tfrecord import count_examples, find_files

SPEC = SMALL["imagenet"].spec
TRAIN = set(SMALL["imagenet"].examples["train"])


@pytest.fixture
def folder(small_set):
    return small_set("imagenet")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


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


def test_threads_and_steps_in_advance_keep_the_order(folder, cpu_devices):
    def order(**options):
        return labels(SPEC(folder, batch=4, **options), cpu_devices, 2 * len(TRAIN) // 4)

    usual = order()
    assert [order(datasets_num_private_threads=number) for number in (1, 4)] == [usual] * 2
    assert order(datasets_prefetch_buffer_size=4) == usual


def test_caching_reads_the_files_once(copy, cpu_devices):
    fields = {"datasets_use_caching": True, "datasets_use_prefetch": False, "batch": len(TRAIN)}
    with make_input(SPEC(copy, shuffle_buffer=3, **fields), cpu_devices[:1]) as source:
        assert set(source.next()[0].labels.numpy()) == TRAIN
        shutil.rmtree(copy)
        assert set(source.next()[0].labels.numpy()) == TRAIN


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


@pytest.mark.parametrize("options", slow_if([{}], [{}, {"on_bad_record": "skip"}]))
def test_no_file_of_autograph_is_written(folder, cpu_devices, tmp_path, temporary_folders, options):
    """Processes of a job end without TensorFlow's clean-up, which would remove it."""
    temporary_folders(tmp_path)
    assert labels(SPEC(folder, num_shards=2, shard_index=1, **options), cpu_devices, 1)
    assert not list(tmp_path.iterdir())


def test_a_length_beyond_all_memory_is_not_believed(copy):
    path = copy / "validation-00001-of-00002"
    *_, (record, offset, _) = tfrecord.locate_records(path)
    content = bytearray(path.read_bytes())
    length = struct.pack("<Q", 2**40)
    checksum = struct.pack("<I", tfrecord.masked_crc32c(length))
    content[offset : offset + 12] = length + checksum
    path.write_bytes(content)
    found = IMAGENET.check(find_files(str(copy), "validation"), 1001)
    (defect,) = found.defects
    assert defect.startswith(f"{path}: record {record}: truncated, ")
    assert found.records == 7
