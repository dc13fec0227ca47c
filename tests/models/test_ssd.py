"""SSD300: anchors, matching, loss, network and detections against plain ones.

The network and the detections are those of MLPerf's reference, written plainly.

Tests models/networks/ssd.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from networks import forward
from residual_networks import InOrder

from cnnbench.models import declare, get_model
from cnnbench.models.networks import ssd
from cnnbench.models.networks.ssd import SSD300


def default_boxes():
    """Centre (horizontal, vertical), width and height: scales and ratios of the paper's Caffe."""
    found = []
    scales = (21, 45, 99, 153, 207, 261, 315)
    cells, steps = (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300)
    for level, ratios in enumerate(((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))):
        side = scales[level] / 300
        middle = math.sqrt(side * scales[level + 1] / 300)
        sizes = [(side, side), (middle, middle)]
        for ratio in ratios:
            wide = side * math.sqrt(ratio), side / math.sqrt(ratio)
            sizes += [wide, wide[::-1]]
        for row, column in itertools.product(range(cells[level]), repeat=2):
            x, y = ((place + 0.5) * steps[level] / 300 for place in (column, row))
            found += [(x, y, width, height) for width, height in sizes]
    return np.clip(np.array(found), 0.0, 1.0)


def overlap(box, others):
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    areas = [(b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1]) for b in (box, others)]
    return common / (areas[0] + areas[1] - common)


def some_boxes(count, seed=0):
    rng = np.random.default_rng(seed)
    sides = rng.uniform(0.05, 0.7, (count, 2))
    first = rng.uniform(size=(count, 2)) * (1 - sides)
    return np.concatenate([first, first + sides], axis=1).astype(np.float32)


def test_there_are_8732_anchors():
    np.testing.assert_allclose(ssd.make_anchors(), default_boxes()[:, [1, 0, 3, 2]], rtol=1e-6)
    assert ssd.ANCHORS == len(ssd.make_anchors()) == 8732


def test_anchors_stand_for_the_boxes_that_they_overlap_with():
    boxes = some_boxes(5)
    boxes[4] = [0.41, 0.04, 0.47, 0.93]  # longer than any anchor, so matched to its best one
    counted = np.array([True, True, False, True, True])
    index, matched = (
        x.numpy() for x in ssd.match_anchors(tf.constant(boxes), tf.constant(counted))
    )
    base = default_boxes()[:, [1, 0, 3, 2]]
    corners = np.concatenate([base[:, :2] - base[:, 2:] / 2, base[:, :2] + base[:, 2:] / 2], axis=1)
    table = np.stack([overlap(box, corners) for box in boxes], axis=1)
    table[:, ~counted] = -1
    expected, stands = table.argmax(axis=1), table.max(axis=1) > 0.5
    for box in np.flatnonzero(counted):
        best = table[:, box].argmax()
        expected[best], stands[best] = box, True
    np.testing.assert_array_equal(matched, stands)
    np.testing.assert_array_equal(index[matched], expected[stands])
    assert set(index[matched]) == {0, 1, 3, 4}
    assert (index[matched] == 4).sum() == 1


def test_decoding_takes_encoding_back():
    boxes = some_boxes(ssd.ANCHORS, seed=1)
    encoded = ssd.encode_boxes(tf.constant(boxes))
    np.testing.assert_allclose(ssd.decode_boxes(encoded[None])[0], boxes, atol=1e-5)
    y, x, height, width = default_boxes()[:, [1, 0, 3, 2]][100]
    top, left, bottom, right = boxes[100]
    by_hand = [
        ((top + bottom) / 2 - y) / height / 0.1,
        ((left + right) / 2 - x) / width / 0.1,
        math.log((bottom - top) / height) / 0.2,
        math.log((right - left) / width) / 0.2,
    ]
    np.testing.assert_allclose(encoded[100], by_hand, rtol=1e-4)


def example(count=3, crowd=()):
    boxes, classes, crowds = np.zeros((200, 4), "f4"), np.zeros(200, int), np.zeros(200, int)
    boxes[:count] = some_boxes(count, seed=2)
    classes[:count] = np.arange(count) + 7
    crowds[list(crowd)] = 1
    values = {"boxes": boxes, "classes": classes, "is_crowd": crowds, "num_boxes": np.int64(count)}
    return {name: tf.constant(value) for name, value in values.items()}


def labels_of(*examples):
    made = [SSD300().preprocess(one, None, training=True) for one in examples]
    return {name: tf.stack([one[name] for one in made]) for name in made[0]}


def test_an_example_tells_each_anchor_its_class_and_box():
    (classes,) = labels_of(example(crowd=[1]))["anchor_classes"].numpy()
    assert set(classes) == {0, 7, 9}  # nothing stands for the crowd
    labels = labels_of(example())
    index, matched = ssd.match_anchors(example()["boxes"], tf.range(200) < 3)
    boxes = ssd.decode_boxes(labels["anchor_boxes"])[0].numpy()[matched]
    np.testing.assert_allclose(boxes, example()["boxes"].numpy()[index.numpy()[matched]], atol=1e-5)
    assert not labels["anchor_boxes"][0].numpy()[~matched.numpy()].any()


