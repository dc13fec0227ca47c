"""Records of ImageNet: their keys, and boxes as they were written.

Tests cnnbench/data/imagenet.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.data.imagenet import BOX_SIDES, parse_record, serialize, validate_record

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
    return parse_record(example.SerializeToString(), {})[1]


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
