"""SSD300: object detection with 8732 anchor boxes.

A box consists of its top, left, bottom and right as fractions of the image. An encoded box is
relative to an anchor: the offset of the centre (vertical, horizontal) divided by the anchor's sides
and by 0.1, and the logarithms of the ratios of the sides (height, width), divided by 0.2.

Source: Liu et al., arXiv:1512.02325, with the ResNet-34 of MLPerf Training as its backbone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Array, Tensor
from cnnbench.models import (
    IMAGE,
    BatchNorm,
    Element,
    LearningRateSpec,
    Model,
    Network,
    T,
    register_model,
)
from cnnbench.models.average_precision import THRESHOLDS, average_precision
from cnnbench.models.network import Padding
from cnnbench.models.networks.resnet import ResNet

IMAGE_SIZE = 300
# For each feature map: cells per row, pixels between cells, and aspect ratios of the anchors in
# each cell. In addition, each cell has two anchors with aspect ratio 1.
MAPS = (
    (38, 8, (2.0,)),
    (19, 16, (2.0, 3.0)),
    (10, 32, (2.0, 3.0)),
    (5, 64, (2.0, 3.0)),
    (3, 100, (2.0,)),
    (1, 300, (2.0,)),
)
# For each feature map: height and width, in pixels, of its small square anchors. The larger square
# anchors follow from the size for the next map, so there is one more number than maps.
SIDES = (21, 45, 99, 153, 207, 261, 315)
PER_CELL = tuple(2 + 2 * len(aspects) for _, _, aspects in MAPS)
ANCHORS = sum(cells**2 * count for (cells, _, _), count in zip(MAPS, PER_CELL, strict=True))

LEAST_OVERLAP = 0.5
"""An anchor is matched to a box if their intersection over union is larger than this."""

_CENTRE_SCALE, _SIDE_SCALE = 0.1, 0.2


@functools.cache
def make_anchors() -> Array:
    """Returns all anchor boxes: centre (vertical, horizontal), height and width.

    The result is float32 [8732, 4], in the order of feature maps, rows and cells. Values are
    clipped to [0, 1].
    """
    import numpy as np

    anchors_of_maps = []
    for index, (cells, step, aspects) in enumerate(MAPS):
        side, larger = SIDES[index] / IMAGE_SIZE, SIDES[index + 1] / IMAGE_SIZE
        middle = (side * larger) ** 0.5
        shapes = [(side, side), (middle, middle)]
        for aspect in aspects:
            long, short = side * aspect**0.5, side / aspect**0.5
            shapes += [(short, long), (long, short)]
        centres = (np.arange(cells) + 0.5) * step / IMAGE_SIZE
        rows, columns = np.meshgrid(centres, centres, indexing="ij")
        cell = np.stack([rows, columns], axis=-1)[:, :, None, :]
        cell = np.broadcast_to(cell, (cells, cells, len(shapes), 2))
        sides = np.broadcast_to(np.array(shapes), cell.shape)
        anchors_of_maps.append(np.concatenate([cell, sides], axis=-1).reshape(-1, 4))
    anchors: Array = np.clip(np.concatenate(anchors_of_maps), 0.0, 1.0)
    return anchors.astype(np.float32)


def centre_to_corner_boxes(boxes: Tensor) -> Tensor:
    """Converts boxes [..., 4] from centre, height and width to top, left, bottom and right."""
    centre, sides = boxes[..., :2], boxes[..., 2:]
    return tf.concat([centre - sides / 2, centre + sides / 2], axis=-1)


def intersection_over_union(first: Tensor, second: Tensor) -> Tensor:
    """Computes the intersection over union of boxes [m, 4] and [n, 4]: float32 [m, n]."""
    begin = tf.maximum(first[:, None, :2], second[None, :, :2])
    end = tf.minimum(first[:, None, 2:], second[None, :, 2:])
    common = tf.reduce_prod(tf.maximum(end - begin, 0.0), axis=-1)
    areas = [
        tf.reduce_prod(corners[:, 2:] - corners[:, :2], axis=-1) for corners in (first, second)
    ]
    return tf.math.divide_no_nan(common, areas[0][:, None] + areas[1][None] - common)


def match_anchors(boxes: Tensor, is_matchable: Tensor) -> tuple[Tensor, Tensor]:
    """Assigns a box to each anchor.

    Returns the index of the box, int64 [8732], and whether the anchor matches the box.

    Boxes are float32 [n, 4]; only boxes with `is_matchable`, bool [n], are matched. Each box is
    assigned to the anchor with the largest overlap. (If two boxes have the same anchor, the later
    box is used.) Each other anchor is matched to the box with the largest overlap, if it is more
    than `LEAST_OVERLAP`.
    """
    overlap = intersection_over_union(centre_to_corner_boxes(tf.constant(make_anchors())), boxes)
    overlap = tf.where(is_matchable, overlap, -1.0)
    number = tf.range(tf.shape(boxes, tf.int64)[0])
    own = tf.tensor_scatter_nd_max(
        tf.fill([ANCHORS], tf.constant(-1, tf.int64)),
        tf.argmax(overlap, axis=0)[:, None],
        tf.where(is_matchable, number, -1),
    )
    best = tf.argmax(overlap, axis=1)
    near = tf.reduce_max(overlap, axis=1) > LEAST_OVERLAP
    return tf.where(own >= 0, own, best), (own >= 0) | near


def encode_boxes(boxes: Tensor) -> Tensor:
    """Encodes one box per anchor, [8732, 4], as the offsets that the network should predict."""
    base = tf.constant(make_anchors())
    centre, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return tf.concat(
        [
            (centre - base[:, :2]) / base[:, 2:] / _CENTRE_SCALE,
            tf.math.log(tf.maximum(sides, 1e-6) / base[:, 2:]) / _SIDE_SCALE,
        ],
        axis=-1,
    )


def decode_boxes(encoded: Tensor) -> Tensor:
    """Converts predicted offsets [n, 8732, 4] to boxes, as the inverse of `encode_boxes`."""
    base = tf.constant(make_anchors())
    centre = encoded[..., :2] * _CENTRE_SCALE * base[:, 2:] + base[:, :2]
    sides = tf.exp(encoded[..., 2:] * _SIDE_SCALE) * base[:, 2:]
    return centre_to_corner_boxes(tf.concat([centre, sides], axis=-1))


# Layers after the backbone: filters of a 1 x 1 convolution; filters, stride and padding of a 3 x 3.
_EXTRAS: tuple[tuple[int, int, int, Padding], ...] = (
    (256, 512, 2, "SAME_RESNET"),
    (256, 512, 2, "SAME_RESNET"),
    (128, 256, 2, "SAME_RESNET"),
    (128, 256, 1, "VALID"),
    (128, 256, 1, "VALID"),
)
MAX_BOXES = 200
"""Maximum number of boxes in an image. Images in COCO have fewer than 100."""

NEGATIVES = 3  # Negative anchors per matched one.
_LEAST_SCORE = 0.05
"""Evaluations ignore detections with a lower score."""
_LARGEST_OVERLAP = 0.5
"""Evaluations ignore a detection if it overlaps a better detection by more than this."""

_EPOCH = 118_287 / 32  # Steps per epoch of COCO 2017 with a batch size of 32.


class SSD300(Model):
    """SSD300: predicts a class and offsets of a box for each of 8732 anchors.

    The feature maps have 38, 19, 10, 5, 3 and 1 cells per row. Labels are the targets for each
    anchor and, for evaluations, the boxes.
    """

    name = "ssd300"
    dataset = "coco"
    image_size = IMAGE_SIZE
    image_sizes = range(IMAGE_SIZE, IMAGE_SIZE + 1)
    batch_size = 32
    batch_norm = BatchNorm(decay=0.997, epsilon=1e-4)
    learning_rate = LearningRateSpec(
        0.001,
        base_batch=32,
        boundaries_epochs=(160_000 / _EPOCH, 200_000 / _EPOCH),
        factors=(1.0, 0.1, 0.01),
        warmup_epochs=5.0,
    )
    elements = (
        IMAGE,
        Element("anchor_boxes", (ANCHORS, 4), "label"),
        Element("anchor_classes", (ANCHORS,), "label", "int64"),
        Element("boxes", (MAX_BOXES, 4), "label"),
        Element("classes", (MAX_BOXES,), "label", "int64"),
        Element("is_crowd", (MAX_BOXES,), "label", "int64"),
        Element("num_boxes", (), "label", "int64"),
    )
    metric_names = ()  # Average precision is no mean over images.
    host_metric_names = ("map", "map_50", "map_75")
    top_1_accuracy = "map"
    backbone = "backbone"

    def build(self, net: Network[T], images: T) -> Mapping[str, T]:
        """Builds the network; returns logits ``classes`` (8732, 81) and ``boxes`` (8732, 4)."""
        with net.scope(self.backbone):
            x = ResNet(34, "v1").stem_and_stages(net, images, strides=(1, 2, 1))
        maps = [x]
        with net.scope("extra"):
            for narrow, filters, stride, padding in _EXTRAS:
                x = net.conv(net.conv(x, narrow, 1), filters, 3, stride, padding)
                maps.append(x)
        return {
            "classes": self._head(net, maps, "classes", net.num_classes),
            "boxes": self._head(net, maps, "boxes", 4),
        }

    def _head(self, net: Network[T], maps: list[T], name: str, width: int) -> T:
        with net.scope(name):
            joined_parts = [
                net.conv(x, count * width, 3, activation=None)
                for x, count in zip(maps, PER_CELL, strict=True)
            ]

        def join_predictions(*parts: Tensor) -> Tensor:
            rows = [
                tf.reshape(part, [-1, math.prod(part.shape[1:]) // width, width]) for part in parts
            ]
            return tf.concat(rows, axis=1)

        return net.apply(join_predictions, *joined_parts, shape=(ANCHORS, width))

    def preprocess(
        self, example: Mapping[str, Tensor], seed: Tensor, *, training: bool
    ) -> Mapping[str, Tensor]:
        """Adds the target box and the target class of each anchor to an example's labels."""
        boxes = example["boxes"]
        counted = tf.range(MAX_BOXES, dtype=tf.int64) < example["num_boxes"]
        index, matched = match_anchors(boxes, counted & (example["is_crowd"] == 0))
        encoded = encode_boxes(tf.gather(boxes, index))
        return {
            **example,
            "anchor_boxes": tf.where(matched[:, None], encoded, 0.0),
            "anchor_classes": tf.where(matched, tf.gather(example["classes"], index), 0),
        }

    def loss(self, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Tensor:
        """Computes the smooth L1 loss of matched boxes plus cross entropy, per matched anchor.

        The cross entropy is for the classes of matched anchors and of negative anchors. The
        negative anchors are those with the largest cross entropy, three times as many as matched
        anchors.
        """
        positive = labels["anchor_classes"] > 0
        matches = tf.reduce_sum(tf.cast(positive, tf.int32), axis=1)
        off = tf.abs(outputs["boxes"] - labels["anchor_boxes"])
        smooth = tf.reduce_sum(tf.where(off < 1.0, 0.5 * off * off, off - 0.5), axis=-1)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels["anchor_classes"], outputs["classes"]
        )
        worst = tf.sort(tf.where(positive, 0.0, entropy), axis=1, direction="DESCENDING")
        hard = tf.range(ANCHORS) < NEGATIVES * matches[:, None]
        total = tf.reduce_sum(
            tf.where(positive, smooth + entropy, 0.0) + tf.where(hard, worst, 0.0), axis=1
        )
        return total / tf.cast(tf.maximum(matches, 1), tf.float32)

    def host_rows(
        self, features: Tensor, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Returns up to 200 detected boxes for each image, and the true boxes.

        As in MLPerf's reference, detections are chosen from the 200 best detections of each class.
        A detection that overlaps a better one is removed. Boxes are not clipped to the image.
        """
        del features
        scores = tf.nn.softmax(outputs["classes"])[..., 1:]
        least = tf.math.top_k(tf.linalg.matrix_transpose(scores), MAX_BOXES).values[:, None, :, -1]
        detected = tf.image.combined_non_max_suppression(
            decode_boxes(outputs["boxes"])[:, :, None],
            tf.where(scores >= least, scores, 0.0),
            MAX_BOXES,
            MAX_BOXES,
            _LARGEST_OVERLAP,
            _LEAST_SCORE,
            clip_boxes=False,
        )
        return {
            "found_boxes": detected.nmsed_boxes,
            "found_scores": detected.nmsed_scores,
            "found_classes": tf.cast(detected.nmsed_classes, tf.int64) + 1,
            **{name: labels[name] for name in ("boxes", "classes", "is_crowd", "num_boxes")},
        }

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        """Computes COCO's mean average precision for thresholds of overlap between boxes.

        ``map`` is for thresholds from 0.5 to 0.95, ``map_50`` for 0.5, and ``map_75`` for 0.75.
        """
        classes = int(max(rows["classes"].max(), rows["found_classes"].max())) + 1
        precisions = average_precision(rows, classes)
        half, three_quarters = THRESHOLDS[0], THRESHOLDS[5]
        return {
            "map": sum(precisions.values()) / len(precisions),
            "map_50": precisions[half],
            "map_75": precisions[three_quarters],
        }


register_model("ssd300", "coco", SSD300)
