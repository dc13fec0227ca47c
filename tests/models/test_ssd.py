"""SSD300: its anchors, matching, loss and detections against slow and plain ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from cnnbench import BenchmarkCNN, Params
from cnnbench.models import anchors, declare, get_model
from cnnbench.models.ssd import SSD300


def plain_anchors():
    """Cell by cell, as the paper tells them: scales, then aspect ratios."""
    cells, steps = (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300)
    sides = (21, 45, 99, 153, 207, 261, 315)
    ratios = ([2], [2, 3], [2, 3], [2, 3], [2], [2])
    found = []
    for k in range(6):
        for row, column in itertools.product(range(cells[k]), repeat=2):
            y, x = (row + 0.5) * steps[k] / 300, (column + 0.5) * steps[k] / 300
            side, middle = sides[k] / 300, math.sqrt(sides[k] * sides[k + 1]) / 300
            shapes = [(side, side), (middle, middle)]
            for ratio in ratios[k]:
                wide = (side / math.sqrt(ratio), side * math.sqrt(ratio))
                shapes += [wide, wide[::-1]]
            found += [(y, x, height, width) for height, width in shapes]
    return np.clip(np.array(found), 0, 1)


def overlap(a, b):
    height = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    width = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (a, b)]
    return height * width / (sum(areas) - height * width)


def some_boxes(count, seed=0):
    rng = np.random.default_rng(seed)
    sides = rng.uniform(0.05, 0.7, (count, 2))
    first = rng.uniform(size=(count, 2)) * (1 - sides)
    return np.concatenate([first, first + sides], axis=1).astype(np.float32)


def test_there_are_8732_anchors():
    np.testing.assert_allclose(anchors.anchors(), plain_anchors(), rtol=1e-6)
    assert anchors.ANCHORS == len(anchors.anchors()) == 8732


def test_anchors_stand_for_the_boxes_that_they_overlap_with():
    boxes = some_boxes(5)
    boxes[4] = [0.41, 0.04, 0.47, 0.93]  # longer than any anchor: it gets its best one
    counted = np.array([True, True, False, True, True])
    index, matched = (x.numpy() for x in anchors.match(tf.constant(boxes), tf.constant(counted)))
    base = plain_anchors()
    corners = np.concatenate([base[:, :2] - base[:, 2:] / 2, base[:, :2] + base[:, 2:] / 2], axis=1)
    table = np.array(
        [[overlap(a, b) if c else -1 for b, c in zip(boxes, counted, strict=True)] for a in corners]
    )
    expected, stands = table.argmax(axis=1), table.max(axis=1) > 0.5
    for box in np.flatnonzero(counted):
        best = table[:, box].argmax()
        expected[best], stands[best] = box, True
    np.testing.assert_array_equal(matched, stands)
    np.testing.assert_array_equal(index[matched], expected[stands])
    assert set(index[matched]) == {0, 1, 3, 4}
    assert (index[matched] == 4).sum() == 1


def test_without_boxes_no_anchor_stands_for_any():
    _, matched = anchors.match(tf.zeros([3, 4]), tf.zeros([3], tf.bool))
    assert not matched.numpy().any()


def test_decoding_takes_encoding_back():
    boxes = some_boxes(anchors.ANCHORS, seed=1)
    encoded = anchors.encode(tf.constant(boxes))
    np.testing.assert_allclose(anchors.decode(encoded[None])[0], boxes, atol=1e-5)
    y, x, height, width = plain_anchors()[100]
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
    index, matched = anchors.match(example()["boxes"], tf.range(200) < 3)
    boxes = anchors.decode(labels["anchor_boxes"])[0].numpy()[matched]
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


def test_its_size():
    spec = declare(get_model("ssd300", "coco"), 81)

    def conv(side, inputs, filters, bias=True):
        return side * side * inputs * filters + (filters if bias else 2 * filters)

    resnet = conv(7, 3, 64, False)
    for width, inputs, blocks in ((64, 64, 3), (128, 64, 4), (256, 128, 6)):
        resnet += conv(1, inputs, width, False) if inputs != width else 0
        resnet += conv(3, inputs, width, False) + (2 * blocks - 1) * conv(3, width, width, False)
    extra = conv(1, 256, 256) + conv(3, 256, 512) + conv(1, 512, 256) + conv(3, 256, 512)
    extra += conv(1, 512, 128) + conv(3, 128, 256) + 2 * (conv(1, 256, 128) + conv(3, 128, 256))
    channels, counts = (256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4)
    heads = sum(conv(3, c, n * 85) for c, n in zip(channels, counts, strict=True))
    assert spec.parameters == resnet + extra + heads == 19_972_534  # tf_cnn_benchmarks' count
    backbone = declare(get_model("resnet34", "imagenet"), 1001).variables
    shapes = {v.name: v.shape for v in backbone}
    within = {v.name: v.shape for v in spec.variables if v.name.startswith("backbone/")}
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


def narrow(model, net, images):
    """As many cells a side as the network has, of a convolution each."""
    maps = [net.conv(images, 4, 8, 8)]
    for _ in range(4):
        maps.append(net.conv(maps[-1], 4, 3, 2))
    maps.append(net.conv(maps[-1], 4, 3, padding="VALID"))
    return {
        name: model._head(net, maps, name, width)
        for name, width in (("classes", net.num_classes), ("boxes", 4))
    }


def test_it_trains_on_synthetic_images(monkeypatch, quick_start):
    """One image on each of two towers: the loss falls, and detections are counted."""
    monkeypatch.setattr(SSD300, "build", narrow)
    params = Params(
        model="ssd300",
        data_name="coco",
        device="cpu",
        num_gpus=2,
        variable_update="replicated",
        batch_size=1,
        num_batches=2,
        num_warmup_batches=0,
        optimizer="momentum",
        weight_decay=0.0,
        eval_during_training_every_n_steps=1000,
        num_eval_batches=1,
    )
    record = BenchmarkCNN(params).run()
    assert record.losses[-1] < record.losses[0]
    (found,) = record.evaluations
    assert found.examples == 2
    assert set(found.metrics) == {"map", "map_50", "map_75"}
    assert all(0 <= value <= 1 for value in found.metrics.values())
