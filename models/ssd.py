"""SSD300: object detection with 8732 anchor boxes.

Source: Liu et al., arXiv:1512.02325, with the ResNet-34 of MLPerf Training as its backbone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cnnbench.models import anchors
from cnnbench.models.average_precision import THRESHOLDS, average_precision
from cnnbench.models.elements import IMAGE, Element
from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.resnet import ResNet
from cnnbench.models.spec import BatchNorm, LearningRateSpec
from cnnbench.models.window import Padding

# After the backbone: filters of a 1 x 1 convolution, filters, stride and padding of a 3 x 3 one.
_EXTRAS: tuple[tuple[int, int, int, Padding], ...] = (
    (256, 512, 2, "SAME_RESNET"),
    (256, 512, 2, "SAME_RESNET"),
    (128, 256, 2, "SAME_RESNET"),
    (128, 256, 1, "VALID"),
    (128, 256, 1, "VALID"),
)
MAX_BOXES = 200
NEGATIVES = 3  # per matched anchor
# Limits of the detections that count in an evaluation.
_LEAST_SCORE, _LARGEST_OVERLAP = 0.05, 0.5

_EPOCH = 118_287 / 32  # steps of 32 images of COCO 2017


class SSD300(Model):
    """Class and offset for each anchor, from feature maps of 38, 19, 10, 5, 3 and 1 cells a side.

    Labels are the targets of each anchor and, for the evaluation, the boxes themselves.
    """

    name = "ssd300"
    dataset = "coco"
    image_size = anchors.IMAGE_SIZE
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
        Element("anchor_boxes", (anchors.ANCHORS, 4), "label"),
        Element("anchor_classes", (anchors.ANCHORS,), "label", "int64"),
        Element("boxes", (MAX_BOXES, 4), "label"),
        Element("classes", (MAX_BOXES,), "label", "int64"),
        Element("is_crowd", (MAX_BOXES,), "label", "int64"),
        Element("num_boxes", (), "label", "int64"),
    )
    metric_names = ()  # average precision is no mean over images
    host_metric_names = ("map", "map_50", "map_75")
    top_1_accuracy = "map"
    backbone = "backbone"

    def build(self, net: Network[T], images: T) -> Mapping[str, T]:
        """``classes``, logits (8732, 81), and ``boxes``, encoded (8732, 4)."""
        with net.scope(self.backbone):
            x = ResNet(34, "v1").stages(net, images, strides=(1, 2, 1))
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
            told = [
                net.conv(x, count * width, 3, activation=None)
                for x, count in zip(maps, anchors.PER_CELL, strict=True)
            ]

        def joined(*parts: Any) -> Any:
            import tensorflow as tf

            rows = [
                tf.reshape(one, [-1, math.prod(one.shape[1:]) // width, width]) for one in parts
            ]
            return tf.concat(rows, axis=1)

        return net.apply(joined, *told, shape=(anchors.ANCHORS, width))

    def preprocess(
        self, example: Mapping[str, Any], seed: Any, *, training: bool
    ) -> Mapping[str, Any]:
        """Adds the targets of each anchor."""
        import tensorflow as tf

        boxes = example["boxes"]
        counted = tf.range(MAX_BOXES, dtype=tf.int64) < example["num_boxes"]
        index, matched = anchors.match(boxes, counted & (example["is_crowd"] == 0))
        encoded = anchors.encode(tf.gather(boxes, index))
        return {
            **example,
            "anchor_boxes": tf.where(matched[:, None], encoded, 0.0),
            "anchor_classes": tf.where(matched, tf.gather(example["classes"], index), 0),
        }

    def loss(self, outputs: Mapping[str, Any], labels: Mapping[str, Any]) -> Any:
        """Smooth L1 loss of matched anchors' boxes plus cross entropy, per matched anchor.

        The cross entropy is that of the classes of matched anchors and of three times as many
        others, those where it is largest.
        """
        import tensorflow as tf

        positive = labels["anchor_classes"] > 0
        matches = tf.reduce_sum(tf.cast(positive, tf.int32), axis=1)
        off = tf.abs(outputs["boxes"] - labels["anchor_boxes"])
        smooth = tf.reduce_sum(tf.where(off < 1.0, 0.5 * off * off, off - 0.5), axis=-1)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels["anchor_classes"], outputs["classes"]
        )
        worst = tf.sort(tf.where(positive, 0.0, entropy), axis=1, direction="DESCENDING")
        hard = tf.range(anchors.ANCHORS) < NEGATIVES * matches[:, None]
        total = tf.reduce_sum(
            tf.where(positive, smooth + entropy, 0.0) + tf.where(hard, worst, 0.0), axis=1
        )
        return total / tf.cast(tf.maximum(matches, 1), tf.float32)

    def host_rows(self, features: Any, outputs: Any, labels: Any) -> Mapping[str, Any]:
        """Up to 200 detections of an image, and its boxes.

        As in MLPerf's reference: of the 200 best of a class those that overlap with no better one,
        not clipped to the image.
        """
        import tensorflow as tf

        del features
        scores = tf.nn.softmax(outputs["classes"])[..., 1:]
        least = tf.math.top_k(tf.linalg.matrix_transpose(scores), MAX_BOXES).values[:, None, :, -1]
        found = tf.image.combined_non_max_suppression(
            anchors.decode(outputs["boxes"])[:, :, None],
            tf.where(scores >= least, scores, 0.0),
            MAX_BOXES,
            MAX_BOXES,
            _LARGEST_OVERLAP,
            _LEAST_SCORE,
            clip_boxes=False,
        )
        return {
            "found_boxes": found.nmsed_boxes,
            "found_scores": found.nmsed_scores,
            "found_classes": tf.cast(found.nmsed_classes, tf.int64) + 1,
            **{name: labels[name] for name in ("boxes", "classes", "is_crowd", "num_boxes")},
        }

    def host_metrics(self, rows: Mapping[str, Any]) -> Mapping[str, float]:
        """COCO's mean average precision: over overlaps from 0.5 to 0.95, at 0.5 and at 0.75."""
        classes = int(max(rows["classes"].max(), rows["found_classes"].max())) + 1
        found = average_precision(rows, classes)
        half, three_quarters = THRESHOLDS[0], THRESHOLDS[5]
        return {
            "map": sum(found.values()) / len(found),
            "map_50": found[half],
            "map_75": found[three_quarters],
        }


register_model("ssd300", "coco", SSD300)
