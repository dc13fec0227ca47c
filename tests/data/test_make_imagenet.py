"""Files of ImageNet made of images: every image once, and nothing half-made.

Tests cnnbench/data/imagenet.py and cnnbench/data/folder.py.
"""

import base64
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data_sets import SMALL, write_records
from forked import finished

from cnnbench.base import locks as lock
from cnnbench.base.locks import FILE, SCRATCH, FolderLock
from cnnbench.data import IMAGENET, imagenet, make_input
from cnnbench.data import imagenet as module
from cnnbench.data.dataset import detect_dataset
from cnnbench.data.folder import ImageClass, ImageFolder, find_images
from cnnbench.data.imagenet import (
    ENCODED,
    exif_orientation,
    read_as_rgb_jpeg,
    write_imagenet,
)
from cnnbench.data.tfrecord import find_files
from cnnbench.errors import DataError, FlagError, UsageError


def examples(directory, subset):
    for path in sorted(directory.glob(f"{subset}-*")):
        for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            yield tf.train.Example.FromString(data).features.feature


def test_every_image_comes_out_once_with_its_label(sources, small_set):
    for subset, count in (("train", 16), ("validation", 8)):
        seen = []
        for feature in examples(small_set("imagenet"), subset):
            (label,) = feature["image/class/label"].int64_list.value
            (name,) = feature["image/class/synset"].bytes_list.value
            assert name == f"c{label:02d}".encode()
            assert feature["image/filename"].bytes_list.value == [b"0.jpg"]
            file = sources("imagenet") / subset / name.decode() / "0.jpg"
            assert feature[ENCODED].bytes_list.value == [file.read_bytes()]
            seen.append(label)
        assert sorted(seen) == list(range(1, count + 1))
    sizes = [len(list(examples(small_set("imagenet"), f"train-0000{i}"))) for i in range(3)]
    assert sorted(sizes) == [5, 5, 6]


def test_equal_input_gives_equal_files(sources, small_set, tmp_path):
    again = SMALL["imagenet"].make(sources("imagenet"), tmp_path / "new" / "again")
    for path in small_set("imagenet").iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def write_cmyk(path, image):
    from PIL import Image

    Image.fromarray(image).convert("CMYK").save(path, format="JPEG", quality=95)


