import base64
import shutil
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from input_specs import input_spec

from cnnbench.data import IMAGENET, make_input, tfrecord
from cnnbench.data.imagenet_files import count_examples, find_files, missing_shards
from cnnbench.data.imagenet_records import BOX_SIDES, ENCODED, LABEL, serialize
from cnnbench.errors import DataError, FlagError

TRAIN, VALIDATION = 16, 8


def spec(data_dir, subset="train", towers=1, batch=4, **fields):
    fields = {"image_size": 32, "data_dir": str(data_dir), **fields}
    return input_spec(IMAGENET, subset=subset, batch_per_device=batch, num_devices=towers, **fields)


def examples_of(path):
    return [
        tf.train.Example.FromString(data)
        for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]


def write(path, examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString())


@pytest.fixture(scope="module")
def numbered_dir(imagenet_dir, tmp_path_factory):
    """The photographs with labels 0, 1, 2, ... instead of classes, so records can be told apart."""
    out = tmp_path_factory.mktemp("numbered")
    for subset in ("train", "validation"):
        number = 0
        for path in find_files(str(imagenet_dir), subset):
            examples = examples_of(path)
            for example in examples:
                example.features.feature[LABEL].int64_list.value[:] = [number]
                number += 1
            write(out / path.name, examples)
    return out


def labels(asked, devices, steps):
    """Labels over towers and steps, in order."""
    with make_input(asked, devices[: asked.num_devices]) as source:
        return [int(n) for _ in range(steps) for b in source.next() for n in b.labels]


def test_batches_fit_the_element_spec(imagenet_dir, cpu_devices):
    for subset in ("train", "validation"):
        asked = spec(imagenet_dir, subset, towers=2, dtype="bfloat16")
        with make_input(asked, cpu_devices[2:4]) as source:
            for batch, expected, device in zip(
                source.next(), source.element_spec, cpu_devices[2:4], strict=True
            ):
                assert batch.features.device == batch.labels.device == device
                for value, wanted in zip(batch, expected, strict=True):
                    assert (value is None) == (wanted is None)
                    if value is not None:
                        assert wanted.is_compatible_with(value)
                assert float(tf.reduce_max(tf.abs(batch.features))) <= 1


def test_examples_are_counted(imagenet_dir, cpu_devices):
    for subset, count in (("train", TRAIN), ("validation", VALIDATION)):
        with make_input(spec(imagenet_dir, subset), cpu_devices[:1]) as source:
            assert source.examples_per_epoch == count
            assert not source.synthetic


