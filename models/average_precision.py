"""Average precision of detections, as COCO defines it.

A detection is right if it overlaps enough with a box of its class that no better detection of
the image has found. Average precision is the mean, over 101 recalls from 0 to 1, of the best
precision that reaches the recall. Source: https://cocodataset.org/#detection-eval, for objects
of all sizes and at most 100 detections of a class in an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

THRESHOLDS = tuple((50 + 5 * step) / 100 for step in range(10))
MOST_DETECTIONS = 100
_RECALLS = 101


def average_precision(images: Mapping[str, Any], num_classes: int) -> dict[float, float]:
    """The mean over classes that occur, by threshold of overlap; NaN if there is no box at all.

    Classes are from 1 to ``num_classes`` - 1.

    Args:
      images: NumPy arrays by name, a row per image: ``found_boxes`` [n, d, 4], ``found_classes``
        and ``found_scores`` [n, d], where a score of 0 or less is no detection; ``boxes``
        [n, b, 4], ``classes`` and ``is_crowd`` [n, b], of which ``num_boxes`` [n] count.
    """
    import numpy as np

    by_class = [
        found for one in range(1, num_classes) if (found := _of_class(images, one)) is not None
    ]
    if not by_class:
        return dict.fromkeys(THRESHOLDS, float("nan"))
    means = np.mean(by_class, axis=0)
    return {threshold: float(mean) for threshold, mean in zip(THRESHOLDS, means, strict=True)}


def _of_class(images: Mapping[str, Any], one: int) -> Any:
    """Average precision of a class for each threshold; None if it has no box."""
    import numpy as np

    scores, verdicts, boxes = [], [], 0
    for row in range(len(images["num_boxes"])):
        there = np.arange(images["boxes"].shape[1]) < images["num_boxes"][row]
        there &= images["classes"][row] == one
        crowd = images["is_crowd"][row][there] > 0
        boxes += int((~crowd).sum())
        mine = (images["found_classes"][row] == one) & (images["found_scores"][row] > 0)
        order = np.argsort(-images["found_scores"][row][mine], kind="stable")[:MOST_DETECTIONS]
        if len(order):
            overlap = _overlaps(
                images["found_boxes"][row][mine][order], images["boxes"][row][there], crowd
            )
            scores.append(images["found_scores"][row][mine][order])
            verdicts.append([_judge(overlap, crowd, threshold) for threshold in THRESHOLDS])
    if not boxes:
        return None
    if not scores:
        return np.zeros(len(THRESHOLDS))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    judged = np.concatenate(verdicts, axis=1)[:, order]
    return np.array([_area(verdict, boxes) for verdict in judged])


RIGHT, WRONG, IGNORED = 1, 0, -1


def _judge(overlap: Any, crowd: Any, threshold: float) -> Any:
    """Verdicts on detections, the best first, by their overlaps [detections, boxes].

    A crowd may be found any number of times; detections on it are `IGNORED`.
    """
    import numpy as np

    free = ~crowd
    verdict = np.full(len(overlap), WRONG)
    for detection, row in enumerate(overlap):
        single = np.where(free, row, -1.0)
        many = np.where(crowd, row, -1.0)
        if single.size and single.max() >= threshold:
            # Of boxes with equal overlap the last, as in pycocotools.
            free[len(single) - 1 - single[::-1].argmax()] = False
            verdict[detection] = RIGHT
        elif many.size and many.max() >= threshold:
            verdict[detection] = IGNORED
    return verdict


def _area(verdict: Any, boxes: int) -> float:
    import numpy as np

    verdict = verdict[verdict != IGNORED]
    right = np.cumsum(verdict == RIGHT)
    precision = right / np.maximum(np.arange(len(verdict)) + 1, 1)
    # The best precision at this recall or a higher one.
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(right / boxes, np.linspace(0.0, 1.0, _RECALLS), side="left")
    return float(np.append(precision, 0.0)[np.minimum(at, len(verdict))].mean())


def _overlaps(found: Any, boxes: Any, crowd: Any) -> Any:
    """Intersection over union [d, b]; over the detection alone where the box is a crowd."""
    import numpy as np

    begin = np.maximum(found[:, None, :2], boxes[None, :, :2])
    end = np.minimum(found[:, None, 2:], boxes[None, :, 2:])
    common = np.prod(np.maximum(end - begin, 0.0), axis=-1)
    own = np.prod(found[:, 2:] - found[:, :2], axis=-1)[:, None]
    others = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)[None]
    whole = np.where(crowd, own, own + others - common)
    return np.divide(common, whole, out=np.zeros_like(common), where=whole > 0)
