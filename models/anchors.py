"""Anchor boxes of SSD, and their matching with the boxes of an image (arXiv:1512.02325).

Boxes are top, left, bottom and right as fractions of the image unless they are said to be
encoded: the offset of the centre (vertical, horizontal) in sides of the anchor over 0.1, and the
logarithm of the sides' ratio (height, width) over 0.2.
"""

from __future__ import annotations

import functools
from typing import Any

IMAGE_SIZE = 300
# Of each feature map: cells along a side, pixels from one cell to the next, and the aspect ratios
# of anchors besides 1.
MAPS = (
    (38, 8, (2.0,)),
    (19, 16, (2.0, 3.0)),
    (10, 32, (2.0, 3.0)),
    (5, 64, (2.0, 3.0)),
    (3, 100, (2.0,)),
    (1, 300, (2.0,)),
)
# Pixels of a square anchor's side on each map; the last is beyond them.
SIDES = (21, 45, 99, 153, 207, 261, 315)
PER_CELL = tuple(2 + 2 * len(aspects) for _, _, aspects in MAPS)
ANCHORS = sum(cells**2 * count for (cells, _, _), count in zip(MAPS, PER_CELL, strict=True))

LEAST_OVERLAP = 0.5
"""Intersection over union from which on an anchor stands for a box."""

_CENTRE_SCALE, _SIDE_SCALE = 0.1, 0.2


@functools.cache
def anchors() -> Any:
    """Centre (vertical, horizontal), height and width of all anchors, float32 [8732, 4].

    Map by map, row by row, cell by cell; cut to the image.
    """
    import numpy as np

    found = []
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
        found.append(np.concatenate([cell, sides], axis=-1).reshape(-1, 4))
    return np.clip(np.concatenate(found), 0.0, 1.0).astype(np.float32)


def corners(boxes: Any) -> Any:
    """Top, left, bottom and right of boxes given by centre and sides; any array [..., 4]."""
    import tensorflow as tf

    centre, sides = boxes[..., :2], boxes[..., 2:]
    return tf.concat([centre - sides / 2, centre + sides / 2], axis=-1)


def overlaps(first: Any, second: Any) -> Any:
    """Intersection over union of boxes [m, 4] and [n, 4], float32 [m, n]."""
    import tensorflow as tf

    begin = tf.maximum(first[:, None, :2], second[None, :, :2])
    end = tf.minimum(first[:, None, 2:], second[None, :, 2:])
    common = tf.reduce_prod(tf.maximum(end - begin, 0.0), axis=-1)
    areas = [tf.reduce_prod(one[:, 2:] - one[:, :2], axis=-1) for one in (first, second)]
    return tf.math.divide_no_nan(common, areas[0][:, None] + areas[1][None] - common)


def match(boxes: Any, counted: Any) -> tuple[Any, Any]:
    """The box of float32 [n, 4] assigned to each anchor, int64 [8732], and whether it has any.

    A box gets the anchor that overlaps with it most (of two boxes that want one anchor, the
    later one), and every other anchor the box that it overlaps with most, if by more than
    `LEAST_OVERLAP`.
    """
    import tensorflow as tf

    overlap = overlaps(corners(tf.constant(anchors())), boxes)
    overlap = tf.where(counted, overlap, -1.0)
    number = tf.range(tf.shape(boxes, tf.int64)[0])
    own = tf.tensor_scatter_nd_max(
        tf.fill([ANCHORS], tf.constant(-1, tf.int64)),
        tf.argmax(overlap, axis=0)[:, None],
        tf.where(counted, number, -1),
    )
    best = tf.argmax(overlap, axis=1)
    near = tf.reduce_max(overlap, axis=1) > LEAST_OVERLAP
    return tf.where(own >= 0, own, best), (own >= 0) | near


def encode(boxes: Any) -> Any:
    """Boxes [8732, 4], one per anchor, as offsets that the network predicts."""
    import tensorflow as tf

    base = tf.constant(anchors())
    centre, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return tf.concat(
        [
            (centre - base[:, :2]) / base[:, 2:] / _CENTRE_SCALE,
            tf.math.log(tf.maximum(sides, 1e-6) / base[:, 2:]) / _SIDE_SCALE,
        ],
        axis=-1,
    )


def decode(encoded: Any) -> Any:
    """The inverse of `encode`, for [n, 8732, 4]."""
    import tensorflow as tf

    base = tf.constant(anchors())
    centre = encoded[..., :2] * _CENTRE_SCALE * base[:, 2:] + base[:, :2]
    sides = tf.exp(encoded[..., 2:] * _SIDE_SCALE) * base[:, 2:]
    return corners(tf.concat([centre, sides], axis=-1))