def test_the_loss_is_that_of_matched_and_of_the_hardest_other_anchors():
    labels = labels_of(example(), example(count=0))
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 8732, 81)).astype("f4")
    told = rng.normal(size=(2, 8732, 4)).astype("f4")
    outputs = {"classes": tf.constant(logits), "boxes": tf.constant(told)}
    found = SSD300().loss(outputs, labels).numpy()
    classes, boxes = (labels[name][0].numpy() for name in ("anchor_classes", "anchor_boxes"))
    share = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=1, keepdims=True)
    entropy = -np.log(share[np.arange(8732), classes])
    positive = np.flatnonzero(classes)
    off = np.abs(told[0] - boxes)[positive]
    smooth = np.where(off < 1, off**2 / 2, off - 0.5).sum()
    negatives = np.sort(entropy[classes == 0])[::-1][: 3 * len(positive)]
    expected = (smooth + entropy[positive].sum() + negatives.sum()) / len(positive)
    np.testing.assert_allclose(found, [expected, 0.0], rtol=1e-4)


def test_its_backbone_is_a_resnet34_without_its_last_stage():
    backbone = declare(get_model("resnet34", "imagenet"), 1001).variables
    shapes = {v.name: v.shape for v in backbone}
    variables = declare(get_model("ssd300", "coco"), 81).variables
    within = {v.name: v.shape for v in variables if v.name.startswith("backbone/")}
    assert len(within) > 100
    assert all(shapes[name.removeprefix("backbone/")] == shape for name, shape in within.items())


def test_what_is_told_rightly_is_found_rightly():
    examples = [example(), example(count=2)]
    labels = labels_of(*examples)
    classes = tf.one_hot(labels["anchor_classes"], 81) * 20.0
    outputs = {"classes": classes, "boxes": labels["anchor_boxes"]}
    rows = {k: v.numpy() for k, v in SSD300().host_rows(None, outputs, labels).items()}
    assert rows["found_boxes"].shape == (2, 200, 4)
    assert sorted(rows["found_classes"][0][rows["found_scores"][0] > 0]) == [7, 8, 9]
    assert SSD300().host_metrics(rows) == pytest.approx({"map": 1.0, "map_50": 1.0, "map_75": 1.0})
    rows["found_classes"][:] = 5
    assert SSD300().host_metrics(rows)["map"] == 0.0


# The network --------------------------------------------------------------------------------------

CLASSES = 4  # the heads of 81 would only cost time
SHAPES = (4, 6, 6, 6, 4, 4)  # anchors of a cell


class Reference(InOrder):
    """The network in float64."""

    def conv(self, x, side, filters, stride=1, zeros=None):
        """As many zeros on all four sides: half of the kernel, unless told."""
        kernel = self.take("kernel", side, side, x.shape[3], filters)
        around = (side - 1) // 2 if zeros is None else zeros
        x = tf.pad(x, [[0, 0], [around, around], [around, around], [0, 0]])
        return tf.nn.conv2d(x, kernel, stride, "VALID")

    def biased(self, x):
        return x + self.take("bias", x.shape[3])

    def block(self, x, filters, stride):
        shortcut = x
        if stride != 1 or x.shape[3] != filters:
            shortcut = self.norm(self.conv(x, 1, filters, stride))
        y = tf.nn.relu(self.norm(self.conv(x, 3, filters, stride)))
        return tf.nn.relu(shortcut + self.norm(self.conv(y, 3, filters)))

    def maps(self, images):
        x = tf.nn.relu(self.norm(self.conv(images, 7, 64, 2)))
        # As in tf_cnn_benchmarks; the windows of MLPerf's begin a pixel earlier.
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for filters, stride, blocks in ((64, 1, 3), (128, 2, 4), (256, 1, 6)):
            for index in range(blocks):
                x = self.block(x, filters, 1 if index else stride)
        yield x
        # Filters of two convolutions; the stride and the zeros of the second.
        for narrow, wide, stride, zeros in (
            *((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1)),
            *((128, 256, 1, 0), (128, 256, 1, 0)),
        ):
            x = tf.nn.relu(self.biased(self.conv(x, 1, narrow)))
            x = tf.nn.relu(self.biased(self.conv(x, 3, wide, stride, zeros)))
            yield x

    def head(self, maps, width):
        """By map, row, column and anchor of the cell, `width` numbers each."""
        rows = []
        for x, count in zip(maps, SHAPES, strict=True):
            y = self.biased(self.conv(x, 3, count * width)).numpy()
            for row, column, shape in itertools.product(
                *(range(n) for n in (*y.shape[1:3], count))
            ):
                rows.append(y[:, row, column, shape * width : (shape + 1) * width])
        return np.stack(rows, axis=1)


