"""COCO: made from images and annotations as published, read, checked and trained on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.cli import main
from cnnbench.data import COCO, InputSpec, coco, find_dataset, make_input
from cnnbench.data.check import check
from cnnbench.data.coco_records import CocoObject, serialize
from cnnbench.data.position import uniform_int
from cnnbench.errors import DataError

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]
SIZES = [(60, 80), (90, 50), (64, 64), (70, 100), (48, 90)]
COLOURS = {3: (250, 20, 20), 18: (20, 20, 250)}

MODEL = """
from cnnbench.models import Draw, Element, LearningRateSpec, Model, register_model
from cnnbench.models.elements import IMAGE

class Presence(Model):
    '''Tells from the image how many boxes are in it.'''
    name, dataset, image_size, batch_size = "presence", "coco", 16, 4
    elements = (
        IMAGE,
        Element("num_boxes", (), "label", "int64", Draw.integers(1, 20)),
        Element("boxes", (200, 4), "label", "float32", Draw.boxes(), rows="num_boxes"),
    )
    metric_names = ("off",)
    learning_rate = LearningRateSpec(0.001)

    def build(self, net, image):
        return net.affine(net.flatten(net.conv(image, 4, 3)), 1, None)

    def loss(self, outputs, labels):
        import tensorflow as tf
        area = tf.reduce_sum(labels["boxes"][..., 2:] - labels["boxes"][..., :2], axis=[1, 2])
        return tf.square(outputs[:, 0] - tf.cast(labels["num_boxes"], tf.float32) - area)

    def metrics(self, outputs, labels):
        return {"off": self.loss(outputs, labels)}

