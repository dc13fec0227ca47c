"""What holds for every data set: made, checked, read, trained on, evaluated; bad records, bad use.

What is special about one of them is in a file of its name.

Tests cnnbench/data/cifar10_files.py, cnnbench/data/coco.py, cnnbench/data/imagenet.py,
cnnbench/data/librispeech.py, cnnbench/data/open.py, cnnbench/data/ratings_files.py and
cnnbench/data/records.py.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import shutil
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from data_sets import (
    FRAMES,
    LETTERS,
    SMALL,
    damage,
    examples,
    jpeg,
    labels_of,
    noise,
    sound,
    utterances,
    wav,
    write_cifar10,
    write_records,
)

from cnnbench.data import coco, find_dataset, imagenet, make_input
from cnnbench.data import librispeech as speech
from cnnbench.data.coco import CocoObject
from cnnbench.data.dataset import detect_dataset
from cnnbench.errors import DataError, FlagError
from cnnbench.models import register_model
from cnnbench.models.networks.deepspeech import DeepSpeech2
from cnnbench.models.networks.ncf import NeuMF
from cnnbench.models.networks.ssd import SSD300

EVERY = pytest.mark.parametrize("name", SMALL)
# Records of several features take long to trace.
EVERY_TRACED = pytest.mark.parametrize("name", slow_if(["coco", "librispeech", "ratings"], SMALL))
SUBSETS = ("train", "validation")
# Those that commands make, and those whose files hold records.
MADE = [name for name in SMALL if name != "cifar10"]
RECORDS = ["imagenet", "coco", "librispeech"]


@pytest.fixture(autouse=True)
def _no_iterators_in_tracebacks():
    """Destroys iterators that caught errors hold, as soon as a test has ended.

    Destroying one may take as long as it has lived: the wake-up of its tuning thread can get lost,
    and the pauses of that thread double.
    """
    yield
    gc.collect(0)


# Made and checked -------------------------------------------------------------------------------

FILES = {
    "imagenet": ["labels.txt"],
    "coco": ["coco-labels.txt"],
    "librispeech": [],
    "ratings": ["ratings-train.npz", "ratings-validation.npz"],
}
CHECKED = {
    "imagenet": [
        "labels: 16 different from 1 to 16, 1 to 1 records each",
        "images: 24 to 24 high, 32 to 32 wide",
    ],
    "cifar10": ["labels: 10 different from 0 to 9, 2 to 3 records each", "3,072 bytes on average"],
    "coco": [
        "boxes: 14 of 2 classes, 2 to 2 in an image, 1 of crowds",
        "boxes: 14 of 2 classes, 0 to 2 in an image, 1 of crowds",
        "images: 48 to 90 high, 50 to 100 wide",
    ],
    "librispeech": ["audio: 29 to 46 frames of 161 frequencies", "transcripts: 2 to 14 letters"],
    "ratings": ["users: 6 different up to 5", "negatives: 9 for each user"],
}


@EVERY
def test_it_is_made_once_found_counted_and_checked(name, sources, small_set, call):
    small, folder = SMALL[name], small_set(name)
    if name in FILES:
        shards = [f"train-0000{i}-of-00003" for i in range(3)]
        shards += [f"validation-0000{i}-of-00002" for i in range(2)]
        prefix = {"imagenet": "", "ratings": None}.get(name, f"{name}-")
        made = [] if prefix is None else [prefix + shard for shard in shards]
        assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES[name], *made])
    assert find_dataset(None, str(folder)) is small.dataset
    for subset in SUBSETS:
        assert small.dataset.num_examples(subset, str(folder)) == small.count(subset)
    out = call("data", "check", folder).out
    assert out.startswith(f"{folder}: {name}\ntrain: ")
    for part in CHECKED[name]:
        assert part in out
    if name in MADE:
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        err = call("data", f"make-{name}", sources(name), folder, *small.options, code=2).err
        assert f"{folder}: contains " in err
        assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def chapter(root):
    return root / "test-clean" / "7" / "21"


def heard(content, suffix=".wav"):
    """Replaces the first file of audio; None removes it."""

    def edit(root):
        path = chapter(root) / "7-21-0000.wav"
        path.unlink()
        if content is not None:
            path.with_suffix(suffix).write_bytes(content)

    return edit


def said(text):
    return lambda root: (chapter(root) / "7-21.trans.txt").write_text(text)


def rated(text):
    return lambda root: (root / "ratings.dat").write_text(text)


def photographed(name, content):
    """A file of the first class for training."""
    return lambda root: (root / "train" / "c01" / name).write_bytes(content)


STRIP = tf.io.encode_jpeg(np.zeros((1, 65_500, 3), np.uint8)).numpy()
BAD_SOURCES = [
    *((name, shutil.rmtree, 2, "there is no such f") for name in MADE if name != "ratings"),
    ("ratings", shutil.rmtree, 2, "ratings.dat or"),
    ("imagenet", photographed("1.jpg", b"hello"), 4, "1.jpg: is neither"),
    ("imagenet", photographed("1.png", b"\x89PNG\r\n\x1a\n"), 4, "the PNG cannot"),
    ("imagenet", photographed("1.jpg", jpeg(1)[:300]), 4, "the JPEG cannot"),
    ("imagenet", photographed("1.jpg", STRIP), 4, "1.jpg: the image is 1x65500"),
    ("librispeech", heard(wav(sound(400))), 4, "7-21-0000.wav: the transcript of 5"),
    ("librispeech", heard(None), 4, "7-21.trans.txt: line 1: there is no file"),
    ("librispeech", heard(b"fLaC", ".flac"), 2, "sox NAME.flac NAME.wav"),
    ("librispeech", said("7-21-0000 HELLO\n7-21-0001\n"), 4, "line 2: has no transcript"),
    (
        "librispeech",
        lambda root: [shutil.rmtree(folder) for folder in root.iterdir()],
        *(2, "train-* or test-clean"),
    ),
    ("ratings", rated("1::2::3::4\n1::x::3::4\n"), 4, "ratings.dat: line 2: item x is"),
    ("ratings", rated("1::2::3::4\n1::2\n"), 4, "ratings.dat: line 2: rating nan is"),
    ("ratings", rated(""), 4, "ratings.dat: contains no ratings"),
    ("ratings", rated("1::2::3::4\n"), 2, "--min_ratings=8: no user"),
]


@pytest.mark.parametrize(("name", "change", "status", "message"), BAD_SOURCES)
def test_sources_that_cannot_be_used(name, change, status, message, sources, tmp_path, call):
    source = shutil.copytree(sources(name), tmp_path / "source")
    change(source)
    out = tmp_path / "out"
    err = call("data", f"make-{name}", source, out, *SMALL[name].options, code=status).err
    assert message in err
    assert err.count("\n") == 1
    assert not list(out.glob("*"))


# Read -------------------------------------------------------------------------------------------


def batches_of(source, steps):
    """All batches of some steps, which are on the devices and as the input told."""
    batches = []
    for _ in range(steps):
        towers = zip(source.next(), source.element_spec, source.devices, strict=True)
        for batch, promised, device in towers:
            tf.nest.assert_same_structure(tuple(batch), tuple(promised))
            values, wanted = tf.nest.flatten(tuple(batch)), tf.nest.flatten(tuple(promised))
            for value, one in zip(values, wanted, strict=True):
                assert (value is None) == (one is None)
                assert one is None or (one.is_compatible_with(value) and value.device == device)
            batches.append(batch)
    return batches


@EVERY_TRACED
def test_the_stream_is_of_whole_epochs_and_depends_on_the_seed_alone(name, small_set, cpu_devices):
    """Not on batches, towers, reading ahead, or, of arrays, on the random seed of TensorFlow."""
    small = SMALL[name]
    count = small.count("train")

    def read(towers, batch, steps, seed=7, **fields):
        if name not in RECORDS:
            tf.random.set_seed(towers)
        # Colours would change the pixel that tells images of CIFAR-10 apart.
        fields |= {"seed": seed, "dtype": "bfloat16", "distortions": name != "cifar10"}
        spec = small.spec(small_set(name), "train", towers, batch, **fields)
        with make_input(spec, cpu_devices[2 : 2 + towers]) as source:
            assert source.examples_per_epoch == count
            assert not source.synthetic
            return batches_of(source, steps)

    def rows(batches):
        columns = zip(*(tf.nest.flatten(tuple(batch)[:2]) for batch in batches), strict=True)
        return [np.concatenate(column)[:16] for column in columns]

    steps = count // (batch := math.gcd(count, 60))
    one, four = read(1, batch, 3 * steps), read(4, 2, 2, datasets_use_prefetch=False)
    epochs = [examples(one[i * steps : (i + 1) * steps], small.of) for i in range(3)]
    for epoch in epochs:
        assert Counter(epoch) == Counter(small.examples["train"])
    assert len(set(map(tuple, epochs))) == 3
    for single, joined in zip(rows(one), rows(four), strict=True):
        np.testing.assert_array_equal(single, joined)
    other = rows(read(1, 16, 1, seed=8))
    assert not all(np.array_equal(*pair) for pair in zip(rows(one), other, strict=True))


PASSES = [(1, 3, True), (8, 3, False)]


@pytest.mark.parametrize(
    ("name", "towers", "batch", "prefetch"),
    slow_if(
        lambda case: case[0] in ("coco", "librispeech"),
        [(name, *how) for name, how in zip(SMALL, itertools.cycle(PASSES))],
    ),
)
def test_an_evaluation_is_an_exact_pass_that_wraps(
    name, towers, batch, prefetch, small_set, cpu_devices
):
    """Of two processes, whose shards have every example once."""
    small, seen = SMALL[name], []
    fields = {"datasets_use_prefetch": prefetch, "datasets_sloppy_parallel_interleave": True}
    fields |= {"num_shards": 2, "dtype": "bfloat16"}
    for index in range(2):
        spec = small.spec(
            *(small_set(name), "validation", towers, batch), shard_index=index, **fields
        )
        with make_input(spec, cpu_devices[-towers:]) as source:
            steps = math.ceil(math.ceil(small.count("validation") / 2) / (towers * batch))
            assert source.steps_per_epoch == steps
            passes = [batches_of(source, steps) for _ in range(2)]
        weights = np.concatenate([batch.weights for batch in passes[0]])
        assert len(weights) == steps * towers * batch
        assert (np.diff(weights) <= 0).all()
        first, second = (examples(one, small.of) for one in passes)
        assert first == second
        seen += first
    assert Counter(seen) == Counter(small.examples["validation"])


@pytest.mark.parametrize(
    ("name", "subset"),
    slow_if(
        lambda case: case[0] == "imagenet",
        [*itertools.product(["imagenet"], SUBSETS), ("cifar10", SUBSETS[1]), ("ratings", "train")],
    ),
)
def test_one_sample_for_ever(name, subset, small_set, cpu_devices):
    small = SMALL[name]
    spec = small.spec(small_set(name), subset, batch=4, datasets_repeat_cached_sample=True)
    with make_input(spec, cpu_devices[:1]) as source:
        seen = [one for _ in range(6) for one in examples(source.next(), small.of)]
    assert len(set(seen)) == 1


@EVERY
def test_folders_without_it(name, small_set, tmp_path, call):
    dataset = SMALL[name].dataset
    with pytest.raises(FlagError, match=r"\(imagenet: train-\*-of-\*"):
        detect_dataset(str(tmp_path))
    with pytest.raises(FlagError, match="nowhere: "):
        dataset.num_examples("train", str(tmp_path / "nowhere"))
    with pytest.raises(FlagError, match=r"contains no (files|CIFAR-10|ratings-)"):
        dataset.num_examples("train", str(tmp_path))
    with pytest.raises(FlagError, match=f"contains no {name} files"):
        dataset.files_by_subset(str(tmp_path))
    for path in small_set(name).iterdir():
        if "train" in path.name or "batch_" in path.name:
            shutil.copy(path, tmp_path)
    assert list(dataset.files_by_subset(str(tmp_path))) == ["train"]
    assert "\nvalidation: no files\n" in call("data", "check", tmp_path).out
    with pytest.raises(FlagError, match=r"contains no .*(validation|test_batch)"):
        dataset.num_examples("validation", str(tmp_path))


# Bad records ------------------------------------------------------------------------------------

PNG = tf.io.encode_png(noise(0, 9, 9, 3)).numpy()
CAR = CocoObject(1, (0.1, 0.2, 0.5, 0.6), False)
SOUND = wav(sound(4800))


def changed(record, drop=(), **values):
    """The record without some features, and with other values of some."""
    example = tf.train.Example.FromString(record)
    for key in drop:
        del example.features.feature[key]
    for key, value in values.items():
        feature = example.features.feature[key]
        kind = "float_list" if key.partition("bbox/")[2] else "int64_list"
        getattr(feature, kind).value[:] = value
    return example.SerializeToString()


def image(encoded=None, label=1, drop=(), **values):
    record = imagenet.serialize(encoded or jpeg(1), 24, 32, label, "a", "a", "a")
    return changed(record, drop, **values)


def boxed(*box, sides=4):
    names = imagenet.BOX_SIDES[:sides]
    return image(**{name: [value] for name, value in zip(names, box, strict=False)})


def scene(objects=(CAR,), encoded=None, drop=(), **values):
    record = coco.serialize(encoded or jpeg(1), 24, 32, 7, "7.jpg", objects)
    return changed(record, drop, **values)


def utterance(audio=SOUND, text="hello"):
    return speech.serialize(audio, text, "a")


NO_EXAMPLE = "is not a serialized tf.train.Example"
TORN, OUTSIDE = image(jpeg(1)[:300]), boxed(0.5, 0.5, 1.5, 0.6)
OTHER_RATE = utterance(wav(sound(4800), rate=44_100))
BAD_RECORDS = {
    "imagenet": [
        (image(drop=["image/encoded"]), "key image/encoded is missing"),
        (image(drop=["image/class/label"]), "key image/class/label is missing"),
        (image(label=1001), "label 1001 is not in [0, 1001)"),
        (image(label=-1), "label -1 is not in [0, 1001)"),
        (TORN, "the JPEG cannot be decoded"),
        (image(**{"image/class/label": []}), "int64_list, but contains 0"),
        (image(b"no image"), "the image is no JPEG"),
        (image(PNG), "the image is a PNG"),
        (image(STRIP), "the image is 1x65500"),
        (OUTSIDE, "box ymin=0.5 xmin=0.5 ymax=1.5 xmax=0.6 is"),
        (boxed(0.5, sides=1), "image/object/bbox have different lengths"),
        (b"\xff\xff", NO_EXAMPLE),
    ],
    "coco": [
        (scene(drop=["image/encoded"]), "key image/encoded is missing"),
        (scene(drop=["image/source_id"]), "key image/source_id is missing"),
        (scene([CocoObject(1, (0.1, 0.2, 1.5, 0.6), False)]), "box ymin=0.1 xmin=0.2 ymax=1.5"),
        (scene([CocoObject(81, CAR.box, False)]), "label 81 is not in [1, 81)"),
        (scene(**{"image/object/is_crowd": [0, 0]}), "1 boxes, but 2 values of image/object/is_c"),
        (scene(drop=["image/object/class/label"]), "1 boxes, but 0 values of image/object/class"),
        (scene([CAR] * 201), "201 boxes, but at most 200 are possible"),
        (scene(encoded=PNG), "the image is a PNG"),
        (scene(encoded=jpeg(1)[:300]), "the JPEG cannot be decoded"),
        (b"nonsense", NO_EXAMPLE),
    ],
    "librispeech": [
        (utterance(wav(sound(800))), "of 5 letters is longer than its audio of 4 fr"),
        (utterance(wav(sound(300)), "a"), "has 300 samples, but one frame needs 320"),
        (utterance(text="HELLO"), "the transcript has 'H'"),
        (utterance(text=""), "the transcript is empty"),
        (OTHER_RATE, "1 channels of 16 bits at 44100 Hz"),
        (utterance(wav(sound(4800), channels=2)), "2 channels of 16 bits at 16000 Hz"),
        (utterance(SOUND[:30]), "the audio is not PCM in a WAV file"),
        (utterance(SOUND[:-100]), "the audio is cut off after 4750 of 4800 samples"),
        (tf.train.Example().SerializeToString(), "key audio/text is missing"),
    ],
}
GOOD = {"imagenet": image(), "coco": scene(), "librispeech": utterance()}
SLOPPY = {"datasets_sloppy_parallel_interleave": True}
CACHED = {"datasets_use_caching": True, "datasets_use_prefetch": False}


def write(folder, name, subset, *records):
    prefix = "" if name == "imagenet" else f"{name}-"
    return write_records(folder / f"{prefix}{subset}-00000-of-00001", records)


def defect_in(path, name):
    """What the check finds, which must be one thing."""
    found = SMALL[name].dataset.check([path], SMALL[name].dataset.num_classes)
    (defect,) = found.defects
    assert "\n" not in defect
    return defect


def refusal(folder, name, subset, devices, **fields):
    """What reading ends with."""
    spec = SMALL[name].spec(folder, subset, **fields)
    with pytest.raises(DataError) as caught, make_input(spec, devices[:1]) as source:
        list(itertools.islice(iter(source.next, None), 4))
    return str(caught.value)


# Utterances and scenes are refused by the same operations in both subsets, and images by the same
# assertions; the test below has an image that cannot be decoded in an evaluation.
@pytest.mark.parametrize(
    ("name", "subset"),
    slow_if(
        [("coco", "train"), ("imagenet", "validation")],
        [*zip(RECORDS, ("train", "train", "validation"), strict=True), ("imagenet", "validation")],
    ),
)
def test_check_and_reader_refuse_the_same_records(name, subset, tmp_path, cpu_devices):
    """One good record is behind all bad ones; a reader that skips these delivers it alone."""
    rows = BAD_RECORDS[name]
    path = write(tmp_path, name, subset, *(bad for bad, _ in rows), GOOD[name])
    found = SMALL[name].dataset.check([path], SMALL[name].dataset.num_classes)
    assert found.records == 1
    for number, (defect, (_, message)) in enumerate(zip(found.defects, rows, strict=True)):
        assert defect.startswith(f"{path}: record {number}: ")
        assert message in defect
        assert "\n" not in defect
    with make_input(
        SMALL[name].spec(tmp_path, subset, on_bad_record="skip"), cpu_devices[:1]
    ) as source:
        seen = [examples(source.next(), SMALL[name].of) for _ in range(2)]
        assert len(set(itertools.chain(*seen))) == 1
        assert source.skipped().count == len(rows)
        assert source.skipped().first == tuple(found.defects[:3])


@pytest.mark.parametrize(
    ("name", "subset", "bad", "options"),
    [
        ("imagenet", "train", OUTSIDE, {"fuse_decode_and_crop": False}),
        ("imagenet", "validation", TORN, CACHED),
        ("librispeech", "validation", OTHER_RATE, CACHED),
    ],
)
def test_reading_ends_at_a_bad_record(name, subset, bad, options, tmp_path, cpu_devices):
    defect = defect_in(write(tmp_path, name, subset, GOOD[name], bad), name)
    assert refusal(tmp_path, name, subset, cpu_devices, **options) == defect


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            *("imagenet", {"resize_method": "crop", "image_size": 25}),
            "the image is 24x32, but --resize_method=crop needs 25x25",
        ),
        ("librispeech", utterances(max_frames=28), "29 frames, but the model takes at most 28"),
        ("librispeech", utterances(max_letters=4), "5 letters, but the model takes at most 4"),
    ],
)
def test_records_that_do_not_fit_the_model_are_named(name, fields, message, tmp_path, cpu_devices):
    path = write(tmp_path, name, "validation", GOOD[name])
    found = refusal(tmp_path, name, "validation", cpu_devices, **fields)
    assert found == f"{path}: record 0: {message}"


@pytest.mark.parametrize(
    "options", slow_if([SLOPPY], [{**CACHED, "datasets_num_private_threads": 1}, SLOPPY])
)
def test_bad_records_are_skipped_and_all_others_delivered(tmp_path, cpu_devices, options):
    """One that is damaged, one undecodable, two of unusable labels."""
    files = [tmp_path / f"train-{i:05d}-of-00003" for i in range(3)]
    write_records(files[0], [image(label=1), image(b"no image"), image(label=2)])
    write_records(files[1], [image(label=label) for label in (3, 4, 100, 5)])
    damage(files[1], 2)
    write_records(files[2], [image(label=label) for label in (2000, 6, -1)])
    asked = SMALL["imagenet"].spec(tmp_path, on_bad_record="skip", **options)
    with make_input(asked, cpu_devices[:1]) as source:
        counts = Counter(int(source.next()[0].labels[0]) for _ in range(2 * 6))
        skipped = source.skipped()
    assert set(counts) == set(range(1, 7))
    # In sloppy order the first examples of the third pass may come before the last of the second.
    assert set(counts.values()) <= ({1, 2, 3} if options == SLOPPY else {2})
    assert skipped.count == 4
    assert skipped.first == (
        f"{files[0]}: record 1: the image is no JPEG; cnnbench data make-imagenet writes JPEGs",
        f"{files[1]}: record 2: its checksum is wrong",
        f"{files[2]}: record 0: label 2000 is not in [0, 1001)",
    )


def test_an_evaluation_gives_skipped_records_no_weight(tmp_path, cpu_devices):
    first, second = (tmp_path / f"validation-{i:05d}-of-00002" for i in range(2))
    write_records(first, [image(label=label) for label in (100, 1, 2)])
    damage(first, 0)
    write_records(second, [image(label=label) for label in (3, 4, -5, 5)])
    asked = SMALL["imagenet"].spec(tmp_path, "validation", 2, 2, on_bad_record="skip")
    with make_input(asked, cpu_devices[:2]) as source:
        for _ in range(2):  # passes
            batches = [b for _ in range(source.steps_per_epoch) for b in source.next()]
            assert sorted(examples(batches, labels_of)) == [1, 2, 3, 4, 5]
        assert source.skipped().count == 2


NO_ROWS = np.zeros((0, 3072), np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ratings", {"users": [1]}, "array items is missing"),
        ("ratings", {"users": [1], "items": [1.5]}, "items must contain integers in 1 dimensions"),
        ("ratings", {"users": [1], "items": [[1]]}, "in 1 dimensions, but contains int64"),
        ("ratings", {"users": [1], "items": [1, 2]}, "1 users, but 2 rows of items"),
        ("ratings", {"users": NO_ROWS[:, 0], "items": NO_ROWS[:, 0]}, "contains no records"),
        ("ratings", {"users": [1], "items": [-1]}, "record 0: item -1 is not in [0, 26744)"),
        ("cifar10", [0, 11], "record 1: label 11 is not in [0, 11)"),
        ("cifar10", [0] * 3 + [-1], "record 3: truncated after 3072 of 3073 bytes"),
    ],
)
def test_check_and_reader_refuse_the_same_file(name, content, message, tmp_path, cpu_devices):
    path = tmp_path / "ratings-train.npz"
    if name == "ratings":
        np.savez(path, **content)
    else:
        images = np.zeros((len(content), 32, 32, 3), np.uint8)
        (path,) = write_cifar10(tmp_path, images, np.abs(content), form="binary", files=1)
        if content[-1] < 0:
            path.write_bytes(path.read_bytes()[:-1])
    defect = defect_in(path, name)
    assert defect.startswith(f"{path}: ")
    assert message in defect
    assert refusal(tmp_path, name, "train", cpu_devices) == defect


@pytest.mark.slow
def test_an_epoch_of_bad_records_ends(tmp_path, cpu_devices):
    bad, message = BAD_RECORDS["imagenet"][0]
    path = write(tmp_path, "imagenet", "train", *[bad] * 200)
    found = refusal(tmp_path, "imagenet", "train", cpu_devices, on_bad_record="skip")
    assert found.startswith(f"no train record can be used; {path}: record 0: ")
    assert message in found


@pytest.mark.parametrize("name", slow_if(["librispeech"], ["imagenet", "librispeech"]))
def test_files_that_are_damaged_cut_off_missing_or_empty(
    name, small_set, tmp_path, cpu_devices, call
):
    """The check goes on behind damage. The reader ends at it; what is cut off it does not begin."""
    for path in small_set(name).glob("*train-*"):
        shutil.copy(path, tmp_path)
    first, second, third = sorted(tmp_path.glob("*train-*"))
    small = SMALL[name]
    whole = small.count("train")
    third.unlink()
    (defect,) = small.dataset.check([first, second], 1001).defects
    assert defect == f"{third}: this file is missing"
    shutil.copy(small_set(name) / third.name, third)
    damage(first, 0)
    wrong = f"{first}: record 0: its checksum is wrong"
    found = small.dataset.check([first, second, third], 1001)
    assert (found.records, found.defects) == (whole - 1, [wrong])
    spec = small.spec(tmp_path)
    with pytest.raises(DataError) as caught, make_input(spec, cpu_devices[:1]) as source:
        source.next()
    assert str(caught.value) == wrong
    second.write_bytes(second.read_bytes()[:-7])
    found = small.dataset.check([first, second, third], 1001)
    assert found.records == whole - 2
    assert found.defects[1].startswith(f"{second}: record ")
    assert ": truncated, 7 bytes are missing; a damaged file is refused" in found.defects[1]
    with pytest.raises(DataError, match="truncated, 7 bytes"):
        make_input(spec, cpu_devices[:1])
    for path in (first, second, third):
        path.write_bytes(b"")
    none = f"{tmp_path}: the train files contain no records"
    with pytest.raises(DataError, match=none):
        small.dataset.num_examples("train", str(tmp_path))
    assert f"\ndefect: {none}\n" in call("data", "check", tmp_path, code=4).out


# Trained on and evaluated -----------------------------------------------------------------------

MODELS = {
    "imagenet": ["--model=lenet"],
    "cifar10": ["--model=trivial", "--num_gpus=2"],
    # Each image that is read ahead is matched with thousands of anchors.
    "coco": [
        *("--model=narrow_ssd", "--stop_at_top_1_accuracy=1"),
        "--datasets_use_prefetch=false",
    ],
    "librispeech": ["--model=small_speech"],
    "ratings": ["--model=small_ncf"],
}


class NarrowSSD(SSD300):
    def build(self, net, images):
        """As many cells a side as the network has, of a convolution each."""
        maps = [net.conv(images, 4, 8, 8)]
        for _ in range(4):
            maps.append(net.conv(maps[-1], 4, 3, 2))
        maps.append(net.conv(maps[-1], 4, 3, padding="VALID"))
        return {
            name: self._head(net, maps, name, width)
            for name, width in (("classes", net.num_classes), ("boxes", 4))
        }


class SmallSpeech(DeepSpeech2):
    max_frames, max_letters = FRAMES, LETTERS

    def build(self, net, spectrogram):
        """Logits without the recurrent layers, which take long to trace."""
        x = net.reshape(spectrogram, (*net.shape(spectrogram), 1))
        x = net.conv(x, 1, 1, (4, 1))
        return net.logits(net.reshape(x, net.shape(x)[:2]))


class SmallNeuMF(NeuMF):
    users, items, factors, layers = 6, 60, 4, (8, 4)


@EVERY_TRACED
def test_a_model_trains_on_it_and_is_evaluated(
    name, small_set, tmp_path, own_registry, quick_start, call
):
    register_model("narrow_ssd", "coco", NarrowSSD)
    register_model("small_speech", "librispeech", SmallSpeech)
    register_model("small_ncf", "ratings", SmallNeuMF)
    record = tmp_path / "record.json"
    flags = [*MODELS[name], f"--data_dir={small_set(name)}", "--device=cpu", "--batch_size=2"]
    flags += ["--variable_update=replicated", "--num_batches=2", "--num_warmup_batches=0"]
    flags += ["--eval_during_training_every_n_steps=2", "--num_eval_epochs=1", "--weight_decay=0"]
    out = call(*flags, f"--result_json={record}", "--peak_flops=1e12").out
    assert f"Dataset:     {name}\n" in out
    found = json.loads(record.read_text())
    assert all(map(math.isfinite, found["losses"]))
    (evaluation,) = found["evaluations"]
    assert evaluation["examples"] == len(SMALL[name].examples["validation"])