@pytest.mark.slow
def test_its_outputs(make_weights):
    model = get_model("ssd300", "coco")
    weights = make_weights(declare(model, CLASSES).variables)
    images = np.random.default_rng(3).standard_normal((1, 300, 300, 3)).astype(np.float32)
    reference = Reference(weights.values, epsilon=1e-4)
    maps = list(reference.maps(tf.constant(images, tf.float64)))
    assert [x.shape[1] for x in maps] == [38, 19, 10, 5, 3, 1]
    expected = {name: reference.head(maps, n) for name, n in (("classes", CLASSES), ("boxes", 4))}
    reference.done()
    found = forward(model, CLASSES, tf.constant(images), weights.read, training=False).outputs
    for name, values in expected.items():
        assert found[name].shape == (1, 8732, values.shape[2])
        assert np.linalg.norm(found[name] - values) < 1e-5 * np.linalg.norm(values)


# Detections ---------------------------------------------------------------------------------------


def decoded(encoded, base):
    """Left, top, right and bottom of offsets (vertical first) with variances 0.1 and 0.2."""
    y, x, height, width = encoded.T.astype(np.float64)
    x, y = (offset * 0.1 * base[:, 2 + i] + base[:, i] for i, offset in enumerate((x, y)))
    width, height = (np.exp(0.2 * log) * base[:, i] for log, i in ((width, 2), (height, 3)))
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)


def detections(logits, encoded):
    """(score, class, box) of an image: of the 200 best of a class those that no better covers."""
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    boxes = decoded(encoded, default_boxes())
    kept = []
    for one in range(1, logits.shape[1]):
        likely = np.flatnonzero(share[:, one] > 0.05)
        left = likely[np.argsort(-share[likely, one])][:200]
        while len(left):
            best = left[0]
            kept.append((share[best, one], one, boxes[best]))
            left = left[overlap(boxes[best], boxes[left]) < 0.5]
    return sorted(kept, key=lambda found: -found[0])[:200]


def told(likely, spread):
    """Outputs for two images: some anchors are sure of a class, boxes are near their ssd."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 0.5, (2, 8732, 6))
    logits[..., 0] += 6.0
    for image in logits:
        sure = rng.choice(8732, likely, replace=False)
        image[sure, rng.integers(1, 6, likely)] += rng.uniform(3, 9, likely)
    boxes = rng.normal(0, spread, (2, 8732, 4))
    return logits.astype(np.float32), boxes.astype(np.float32)


def check_detections(logits, boxes):
    """Compares with `detections`; returns how many there are in each image."""
    labels = {name: tf.zeros([2, 1]) for name in ("boxes", "classes", "is_crowd", "num_boxes")}
    outputs = {"classes": tf.constant(logits), "boxes": tf.constant(boxes)}
    rows = {k: v.numpy() for k, v in SSD300().host_rows(None, outputs, labels).items()}
    counts = []
    for image in range(2):
        expected = detections(logits[image], boxes[image])
        counts.append(int((rows["found_scores"][image] > 0).sum()))
        assert counts[-1] == len(expected)
        score, one, box = (np.array(column) for column in zip(*expected, strict=True))
        np.testing.assert_allclose(rows["found_scores"][image][: len(score)], score, rtol=1e-5)
        np.testing.assert_array_equal(rows["found_classes"][image][: len(score)], one)
        found = rows["found_boxes"][image][: len(score)][:, [1, 0, 3, 2]]
        np.testing.assert_allclose(found, box, atol=1e-5)
    return counts


@pytest.mark.parametrize(("likely", "spread", "all_told"), [(60, 0.5, True), (3000, 2.0, False)])
def test_detections(likely, spread, all_told):
    counts = check_detections(*told(likely, spread))
    assert all(0 < count < 200 for count in counts) if all_told else counts == [200, 200]


def test_no_detection_is_beyond_the_200_best_of_its_class():
    """300 anchors are surest, of one and the same object, 40 others a little less."""
    logits, boxes = told(0, 0.0)
    base = default_boxes()
    sure = np.random.default_rng(4).permutation(np.flatnonzero(base[:, 2] > 0.2))[:300]
    logits[0, sure, 2] += np.linspace(9, 10, 300, dtype=np.float32)
    x, y, width, height = (np.array([0.6, 0.5, 0.3, 0.4]) - base[sure] * [1, 1, 0, 0]).T
    boxes[0, sure, 0] = y / base[sure, 3] / 0.1
    boxes[0, sure, 1] = x / base[sure, 2] / 0.1
    boxes[0, sure, 2] = np.log(height / base[sure, 3]) / 0.2
    boxes[0, sure, 3] = np.log(width / base[sure, 2]) / 0.2
    logits[:, :40, 2] += 6.5
    one, many = check_detections(logits, boxes)
    assert one == 1
    assert many > 10