register_model("presence", "coco", Presence)
"""


@pytest.fixture
def source(tmp_path):
    """Five images a subset, with rectangles of colour on grey; the last one is empty."""
    rng = np.random.default_rng(0)
    root = tmp_path / "source"
    (root / "annotations").mkdir(parents=True)
    for name in ("train", "val"):
        (root / f"{name}2017").mkdir()
        images, annotations = [], []
        for number, (height, width) in enumerate(SIZES, start=100):
            pixels = np.full((height, width, 3), 128, np.uint8)
            images.append(
                {"id": number, "file_name": f"{number}.jpg", "height": height, "width": width}
            )
            for category in () if number == 104 else (18, 3):
                top, left = rng.integers(0, 20, 2)
                down, across = rng.integers(12, 24, 2)
                pixels[top : top + down, left : left + across] = COLOURS[category]
                annotations.append(
                    {
                        "id": 10 * number + category,
                        "image_id": number,
                        "category_id": category,
                        "bbox": [float(left), float(top), float(across), float(down)],
                        "iscrowd": int(number == 101 and category == 3),
                    }
                )
            jpeg = tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False)
            (root / f"{name}2017" / f"{number}.jpg").write_bytes(jpeg.numpy())
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{name}2017.json").write_text(json.dumps(content))
    return root


def edit(source, change, name="train"):
    path = source / "annotations" / f"instances_{name}2017.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def made(source, tmp_path):
    shards = ["--train_shards=2", "--validation_shards=2"]
    assert main(["data", "make-coco", str(source), str(tmp_path / "out"), *shards]) == 0
    return tmp_path / "out"


def spec(folder, subset, batch=1, size=32, **fields):
    return InputSpec(
        dataset=COCO,
        data_dir=str(folder),
        subset=subset,
        batch_per_device=batch,
        num_devices=1,
        image_size=size,
        **fields,
    )


def batches(folder, subset, devices, count, **fields):
    with make_input(spec(folder, subset, **fields), devices[:1]) as inputs:
        for _ in range(count):
            (batch,) = inputs.next()
            yield batch.features.numpy()[0], {k: v.numpy()[0] for k, v in batch.labels.items()}


def test_what_is_made(made, capsys):
    assert sorted(path.name for path in made.iterdir()) == [
        "coco-labels.txt",
        *(f"coco-train-0000{i}-of-00002" for i in range(2)),
        *(f"coco-validation-0000{i}-of-00002" for i in range(2)),
    ]
    assert (made / "coco-labels.txt").read_text() == "background\ncar\ndog\n"
    assert find_dataset(None, str(made)) is COCO
    # The image without a box is of no use to training.
    assert COCO.num_examples("train", str(made)) == 4
    assert COCO.num_examples("validation", str(made)) == 5
    assert main(["data", "check", str(made)]) == 0
    out = capsys.readouterr().out
    assert "boxes: 8 of 2 classes, 2 to 2 in an image, 1 of crowds" in out
    assert "boxes: 8 of 2 classes, 0 to 2 in an image, 1 of crowds" in out
    assert "images: 48 to 90 high, 50 to 100 wide" in out


def test_evaluation_sees_whole_images_and_all_boxes(made, source, cpu_devices):
    path = source / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    sizes = {one["id"]: (one["height"], one["width"]) for one in content["images"]}
    seen = set()
    for image, labels in batches(made, "validation", cpu_devices, 5):
        number = int(labels["source_id"])
        seen.add(number)
        own = [a for a in content["annotations"] if a["image_id"] == number]
        assert labels["num_boxes"] == len(own)
        height, width = sizes[number]
        for i, one in enumerate(own):
            left, top, across, down = one["bbox"]
            expected = [top / height, left / width, (top + down) / height, (left + across) / width]
            np.testing.assert_allclose(labels["boxes"][i], expected, atol=1e-6)
            assert labels["classes"][i] == {3: 1, 18: 2}[one["category_id"]]
            assert labels["is_crowd"][i] == one["iscrowd"]
        assert not labels["boxes"][len(own) :].any()
        assert not labels["classes"][len(own) :].any()
        assert image.shape == (32, 32, 3)
    assert seen == {100, 101, 102, 103, 104}


def test_training_boxes_stay_on_their_objects(made, cpu_devices):
    """Through windows, resizing and mirroring the middle of a box keeps the colour of its class."""
    shown, mirrored = 0, set()
    for image, labels in batches(made, "train", cpu_devices, 30, size=96):
        assert labels["num_boxes"] >= 1
        assert not labels["is_crowd"].any()
        # The first car is drawn over the dog, so only the car's own box shows its colour for sure.
        for box, label in zip(labels["boxes"], labels["classes"], strict=True):
            if label != 1:
                continue
            top, left, bottom, right = box
            assert 0 <= top < bottom <= 1
            assert 0 <= left < right <= 1
            middle = image[int((top + bottom) / 2 * 96), int((left + right) / 2 * 96)]
            assert middle[0] > 0.7
            assert middle[2] < -0.5
            shown += 1
            mirrored.add(float(np.round(left, 3)))
    assert shown > 10
    assert len(mirrored) > 5


def test_windows_overlap_as_much_as_was_drawn():
    boxes = tf.constant([[0.1, 0.1, 0.5, 0.4], [0.4, 0.5, 0.9, 0.95]])
    image = tf.zeros([200, 300, 3], tf.uint8)
    whole = 0
    for at in range(60):
        position = tf.constant(at, tf.int64)
        part, inside, kept = coco.random_window(image, boxes, position, 1)
        drawn = int(uniform_int(position, 1, "overlap", 7))
        height, width = part.shape[:2]
        kept = kept.numpy()
        assert kept.any()
        if (height, width) == (200, 300):
            whole += 1
            assert kept.all()
            continue
        assert drawn < 6
        assert height >= 0.3 * 200 - 1
        assert width >= 0.3 * 300 - 1
        assert 0.45 < (height / 200) / (width / 300) < 2.2
        asked = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)[drawn]
        for box, part_of, is_kept in zip(boxes.numpy(), inside.numpy(), kept, strict=True):
            if not is_kept:
                continue
            extent = np.array([height / 200, width / 300])
            area = np.prod(box[2:] - box[:2])
            common = np.prod((part_of[2:] - part_of[:2]) * extent)
            union = area + np.prod(extent) - common
            assert common / union >= asked - 0.02  # windows end at whole pixels
    assert 5 < whole < 40


def test_overlaps_by_hand():
    windows = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
    boxes = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.25, 0.25, 0.75, 0.75], [0.0, 0.0, 0.0, 0.0]])
    expected = [[1 / 4, 1 / 7, 0], [1 / 4, 1 / 7, 0]]
    np.testing.assert_allclose(coco.overlaps(windows, boxes), expected, rtol=1e-6)


def test_a_model_trains_from_the_files_in_two_modes(made, tmp_path, quick_start, capsys):
    plugin = tmp_path / "presence.py"
    plugin.write_text(MODEL)
    for mode in ("parameter_server", "replicated"):
        flags = [f"--model_plugin={plugin}", "--model=presence", f"--data_dir={made}"]
        flags += ["--device=cpu", "--num_gpus=2", f"--variable_update={mode}", "--num_batches=2"]
        assert main([*flags, "--num_warmup_batches=0"]) == 0
        assert "Dataset:     coco\n" in capsys.readouterr().out


JPEG = tf.io.encode_jpeg(np.zeros((20, 30, 3), np.uint8)).numpy()
PNG = tf.io.encode_png(np.zeros((9, 9, 3), np.uint8)).numpy()
CAR = CocoObject(1, (0.1, 0.2, 0.5, 0.6), False)


def record(objects=(CAR,), jpeg=JPEG, drop=(), **features):
    example = tf.train.Example.FromString(serialize(jpeg, 20, 30, 7, "7.jpg", objects))
    for key in drop:
        del example.features.feature[key]
    for key, values in features.items():
        example.features.feature[key].int64_list.value[:] = values
    return example.SerializeToString()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(drop=["image/encoded"]), "key image/encoded is missing"),
        (record(drop=["image/source_id"]), "key image/source_id is missing"),
        (record([CocoObject(1, (0.1, 0.2, 1.5, 0.6), False)]), "is no part of the image"),
        (record([CocoObject(1, (0.5, 0.2, 0.1, 0.6), False)]), "is no part of the image"),
        (record([CocoObject(1, (float("nan"), 0.2, 0.1, 0.6), False)]), "is no part of the image"),
        (record([CocoObject(81, (0.1, 0.2, 0.5, 0.6), False)]), "label 81 is not in [1, 81)"),
        (record(**{"image/object/is_crowd": [0, 0]}), "1 boxes, but 2 values of image/object/is_c"),
        (record(drop=["image/object/class/label"]), "1 boxes, but 0 values of image/object/class"),
        (record([CAR] * 201), "201 boxes, but at most 200 fit"),
        (record(jpeg=PNG), "the image is a PNG"),
        (record(jpeg=JPEG[:300]), "the JPEG cannot be decoded"),
        (b"nonsense", "is not a serialized tf.train.Example"),
    ],
)
def test_check_and_reader_refuse_the_same_with_file_and_record(tmp_path, cpu_devices, bad, message):
    subset = ("train", "validation")[len(message) % 2]
    path = tmp_path / f"coco-{subset}-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(record())
        writer.write(bad)
    report = check(str(tmp_path), COCO, 81)[subset == "validation"]
    (defect,) = report.found.defects
    assert defect.startswith(f"{path}: record 1: ")
    assert message in defect
    with pytest.raises(DataError) as caught:
        list(batches(tmp_path, subset, cpu_devices, 4))
    assert str(caught.value) == defect


@pytest.mark.parametrize(
    ("bad", "subset"), [(record(jpeg=PNG), "train"), (record([CAR] * 201), "validation")]
)
def test_bad_records_are_skipped_and_named(tmp_path, cpu_devices, bad, subset):
    with tf.io.TFRecordWriter(str(tmp_path / f"coco-{subset}-00000-of-00001")) as writer:
        writer.write(record())
        writer.write(bad)
    (defect,) = check(str(tmp_path), COCO, 81)[subset == "validation"].found.defects
    asked = spec(tmp_path, subset, on_bad_record="skip")
    with make_input(asked, cpu_devices[:1]) as inputs:
        (sound,) = inputs.next()
        assert float(sound.labels["source_id"][0]) == 7
        inputs.next()
        assert set(inputs.skipped().first) == {defect}


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (
            lambda c: c["annotations"][0].update(bbox=[70, 5, 30, 9]),
            4,
            "instances_train2017.json: annotation 1018: box [70, 5, 30, 9] is outside its image of",
        ),
        (lambda c: c["annotations"][0].update(image_id=9), 4, "annotation 1018: there is no image"),
        (lambda c: c["annotations"][0].update(category_id=9), 4, "there is no category 9"),
        (lambda c: c["annotations"][0].pop("bbox"), 4, "is no entry: 'bbox'"),
        (lambda c: c["images"][0].update(file_name="x.jpg"), 4, "image 100: there is no file"),
        (lambda c: c.pop("images"), 4, "holds no list 'images'"),
        (lambda c: c["categories"].pop(), 4, "there is no category 3"),
    ],
)
def test_annotations_that_cannot_be_used(source, tmp_path, capsys, change, status, message):
    edit(source, change)
    assert main(["data", "make-coco", str(source), str(tmp_path / "out")]) == status
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_boxes_without_an_area_are_left_out_and_counted(source, tmp_path, capsys):
    edit(source, lambda c: c["annotations"][0].update(bbox=[5, 5, 0, 9]))
    edit(source, lambda c: c["annotations"][1].update(bbox=[60.0, 30.0, 20.4, 20.0]))
    assert main(["data", "make-coco", str(source), str(tmp_path / "out")]) == 0
    said = "4 training and 5 validation images with 2 classes; left out: 1 training images"
    out = capsys.readouterr().out
    assert said in out
    assert "1 boxes without an area" in out


def test_wrong_use(source, made, tmp_path, capsys):
    def refused(*places):
        assert main(["data", "make-coco", *map(str, places)]) == 2
        return capsys.readouterr().err

    assert "there is no such folder" in refused(tmp_path / "no", tmp_path / "x")
    assert "holds neither annotations/instances_train*.json" in refused(made, tmp_path / "x")
    assert "holds coco-train-00000-of-00002 already" in refused(source, made)
    edit(source, lambda c: c["categories"].append({"id": 5, "name": "cat"}), "val")
    assert "has other categories" in refused(source, tmp_path / "x")
    path = source / "annotations" / "instances_train2017.json"
    path.with_name("instances_train2014.json").write_bytes(path.read_bytes())
    assert "instances_train2014.json and instances_train2017.json" in refused(
        source, tmp_path / "x"
    )
