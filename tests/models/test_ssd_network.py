"""SSD300's network and its detections against those of MLPerf's reference, written plainly."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models import declare, get_model
from cnnbench.models.graph import forward
from cnnbench.models.ssd import SSD300

CLASSES = 4  # the heads of 81 would only cost time
SHAPES = (4, 6, 6, 6, 4, 4)  # anchors of a cell


class Reference:
    """The network in float64; weights are taken in the order of creation."""

    def __init__(self, variables, values):
        self.variables, self.values = iter(variables), values

    def take(self, ending, *shape):
        variable = next(self.variables)
        assert variable.name.endswith(ending)
        assert tuple(variable.shape) == shape
        return tf.cast(self.values[variable.name], tf.float64)

    def conv(self, x, side, filters, stride=1, zeros=None):
        """As many zeros on all four sides: half of the kernel, unless told."""
        kernel = self.take("kernel", side, side, x.shape[3], filters)
        around = (side - 1) // 2 if zeros is None else zeros
        x = tf.pad(x, [[0, 0], [around, around], [around, around], [0, 0]])
        return tf.nn.conv2d(x, kernel, stride, "VALID")

    def normed(self, x):
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (self.take(name, x.shape[3]) for name in names)
        return (x - mean) / tf.sqrt(variance + 1e-4) * gamma + beta

    def biased(self, x):
        return x + self.take("bias", x.shape[3])

    def block(self, x, filters, stride):
        shortcut = x
        if stride != 1 or x.shape[3] != filters:
            shortcut = self.normed(self.conv(x, 1, filters, stride))
        y = tf.nn.relu(self.normed(self.conv(x, 3, filters, stride)))
        return tf.nn.relu(shortcut + self.normed(self.conv(y, 3, filters)))

    def maps(self, images):
        x = tf.nn.relu(self.normed(self.conv(images, 7, 64, 2)))
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


def test_its_outputs(make_weights):
    model = get_model("ssd300", "coco")
    variables = declare(model, CLASSES).variables
    weights = make_weights(variables)
    images = np.random.default_rng(3).standard_normal((1, 300, 300, 3)).astype(np.float32)
    reference = Reference(variables, weights.values)
    maps = list(reference.maps(tf.constant(images, tf.float64)))
    assert [x.shape[1] for x in maps] == [38, 19, 10, 5, 3, 1]
    expected = {name: reference.head(maps, n) for name, n in (("classes", CLASSES), ("boxes", 4))}
    assert next(reference.variables, None) is None
    found = forward(model, CLASSES, tf.constant(images), weights.read, training=False).outputs
    for name, values in expected.items():
        assert found[name].shape == (1, 8732, values.shape[2])
        assert np.linalg.norm(found[name] - values) < 1e-5 * np.linalg.norm(values)


# Detections ---------------------------------------------------------------------------------------


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


def decoded(encoded, base):
    """Left, top, right and bottom of offsets (vertical first) with variances 0.1 and 0.2."""
    y, x, height, width = encoded.T.astype(np.float64)
    x, y = (offset * 0.1 * base[:, 2 + i] + base[:, i] for i, offset in enumerate((x, y)))
    width, height = (np.exp(0.2 * log) * base[:, i] for log, i in ((width, 2), (height, 3)))
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)


def overlap(box, others):
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    areas = [(b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1]) for b in (box, others)]
    return common / (areas[0] + areas[1] - common)


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
    """Outputs for two images: some anchors are sure of a class, boxes are near their anchors."""
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
