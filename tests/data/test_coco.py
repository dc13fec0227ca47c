"""COCO: boxes, and the windows of training."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from data_sets import COCO_SIZES, SMALL, coco_annotations, jpeg, write_records

from cnnbench.data import coco, make_input
from cnnbench.data.coco import CocoObject, read_annotations, serialize, validate_record
from cnnbench.data.folder import RecordDefect
from cnnbench.data.pipeline import draw_uniform_int
from cnnbench.errors import DataError, UsageError


def batches(folder, subset, devices, count, **fields):
    with make_input(SMALL["coco"].spec(folder, subset, **fields), devices[:1]) as inputs:
        for _ in range(count):
            (batch,) = inputs.next()
            yield batch.features.numpy()[0], {k: v.numpy()[0] for k, v in batch.labels.items()}


@pytest.mark.slow
def test_evaluation_sees_whole_images_and_all_boxes(small_set, sources, cpu_devices):
    content = json.loads(coco_annotations(sources("coco"), "val").read_text())
    for image, labels in batches(small_set("coco"), "validation", cpu_devices, len(COCO_SIZES)):
        number = int(labels["source_id"])
        own = [a for a in content["annotations"] if a["image_id"] == number]
        assert labels["num_boxes"] == len(own)
        height, width = COCO_SIZES[number - 100]
        for i, one in enumerate(own):
            left, top, across, down = one["bbox"]
            expected = [top / height, left / width, (top + down) / height, (left + across) / width]
            np.testing.assert_allclose(labels["boxes"][i], expected, atol=1e-6)
            assert labels["classes"][i] == {3: 1, 18: 2}[one["category_id"]]
            assert labels["is_crowd"][i] == one["iscrowd"]
        assert not labels["boxes"][len(own) :].any()
        assert not labels["classes"][len(own) :].any()
        assert image.shape == (32, 32, 3)


def test_training_boxes_stay_on_their_objects(small_set, cpu_devices):
    """Through windows, resizing and mirroring the middle of a box keeps the colour of its class."""
    shown, mirrored = 0, set()
    for image, labels in batches(small_set("coco"), "train", cpu_devices, 30, image_size=96):
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


@pytest.mark.slow
def test_windows_overlap_as_much_as_was_drawn():
    boxes = tf.constant([[0.1, 0.1, 0.5, 0.4], [0.4, 0.5, 0.9, 0.95]])
    image = tf.zeros([200, 300, 3], tf.uint8)
    whole = 0
    for at in range(40):
        position = tf.constant(at, tf.int64)
        part, inside, kept = coco.crop_to_random_window(image, boxes, position, 1)
        drawn = int(draw_uniform_int(position, 1, "overlap", 7))
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
    assert 3 < whole < 27


def test_a_window_of_the_smallest_image_has_its_pixel():
    image, boxes = tf.zeros([1, 1, 3], tf.uint8), tf.constant([[0.6, 0.6, 0.9, 0.9]])
    for at in range(20):
        part, _, _ = coco.crop_to_random_window(image, boxes, tf.constant(at, tf.int64), 1)
        assert part.shape == [1, 1, 3]


def test_overlaps_by_hand():
    windows = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
    boxes = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.25, 0.25, 0.75, 0.75], [0.0, 0.0, 0.0, 0.0]])
    expected = [[1 / 4, 1 / 7, 0], [1 / 4, 1 / 7, 0]]
    np.testing.assert_allclose(coco.intersection_over_union(windows, boxes), expected, rtol=1e-6)


def annotated(folder, *annotations, subset="train", **parts):
    """Annotations of an image of 40 x 20 pixels and number 7."""
    image = {"id": 7, "file_name": "7.jpg", "height": 20, "width": 40}
    names = [{"id": 9, "name": "dog"}, {"id": 3, "name": "cat"}]
    own = [{"id": i, "image_id": 7, "category_id": 9, **one} for i, one in enumerate(annotations)]
    for name in ("annotations", f"{subset}1"):
        (folder / name).mkdir(exist_ok=True)
    (folder / f"{subset}1" / "7.jpg").touch()
    content = {"images": [image], "annotations": own, "categories": names, **parts}
    (folder / "annotations" / f"instances_{subset}1.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("bbox", "box"),
    [
        ([10, 5, 20, 10], (0.25, 0.25, 0.75, 0.75)),
        ([-1, -1, 42, 22], (0.0, 0.0, 1.0, 1.0)),
        ([0, 0, 40, 0], None),
        ([0, 0, 0, 20], None),
        ([40.5, 0, 0.5, 20], None),
        ([-1.5, 5, 20, 10], "outside"),
        ([10, -1.5, 20, 10], "outside"),
        ([10, 5, 31.5, 10], "outside"),
        ([10, 5, 20, 16.5], "outside"),
        ([10, 5, -1, 10], "outside"),
        ([10, 5, 20, -1], "outside"),
    ],
)
def test_a_box_within_a_pixel_of_its_image_is_cut(tmp_path, bbox, box):
    whole = {"bbox": [0, 0, 40, 20], "category_id": 3, "iscrowd": 0}
    source = annotated(tmp_path, {"bbox": bbox, "iscrowd": 1}, whole)
    if box == "outside":
        with pytest.raises(DataError, match=r"annotation 0: box .* is outside its image of 40x20"):
            read_annotations(source)
        return
    found = read_annotations(source)
    objects = [CocoObject(1, (0.0, 0.0, 1.0, 1.0), False)]
    if box:
        objects = [CocoObject(2, box, True), *objects]
    assert found.classes == ("cat", "dog")
    assert found.subsets == {"train": [(tmp_path / "train1" / "7.jpg", 7, objects)]}
    assert (found.without_boxes, found.empty_boxes) == (0, int(box is None))


def test_training_images_without_single_objects_are_left_out(tmp_path):
    crowd = {"bbox": [0, 0, 40, 20], "iscrowd": 1}
    annotated(tmp_path, crowd)
    source = annotated(tmp_path, crowd, subset="val")
    found = read_annotations(source)
    assert [len(found.subsets[name]) for name in ("train", "validation")] == [0, 1]
    assert (found.without_boxes, found.empty_boxes) == (1, 0)
    names = [{"id": 9, "name": "dog"}]
    with pytest.raises(UsageError, match="its categories differ from those of the training"):
        read_annotations(annotated(tmp_path, crowd, subset="val", categories=names))


def file_called(name):
    return {"images": [{"id": 7, "file_name": name, "height": 20, "width": 40}]}


@pytest.mark.parametrize(
    ("one", "parts", "error", "message"),
    [
        ({"image_id": 8}, {}, DataError, "annotation 0: .* image 8"),
        ({"category_id": 1}, {}, DataError, "annotation 0: .* category 1"),
        ({"bbox": [1, 2, 3]}, {}, DataError, "'bbox': .1, 2, 3"),
        ({}, {"images": {}}, DataError, "'images'"),
        ({}, file_called("x.jpg"), DataError, "image 7: .*x.jpg"),
        *(
            ({}, file_called(name), DataError, f"'{name}' is not a file name")
            for name in ("../train1/7.jpg", "/etc/passwd", "..", "")
        ),
        ({}, {"categories": [{"id": 9}]}, DataError, "'name'"),
        ({}, {"categories": [{"id": 9, "name": "a\nb"}]}, UsageError, r"category 'a\\nb'"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tmp_path, one, parts, error, message):
    with pytest.raises(error, match=f"instances_train1.json: .*{message}"):
        read_annotations(annotated(tmp_path, {"bbox": [0, 0, 40, 20], **one}, **parts))


def test_each_subset_has_one_file_of_annotations(tmp_path):
    with pytest.raises(UsageError, match="annotations/instances_train"):
        read_annotations(tmp_path)
    path = annotated(tmp_path) / "annotations" / "instances_train1.json"
    with pytest.raises(UsageError, match="no image with a box"):
        read_annotations(tmp_path)
    path.with_name("instances_train2.json").write_text("{")
    with pytest.raises(UsageError, match=r"instances_train1\.json and instances_train2\.json"):
        read_annotations(tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match=r"instances_train2\.json: "):
        read_annotations(tmp_path)


def test_boxes_without_an_area_are_left_out_and_counted(sources, tmp_path, call):
    source = shutil.copytree(sources("coco"), tmp_path / "source")
    content = json.loads(coco_annotations(source).read_text())
    content["annotations"][0]["bbox"] = [5, 5, 0, 9]
    content["annotations"][1]["bbox"] = [60.0, 30.0, 20.4, 20.0]
    coco_annotations(source).write_text(json.dumps(content))
    said = "7 training and 8 validation images with 2 classes; left out: 1 training images"
    out = call("data", "make-coco", source, tmp_path / "out").out
    assert said in out
    assert "1 boxes without an area" in out


ONE = CocoObject(1, (0.25, 0.25, 0.75, 0.75), False)


def test_an_image_has_at_most_200_boxes_and_a_data_set_80_classes(tmp_path):
    whole = {"bbox": [0, 0, 40, 20]}
    found = read_annotations(annotated(tmp_path, *[whole] * 200))
    assert len(found.subsets["train"][0][2]) == 200
    with pytest.raises(DataError):
        read_annotations(annotated(tmp_path, *[whole] * 201))
    names = [{"id": number, "name": f"kind {number}"} for number in range(81)]
    found = read_annotations(annotated(tmp_path, whole, categories=names[:80]))
    assert len(found.classes) == 80
    with pytest.raises(UsageError):
        read_annotations(annotated(tmp_path, whole, categories=names))


@pytest.mark.parametrize(
    ("objects", "source_id", "expected"),
    [
        ([], 0, ([], (24, 32, 0, 0))),
        (
            [ONE, ONE._replace(label=4, is_crowd=True), ONE._replace(is_crowd=True)],
            2**63 - 1,
            ([1, 4, 1], (24, 32, 3, 2)),
        ),
        ([ONE] * 200, 5, ([1] * 200, (24, 32, 200, 0))),
        ([ONE] * 201, 5, None),
        ([ONE], 2**63, None),
        ([ONE._replace(label=0)], 5, None),
        ([ONE._replace(label=5)], 5, None),
    ],
    ids=["none", "crowds", "200", "201", "number", "label 0", "label 5"],
)
def test_what_a_check_finds_in_a_record(objects, source_id, expected):
    record = serialize(jpeg(0), 24, 32, source_id, "0.jpg", objects)
    if expected is None:
        with pytest.raises(RecordDefect):
            validate_record(record, 5)
        return
    assert validate_record(record, 5) == expected


def test_a_check_counts_the_boxes_of_all_records(tmp_path):
    path = tmp_path / "coco-train-00000-of-00001"
    crowd = ONE._replace(label=4, is_crowd=True)
    records = [[ONE], [ONE, crowd, crowd]]
    write_records(path, (serialize(jpeg(0), 24, 32, 5, "0.jpg", one) for one in records))
    found = coco.check_files([path], 5)
    numbers = [[int(n) for n in re.findall(r"\d+", line)] for line in found.details]
    # Heights and widths; boxes, classes, the fewest and the most boxes, and crowds.
    assert numbers == [[24, 24, 32, 32], [4, 2, 1, 3, 2]]
    assert (found.records, found.defects) == (2, [])