WRITERS = {
    "rgb.jpg": lambda path, image: path.write_bytes(tf.io.encode_jpeg(image).numpy()),
    "cmyk.jpg": write_cmyk,
    "grey.jpg": lambda path, image: path.write_bytes(tf.io.encode_jpeg(image[..., :1]).numpy()),
    "grey.png": lambda path, image: path.write_bytes(tf.io.encode_png(image[..., :1]).numpy()),
    "rgb.png": lambda path, image: path.write_bytes(tf.io.encode_png(image).numpy()),
    # ImageNet itself has a PNG that is called a JPEG.
    "png.jpg": lambda path, image: path.write_bytes(tf.io.encode_png(image).numpy()),
    "rgba.png": lambda path, image: path.write_bytes(
        tf.io.encode_png(np.concatenate([image, image[..., :1]], axis=-1)).numpy()
    ),
    "deep.png": lambda path, image: path.write_bytes(
        tf.io.encode_png(image.astype(np.uint16) * 257).numpy()
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_images_of_any_kind_become_rgb_jpegs(photos, tmp_path, name):
    image = photos["china"][100:180, 200:300]
    path = tmp_path / name
    WRITERS[name](path, image)
    made, *size, reencoded = read_as_rgb_jpeg(path)
    assert size == [80, 100]
    assert reencoded == (name != "rgb.jpg")
    assert tf.image.extract_jpeg_shape(made).numpy().tolist() == [80, 100, 3]
    back = tf.io.decode_jpeg(made).numpy()
    expected = image[..., :1] if "grey" in name else image
    assert np.abs(back.astype(int) - expected).mean() < 6


@pytest.mark.parametrize("orientation", range(10))
def test_photographs_are_turned_as_their_cameras_were_held(photos, tmp_path, orientation):
    from PIL import Image, ImageOps

    path, written = tmp_path / "photo.jpg", Image.fromarray(photos["china"][100:180, 200:300])
    exif = Image.Exif()
    exif[274] = orientation
    exif[271] = "a maker"
    written.save(path, exif=exif, quality=95)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    made, *size, reencoded = read_as_rgb_jpeg(path, upright=True)
    assert size == [*upright.shape[:2]]
    assert reencoded == (2 <= orientation <= 8)
    assert np.abs(tf.io.decode_jpeg(made).numpy().astype(int) - upright).mean() < 6
    assert exif_orientation(made) in (1, orientation if not reencoded else 1)
    # Boxes of COCO belong to the stored pixels.
    assert read_as_rgb_jpeg(path) == (path.read_bytes(), 80, 100, False)


def test_orientations_that_cannot_be_read_are_upright():
    header = b"\xff\xd8\xff\xe1\x00\x10Exif\0\0"
    for jpeg in (b"", b"\xff\xd8", header, header + b"II*\0\xff\xff\xff\xff", ARITHMETIC):
        assert exif_orientation(jpeg) == 1
    little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
    assert exif_orientation(b"\xff\xd8\xff\xe1\x00\x1eExif\0\0" + little) == 6


# Made by cjpeg -arithmetic of libjpeg-turbo 2.1.5:
# 8 x 16 pixels, red on the left, green on the right.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQ"
    "DQ4RDgsLEBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAIABADAREAAhEBAxEB/8wACgAQEAUBEBEF"
    "/9oADAMBAAIRAxEAPwD/AM/wDqQM67rV2ZyWGP/Z"
)


def test_jpegs_with_arithmetic_coding_are_kept_read_and_checked(tmp_path, cpu_devices):
    (tmp_path / "a.jpg").write_bytes(ARITHMETIC)
    assert read_as_rgb_jpeg(tmp_path / "a.jpg") == (ARITHMETIC, 8, 16, False)
    pixels = tf.io.decode_jpeg(ARITHMETIC).numpy().astype(int)
    assert np.abs(pixels[:, :8] - (250, 20, 30)).max() < 8
    assert np.abs(pixels[:, 8:] - (10, 200, 40)).max() < 8
    for subset, fused in (("train", True), ("validation", False)):
        path = tmp_path / f"{subset}-00000-of-00001"
        write_records(path, [imagenet.serialize(ARITHMETIC, 8, 16, 1, "a", "a", "a")])
        assert IMAGENET.check([path], 1001).defects == []
        spec = SMALL["imagenet"].spec(tmp_path, subset, fuse_decode_and_crop=fused)
        with make_input(spec, cpu_devices[:1]) as source:
            assert source.next()[0].labels.numpy().tolist() == [1]


def test_labels_from_0_are_named(tmp_path):
    path = tmp_path / "train-00000-of-00001"
    details = {}
    for labels in ((0, 999), (1, 1000), (0, 1000)):
        records = [imagenet.serialize(ARITHMETIC, 8, 16, n, "a", "a", "a") for n in labels]
        write_records(path, records)
        findings = IMAGENET.check([path], 1001)
        assert not findings.defects
        details[labels] = [line for line in findings.details if "background" in line]
    assert details[1, 1000] == []
    assert "no record has label 1000" in details[0, 999][0]
    assert "no record" not in details[0, 1000][0]
    assert not any("background" in line for line in IMAGENET.check([path], 1002).details)


def folder_of(*paths):
    only = ImageClass(1, "only", "only")
    return ImageFolder((only,), {"train": [(path, only) for path in paths], "validation": []})


def test_more_classes_than_imagenet_has(tmp_path):
    classes = tuple(ImageClass(i + 1, str(i), str(i)) for i in range(1001))
    with pytest.raises(UsageError, match="1001 classes, but at most 1000 are possible"):
        write_imagenet(ImageFolder(classes, {}), tmp_path, {})


@pytest.fixture
def photo(photos, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(tf.io.encode_jpeg(photos["cat"][:40, :40]).numpy())
    return path


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("file", "is not a folder"),
        ("file/inner", "cannot be written to: Not a directory"),
        ("x" * 300, "cannot be written to: File name too long"),
        ("/proc/self/inner", "cannot be written to: No such file or directory"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_wrong_use(photo, tmp_path, out, problem):
    if out.startswith("/proc") and not os.path.isdir("/proc/self"):
        pytest.skip("no /proc on this system")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        write_imagenet(folder_of(photo), tmp_path / out, {"train": 1, "validation": 1})
    assert str(caught.value) == f"{tmp_path / out}: {problem}"


@pytest.mark.parametrize("full", ["train-00000-of-00002", "train-00001-of-00002", "labels.txt"])
def test_a_disk_that_fills_up_leaves_nothing(photo, tmp_path, monkeypatch, full):
    """However far it has come, OUT holds what it held before: here, a labels.txt."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "labels.txt").write_text("of something else")
    _fill_up_at(monkeypatch, full)
    with pytest.raises(DataError, match=r"No space left on device$") as caught:
        write_imagenet(folder_of(photo, photo), out, {"train": 2, "validation": 1})
    assert str(caught.value).startswith(str(out))
    assert "\n" not in str(caught.value)
    assert [path.name for path in out.iterdir()] == ["labels.txt"]
    assert (out / "labels.txt").read_text() == "of something else"


def _fill_up_at(monkeypatch, name):
    """From the file of this name on, everything goes to a device that is always full."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    mkdtemp = lock.tempfile.mkdtemp

    def with_a_full_device(**options):
        folder = mkdtemp(**options)
        (Path(folder) / name).symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(lock.tempfile, "mkdtemp", with_a_full_device)


def test_what_is_being_written_does_not_look_like_a_data_set(photo, tmp_path, monkeypatch):
    """A process that is killed cleans nothing up."""
    seen = []

    def look(path, **options):
        seen.append([found for s in ("train", "validation") for found in tmp_path.glob(f"{s}-*")])
        return read_as_rgb_jpeg(path, **options)

    monkeypatch.setattr(module, "read_as_rgb_jpeg", look)
    write_imagenet(folder_of(photo, photo), tmp_path, {"train": 2, "validation": 1})
    assert seen == [[], []]
    assert len(list(tmp_path.glob("train-*"))) == 2
    assert not list(tmp_path.glob("unfinished-*"))


def killed_in(out):
    """The folder that a process, killed in the middle, has left there."""
    code = "import os, pathlib, sys; from cnnbench.data.folder import temporary_output_folder\n"
    code += "with temporary_output_folder(pathlib.Path(sys.argv[1]), ()) as folder:\n"
    code += "  (folder / 'train-00000-of-00002').touch(); os.kill(os.getpid(), 9)"
    finished([sys.executable, "-c", code, out], -9)
    (left,) = out.glob("unfinished-*")
    (out / FILE).unlink()
    return left


def test_only_what_a_killed_process_left_is_removed(photo, tmp_path):
    left = killed_in(tmp_path)
    own = tmp_path / "unfinished-drafts42"
    own.mkdir()
    (own / "novel.txt").touch()
    (tmp_path / "unfinished-drafts00").mkdir()
    made = {"train": 1, "validation": 1}
    write_imagenet(folder_of(photo), tmp_path / "other", made)
    write_imagenet(folder_of(photo), tmp_path, made)
    assert not left.exists()
    assert sorted(tmp_path.glob("unfinished-*/*")) == [own / "novel.txt"]
    assert find_files(str(tmp_path), "train")
    busy = killed_in(tmp_path / "out")
    with (
        FolderLock(busy.parent),
        pytest.raises(UsageError, match=r"out: .*another process is writing there: pid \d+ on "),
    ):
        write_imagenet(folder_of(photo), busy.parent, made)
    assert busy.exists()


def test_a_process_killed_while_it_moves_files_leaves_no_data_set(photo, tmp_path):
    found = folder_of(photo, photo)
    write_imagenet(found, tmp_path, {"train": 2, "validation": 1})
    unfinished = tmp_path / "unfinished-left1234"
    unfinished.mkdir()
    (unfinished / SCRATCH).touch()
    assert len(find_files(str(tmp_path), "train")) == 2  # killed after the last file was moved
    (tmp_path / "train-00001-of-00002").rename(unfinished / "train-00001-of-00002")
    with pytest.raises(FlagError, match=r"--data_dir=.*not finished \(unfinished-left1234\)"):
        find_files(str(tmp_path), "train")
    with pytest.raises(FlagError, match=r"not finished \(unfinished-left1234\)"):
        detect_dataset(str(tmp_path))
    with pytest.raises(UsageError, match="contains an unfinished data set already"):
        write_imagenet(found, tmp_path, {"train": 2, "validation": 1})


def test_files_are_no_more_than_images_and_as_readable_as_others(photo, tmp_path):
    write_imagenet(folder_of(photo, photo), tmp_path / "out", {"train": 8, "validation": 2})
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    names = ("train-00000-of-00002", "train-00001-of-00002", "labels.txt")
    assert modes == dict.fromkeys(names, photo.stat().st_mode)


def test_an_image_too_large_for_a_jpeg_is_named(tmp_path, limits):
    limits(imagenet, MAX_ASPECT=100_000)
    path = tmp_path / "wide.png"
    path.write_bytes(tf.io.encode_png(np.zeros((1, 70_000, 3), np.uint8)).numpy())
    with pytest.raises(
        DataError, match=re.escape(f"{path}: cannot be encoded as a JPEG: ")
    ) as caught:
        read_as_rgb_jpeg(path)
    assert "\n" not in str(caught.value)


def test_names_that_are_not_utf8(photo, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "photos") + b"/caf\xe9"))
    try:
        folder.mkdir(parents=True)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    photo.rename(folder / "1.jpg")
    out = tmp_path / "out"
    write_imagenet(find_images(folder.parent, None, 0, 1), out, {"train": 1, "validation": 1})
    assert (out / "labels.txt").read_bytes() == b"background\ncaf\xe9\n"
    (feature,) = examples(out, "train")
    assert feature["image/class/synset"].bytes_list.value[0] == b"caf\xe9"