def test_an_epoch_holds_every_record_once_in_a_new_order(numbered_dir, cpu_devices):
    order = labels(spec(numbered_dir), cpu_devices, 3 * TRAIN // 4)
    epochs = [order[i : i + TRAIN] for i in range(0, 3 * TRAIN, TRAIN)]
    assert all(sorted(epoch) == list(range(TRAIN)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_stream_depends_on_the_seed_and_not_on_the_towers(numbered_dir, cpu_devices):
    def images(towers, batch, seed=7):
        asked = spec(numbered_dir, towers=towers, batch=batch, seed=seed, distortions=True)
        with make_input(asked, cpu_devices[:towers]) as source:
            return np.concatenate([b.features for _ in range(5) for b in source.next()])

    one = images(1, 8)
    np.testing.assert_array_equal(one, images(1, 8))
    np.testing.assert_array_equal(one, images(4, 2))
    assert not np.array_equal(one, images(1, 8, seed=8))


@pytest.mark.parametrize(("towers", "batch"), [(1, 8), (1, 3), (2, 3), (8, 3)])
def test_validation_is_an_exact_pass_that_wraps(numbered_dir, cpu_devices, towers, batch):
    asked = spec(
        numbered_dir, "validation", towers, batch, datasets_sloppy_parallel_interleave=True
    )
    passes = []
    with make_input(asked, cpu_devices[:towers]) as source:
        for _ in range(2):
            batches = [b for _ in range(source.steps_per_epoch) for b in source.next()]
            assert all(b.features.shape == (batch, 32, 32, 3) for b in batches)
            weights = np.concatenate([b.weights for b in batches])
            assert np.all(weights[:VALIDATION] == 1)
            assert np.all(weights[VALIDATION:] == 0)
            passes.append(np.concatenate([b.labels for b in batches])[:VALIDATION].tolist())
    assert sorted(passes[0]) == list(range(VALIDATION))
    assert passes[0] == passes[1]


@pytest.mark.parametrize("num_shards", [2, 3])
@pytest.mark.parametrize("sloppy", [False, True])
def test_training_shards_are_disjoint_and_complete(numbered_dir, cpu_devices, num_shards, sloppy):
    """Three files: whole files for 3 shards, single records for 2."""
    seen = []
    for index in range(num_shards):
        asked = spec(
            numbered_dir,
            batch=1,
            num_shards=num_shards,
            shard_index=index,
            datasets_sloppy_parallel_interleave=sloppy,
        )
        seen.append(set(labels(asked, cpu_devices, 2 * TRAIN)))
    assert set.union(*seen) == set(range(TRAIN))
    assert sum(map(len, seen)) == TRAIN


def test_validation_shards_cover_every_record_once(numbered_dir, cpu_devices):
    weighted = []
    for index in range(3):
        asked = spec(numbered_dir, "validation", batch=2, num_shards=3, shard_index=index)
        with make_input(asked, cpu_devices[:1]) as source:
            assert source.steps_per_epoch == 2
            batches = [source.next()[0] for _ in range(2)]
        weighted += [int(n) for b in batches for n, w in zip(b.labels, b.weights, strict=True) if w]
    assert sorted(weighted) == list(range(VALIDATION))


def test_one_sample_for_ever(numbered_dir, cpu_devices):
    asked = spec(numbered_dir, datasets_repeat_cached_sample=True)
    assert len(set(labels(asked, cpu_devices, 2 * TRAIN // 4))) == 1
    asked = spec(numbered_dir, "validation", datasets_repeat_cached_sample=True)
    assert len(set(labels(asked, cpu_devices, 4))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"datasets_use_caching": True},
        {"datasets_parallel_interleave_cycle_length": 1},
        {"datasets_parallel_interleave_prefetch": 2},
        {"datasets_sloppy_parallel_interleave": True},
        {"datasets_num_private_threads": 2},
        {"datasets_num_private_threads": 0},
        {"datasets_use_prefetch": False},
        {"datasets_prefetch_buffer_size": 3, "multi_device_iterator_max_buffer_size": 2},
        {"shuffle_buffer": 3},
    ],
)
def test_reader_options_keep_every_record(numbered_dir, cpu_devices, options):
    seen = labels(spec(numbered_dir, **options), cpu_devices, 2 * TRAIN // 4)
    assert Counter(seen) == Counter(list(range(TRAIN)) * 2)


def test_caching_reads_the_files_once(numbered_dir, cpu_devices, tmp_path):
    for path in numbered_dir.iterdir():
        shutil.copy(path, tmp_path)
    asked = spec(tmp_path, datasets_use_caching=True, datasets_use_prefetch=False, batch=TRAIN)
    with make_input(asked, cpu_devices[:1]) as source:
        source.next()
        for path in tmp_path.iterdir():
            path.unlink()
        assert sorted(source.next()[0].labels.numpy()) == list(range(TRAIN))


def error_of(data_dir, cpu_devices, subset="train", steps=4, **fields):
    """The message of the DataError within the first epoch; it must be one line."""
    with pytest.raises(DataError) as caught:
        labels(spec(data_dir, subset, **fields), cpu_devices, steps)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def broken(imagenet_dir, tmp_path):
    """A copy to damage, and the path of its second training file."""
    for path in imagenet_dir.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path / "train-00001-of-00003"


def edit(path, record, change):
    examples = examples_of(path)
    change(examples[record].features.feature)
    write(path, examples)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_a_jpeg_that_does_not_decode(broken, cpu_devices, prefetch, cached):
    def cut(feature):
        encoded = feature[ENCODED].bytes_list
        encoded.value[:] = [encoded.value[0][:700]]

    edit(broken, 3, cut)
    message = error_of(
        broken.parent,
        cpu_devices,
        datasets_use_prefetch=prefetch,
        datasets_use_caching=cached,
        fuse_decode_and_crop=False,
    )
    assert message == f"{broken}: record 3: the JPEG cannot be decoded"


@pytest.mark.parametrize("key", [ENCODED, LABEL])
def test_a_missing_key(broken, cpu_devices, key):
    edit(broken, 4, lambda feature: feature.pop(key))
    assert error_of(broken.parent, cpu_devices) == f"{broken}: record 4: key {key} is missing"


@pytest.mark.parametrize("label", [5, -1, 2**40])
def test_a_label_out_of_range(broken, cpu_devices, label):
    edit(broken, 2, lambda feature: feature[LABEL].int64_list.value.__setitem__(0, label))
    message = error_of(broken.parent, cpu_devices, num_classes=5)
    assert message == f"{broken}: record 2: label {label} is not in [0, 5)"


def test_a_box_outside_the_image(broken, cpu_devices):
    def add(feature):
        for side, value in (("ymin", 0.5), ("xmin", 0.5), ("ymax", 1.5), ("xmax", 0.6)):
            feature[f"image/object/bbox/{side}"].float_list.value[:] = [value]

    edit(broken, 1, add)
    assert f"{broken}: record 1: box ymin=0.5" in error_of(broken.parent, cpu_devices)


def test_a_record_that_is_no_example(broken, cpu_devices):
    with tf.io.TFRecordWriter(str(broken)) as writer:
        writer.write(b"\xff\xff")
    message = error_of(broken.parent, cpu_devices)
    assert message == f"{broken}: record 0: is not a serialized tf.train.Example"


def test_an_image_too_small_for_the_crop(imagenet_dir, cpu_devices):
    message = error_of(imagenet_dir, cpu_devices, resize_method="crop", image_size=96)
    assert "record" in message
    assert "--resize_method=crop needs 96x96" in message


def test_a_damaged_record(broken, cpu_devices):
    content = bytearray(broken.read_bytes())
    content[-100] ^= 1
    broken.write_bytes(content)
    last = len(examples_of_until_damage(broken))
    assert error_of(broken.parent, cpu_devices) == (
        f"{broken}: record {last}: its checksum is wrong"
    )


def examples_of_until_damage(path):
    found = []
    try:
        for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            found.append(data)
    except tf.errors.DataLossError:
        return found
    raise AssertionError("the file is sound")


def test_a_truncated_file_is_noticed_before_the_first_step(broken, cpu_devices):
    broken.write_bytes(broken.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-00001-of-00003: record \d: truncated, 5 bytes"):
        make_input(spec(broken.parent), cpu_devices[:1])


@pytest.mark.parametrize(
    ("subset", "name"),
    [("train", "train-00001-of-00003"), ("validation", "validation-00000-of-00002")],
)
def test_an_image_that_is_no_jpeg(broken, cpu_devices, subset, name):
    path = broken.with_name(name)
    edit(path, 1, lambda feature: feature[ENCODED].bytes_list.value.__setitem__(0, b"no image"))
    message = error_of(broken.parent, cpu_devices, subset=subset)
    assert message.startswith(f"{path}: record 1: the image is no JPEG")


def test_missing_directory_empty_directory_and_missing_subset(tmp_path, imagenet_dir, cpu_devices):
    with pytest.raises(FlagError, match=r"--data_dir=.*nowhere: there is no such directory"):
        make_input(spec(tmp_path / "nowhere"), cpu_devices[:1])
    with pytest.raises(FlagError, match=r"holds no files train-\*-of-\*$"):
        make_input(spec(tmp_path), cpu_devices[:1])
    shutil.copy(imagenet_dir / "train-00000-of-00003", tmp_path)
    with pytest.raises(FlagError, match=r"validation-\*-of-\*; it has train files only"):
        make_input(spec(tmp_path, "validation"), cpu_devices[:1])


def test_files_without_records(tmp_path, cpu_devices):
    (tmp_path / "train-00000-of-00001").touch()
    with pytest.raises(DataError, match="the train files hold no records"):
        make_input(spec(tmp_path), cpu_devices[:1])


def test_the_published_set_is_known_by_its_files(tmp_path):
    """128 files with 390 records in the first are ImageNet's; with another number they are not."""
    first = tmp_path / "validation-00000-of-00128"
    rest = [tmp_path / f"validation-{i:05d}-of-00128" for i in range(1, 128)]
    with tf.io.TFRecordWriter(str(first)) as writer:
        for _ in range(390):
            writer.write(b"x")
    for path in rest:
        path.touch()
    files = find_files(str(tmp_path), "validation")
    assert files == [first, *rest]
    assert count_examples(files, "validation") == 50_000
    with tf.io.TFRecordWriter(str(first)) as writer:
        writer.write(b"x")
    assert count_examples(files, "validation") == 1


def test_missing_shards_are_listed(tmp_path):
    paths = [tmp_path / f"train-0000{i}-of-00004" for i in (0, 2)]
    assert missing_shards(paths) == ["train-00001-of-00004", "train-00003-of-00004"]
    assert missing_shards([tmp_path / "train-0-of-1.tfrecord"]) == []


@pytest.mark.parametrize("subset", ["train", "validation"])
@pytest.mark.parametrize("fault", ["png", "outside", "nan", "strip"])
def test_training_and_evaluation_refuse_what_the_check_refuses(
    tmp_path, cpu_devices, subset, fault
):
    pixels = np.zeros((1, 20_000, 3) if fault == "strip" else (9, 9, 3), np.uint8)
    encode = tf.io.encode_png if fault == "png" else tf.io.encode_jpeg
    data = serialize(encode(pixels).numpy(), 9, 9, 1, "a", "a", "a")
    example = tf.train.Example.FromString(data)
    boxes = {"outside": (0.1, 0.2, 0.3, 1.5), "nan": (0.1, float("nan"), 0.3, 0.5)}
    box = boxes.get(fault, ())
    for side, value in zip(BOX_SIDES, box, strict=False):
        example.features.feature[side].float_list.value[:] = [value]
    path = tmp_path / f"{subset}-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(example.SerializeToString())
    reports = IMAGENET.check([path], 1001)
    with (
        pytest.raises(DataError) as caught,
        make_input(spec(tmp_path, subset), cpu_devices[:1]) as inputs,
    ):
        inputs.next()
    assert [str(caught.value)] == reports.defects


# 80 x 64 pixels of a grey ramp, with arithmetic coding in place of Huffman's: jpegtran
# -arithmetic.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQEBLAEsAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJ"
    "BwYGCAsICQoKCgoKBggLDAsKDAkKCgr/2wBDAQICAgICAgUDAwUKBwYHCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoK"
    "CgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgr/yQARCABAAFADASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIR"
    "AxEAPwD/APNWo9TD233VRKVWb01D8GyPtggSNSHtjYPVFjLrps3PBfPizWdjJsHPlVvVFiHJ1EHrgw173TrL0rOJ"
    "jq8xJG/ppTgoJgXFBeKXM27AtVkx8oNaSzrgx8WHaAu6eJRzyqYRqOtFMSbf0tgUV887AJVQA0ArTIA/rPsgS+tk"
    "jAQa6E8CZrtB4CFJREATUlp9HRALVsjONtaYCGpRcHiClrhAQ16Ls8QXtc4CGzReniDQvxgQ2aL08QaF+P/Z"
)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("subset", ["train", "validation"])
def test_arithmetic_coding_is_taken_everywhere(tmp_path, cpu_devices, subset, fused):
    assert b"\xff\xc9" in ARITHMETIC
    path = tmp_path / f"{subset}-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(serialize(ARITHMETIC, 64, 80, 1, "a", "a", "a"))
    assert IMAGENET.check([path], 1001).defects == []
    asked = spec(tmp_path, subset, batch=1, fuse_decode_and_crop=fused)
    with make_input(asked, cpu_devices[:1]) as inputs:
        assert inputs.next()[0].features.shape == (1, 32, 32, 3)


def damage(path, record):
    """Changes a byte of a record's data."""
    frame = list(tfrecord.frames(path))[record]
    content = bytearray(path.read_bytes())
    content[frame.offset + frame.length // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture
def partly_bad(numbered_dir, tmp_path):
    """The numbered records, with one that is damaged, one undecodable, two of unusable labels."""
    for path in numbered_dir.iterdir():
        shutil.copy(path, tmp_path)
    files = find_files(str(tmp_path), "train")
    edit(files[0], 1, lambda feature: feature[ENCODED].bytes_list.value.__setitem__(0, b"no"))
    damage(files[1], 2)
    for record in (0, 3):
        edit(files[2], record, lambda feature: feature[LABEL].int64_list.value.__setitem__(0, 2000))
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"datasets_use_caching": True},
        {"datasets_use_prefetch": False, "datasets_num_private_threads": 1},
        {"datasets_sloppy_parallel_interleave": True},
    ],
)
def test_bad_records_are_skipped_and_all_others_delivered(partly_bad, cpu_devices, options):
    files = find_files(str(partly_bad), "train")
    sizes = [len(list(tfrecord.frames(path))) for path in files]
    bad = {1, sizes[0] + 2, sizes[0] + sizes[1], sizes[0] + sizes[1] + 3}
    asked = spec(partly_bad, batch=1, on_bad_record="skip", **options)
    with make_input(asked, cpu_devices[:1]) as source:
        epochs = [int(source.next()[0].labels[0]) for _ in range(2 * (TRAIN - 4))]
        skipped = source.skipped()
    assert Counter(epochs) == {n: 2 for n in range(TRAIN) if n not in bad}
    assert skipped.count == 4
    assert skipped.first == (
        f"{files[0]}: record 1: the image is no JPEG; cnnbench data make-imagenet writes JPEGs",
        f"{files[1]}: record 2: its checksum is wrong",
        f"{files[2]}: record 0: label 2000 is not in [0, 1001)",
    )


@pytest.mark.parametrize(("towers", "batch"), [(1, 3), (2, 2)])
def test_an_evaluation_gives_skipped_records_no_weight(
    numbered_dir, tmp_path, cpu_devices, towers, batch
):
    for path in numbered_dir.iterdir():
        shutil.copy(path, tmp_path)
    first, second = find_files(str(tmp_path), "validation")
    damage(first, 0)
    edit(second, 2, lambda feature: feature[LABEL].int64_list.value.__setitem__(0, -5))
    asked = spec(tmp_path, "validation", towers, batch, on_bad_record="skip")
    with make_input(asked, cpu_devices[:towers]) as source:
        for _ in range(2):  # passes
            seen = [
                int(label)
                for _ in range(source.steps_per_epoch)
                for tower in source.next()
                for label, weight in zip(tower.labels, tower.weights, strict=True)
                if weight
            ]
            in_first = len(list(tfrecord.frames(first)))
            assert sorted(seen) == sorted({*range(VALIDATION)} - {0, in_first + 2})
        assert source.skipped().count == 2


def test_training_on_nothing_but_bad_records_ends(numbered_dir, tmp_path, cpu_devices):
    for path in numbered_dir.iterdir():
        shutil.copy(path, tmp_path)
    for path in find_files(str(tmp_path), "train"):
        for record in range(len(examples_of(path))):
            edit(path, record, lambda feature: feature.pop(LABEL))
    message = error_of(tmp_path, cpu_devices, on_bad_record="skip")
    assert message.startswith("no train record can be used; ")
    assert "record 0: key image/class/label is missing" in message
