"""Records of ImageNet: their keys, and boxes as they were written.

Tests cnnbench/data/imagenet.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.data.folder import RecordDefect
from cnnbench.data.imagenet import (
    BOX_SIDES,
    LABEL,
    boxes_are_inside,
    is_usable_image_size,
    parse_with_boxes,
    serialize,
    validate_record,
)

KEYS = {
    *(f"image/{name}" for name in ("height", "width", "colorspace", "channels", "format")),
    *(f"image/{name}" for name in ("filename", "encoded")),
    *(f"image/class/{name}" for name in ("label", "synset", "text")),
    *(f"image/object/bbox/{name}" for name in ("xmin", "xmax", "ymin", "ymax", "label")),
}


@pytest.fixture
def example(photos):
    jpeg = tf.io.encode_jpeg(photos["china"][:50, :70]).numpy()
    return tf.train.Example.FromString(serialize(jpeg, 50, 70, 3, "a.jpg", "n01", "a pagoda"))


def set_boxes(example, *boxes):
    for i, side in enumerate(BOX_SIDES):
        example.features.feature[side].float_list.value[:] = [box[i] for box in boxes]


def test_the_keys_of_the_ancestor(example):
    feature = example.features.feature
    assert set(feature) == KEYS
    assert feature["image/class/text"].bytes_list.value[:] == [b"a pagoda"]
    assert feature["image/class/synset"].bytes_list.value[:] == [b"n01"]
    assert feature["image/colorspace"].bytes_list.value[:] == [b"RGB"]
    assert feature["image/format"].bytes_list.value[:] == [b"JPEG"]
    assert feature["image/height"].int64_list.value[:] == [50]
    assert feature["image/width"].int64_list.value[:] == [70]
    assert feature["image/channels"].int64_list.value[:] == [3]


def boxes_in(example):
    return parse_with_boxes(example.SerializeToString(), {})[1]


def test_boxes_are_read_as_they_were_written(example):
    assert boxes_in(example).shape == (0, 4)
    set_boxes(example, (0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8))
    np.testing.assert_allclose(boxes_in(example), [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]])


def test_boxes_may_have_no_area_and_be_missing(example):
    set_boxes(example, (0.5, 0.5, 0.5, 0.6))
    assert validate_record(example.SerializeToString(), 4).boxes == 1
    for side in BOX_SIDES:
        del example.features.feature[side]
    assert boxes_in(example).shape == (0, 4)
    assert validate_record(example.SerializeToString(), 4).boxes == 0


@pytest.mark.parametrize(
    ("box", "inside"),
    [
        ((0.0, 0.0, 1.0, 1.0), True),
        ((0.5, 0.5, 0.5, 0.5), True),
        ((-0.125, 0.0, 1.0, 1.0), False),
        ((0.0, -0.125, 1.0, 1.0), False),
        ((0.0, 0.0, 1.125, 1.0), False),
        ((0.0, 0.0, 1.0, 1.125), False),
        ((0.5, 0.0, 0.25, 1.0), False),
        ((0.0, 0.5, 1.0, 0.25), False),
        ((0.0, 0.0, float("nan"), 1.0), False),
    ],
)
def test_check_and_graph_find_the_same_boxes_inside(example, box, inside):
    whole = (0.0, 0.0, 1.0, 1.0)
    for boxes in ([box], [whole, box, whole]):
        assert bool(boxes_are_inside(tf.constant([boxes]))) == inside
        set_boxes(example, *boxes)
        record = example.SerializeToString()
        if inside:
            assert validate_record(record, 4).boxes == len(boxes)
            continue
        with pytest.raises(RecordDefect):
            validate_record(record, 4)


@pytest.mark.parametrize(("label", "valid"), [(0, True), (3, True), (4, False), (-1, False)])
def test_labels_are_those_of_the_classes(example, label, valid):
    example.features.feature[LABEL].int64_list.value[:] = [label]
    record = example.SerializeToString()
    if valid:
        found = validate_record(record, 4)
        assert (found.label, found.height, found.width) == (label, 50, 70)
        return
    with pytest.raises(RecordDefect):
        validate_record(record, 4)


@pytest.mark.parametrize(("least", "valid"), [(50, True), (51, False)])
def test_no_side_is_shorter_than_the_crop(example, least, valid):
    record = example.SerializeToString()
    if valid:
        assert validate_record(record, 4, least).boxes == 0
        return
    with pytest.raises(RecordDefect):
        validate_record(record, 4, least)


@pytest.mark.parametrize(
    ("height", "width", "usable"),
    [
        (1, 1, True),
        (100, 1, True),
        (1, 100, True),
        (101, 1, False),
        (1, 101, False),
        (2**13, 2**14, True),
        (2**13 + 1, 2**14, False),
        (2**31 - 1, 2**31 - 1, False),
    ],
)
def test_images_are_not_too_narrow_and_not_too_large(height, width, usable):
    assert bool(is_usable_image_size([height, width, 3])) == usable
