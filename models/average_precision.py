"""Average precision of detected boxes, as COCO defines it."""

from __future__ import annotations

from collections.abc import Mapping

from cnnbench.arrays import Array
from cnnbench.base.lazy_numpy import np

THRESHOLDS = tuple((50 + 5 * step) / 100 for step in range(10))
MOST_DETECTIONS = 100
_RECALLS = 101


def average_precision(images: Mapping[str, Array], num_classes: int) -> dict[float, float]:
    """Computes COCO's average precision for each threshold of overlap, or NaN without true boxes.

    A detection is correct if it overlaps enough with a box of its class and no better detection in
    the image is matched to this box. For each class, the result is the mean, over 101 recalls from
    0 to 1, of the best precision with at least this recall. The final result is the mean over all
    classes from 1 to ``num_classes`` - 1 that occur. Source:
    https://cocodataset.org/#detection-eval, for objects of all sizes and at most 100 detections of
    a class in an image.

    Args:
      images: NumPy arrays by name, with one row for each image: ``found_boxes`` [n, d, 4],
        ``found_classes`` and ``found_scores`` [n, d], where a score of 0 or less means no
        detection; ``boxes`` [n, b, 4], ``classes`` and ``is_crowd`` [n, b], of which the first
        ``num_boxes`` [n] are valid.
    """
    by_class = [
        precision
        for label in range(1, num_classes)
        if (precision := _class_precision(images, label)) is not None
    ]
    if not by_class:
        return dict.fromkeys(THRESHOLDS, float("nan"))
    means = np.mean(by_class, axis=0)
    return {threshold: float(mean) for threshold, mean in zip(THRESHOLDS, means, strict=True)}


def _class_precision(images: Mapping[str, Array], label: int) -> Array | None:
    """Computes a class's average precision for each threshold, or None if it has no true boxes."""
    scores: list[Array] = []
    verdicts: list[list[Array]] = []
    boxes = 0
    for row in range(len(images["num_boxes"])):
        is_box = np.arange(images["boxes"].shape[1]) < images["num_boxes"][row]
        is_box &= images["classes"][row] == label
        crowd = images["is_crowd"][row][is_box] > 0
        boxes += int((~crowd).sum())
        mine = (images["found_classes"][row] == label) & (images["found_scores"][row] > 0)
        order = np.argsort(-images["found_scores"][row][mine], kind="stable")[:MOST_DETECTIONS]
        if len(order):
            overlap = _overlaps(
                images["found_boxes"][row][mine][order], images["boxes"][row][is_box], crowd
            )
            scores.append(images["found_scores"][row][mine][order])
            verdicts.append([_classify(overlap, crowd, threshold) for threshold in THRESHOLDS])
    if not boxes:
        return None
    if not scores:
        return np.zeros(len(THRESHOLDS))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    judged: Array = np.concatenate(verdicts, axis=1)[:, order]
    return np.array([_area(verdict, boxes) for verdict in judged])


RIGHT, WRONG, IGNORED = 1, 0, -1


def _classify(overlap: Array, crowd: Array, threshold: float) -> Array:
    """Classifies each detection in an image as `RIGHT`, `WRONG` or `IGNORED`.

    A crowd may be detected any number of times. Detections of a crowd are `IGNORED`.

    Args:
      overlap: overlap of each detection (best first) with each true box, [detections, boxes].
      crowd: whether each true box is a crowd.
    """
    free = ~crowd
    verdict = np.full(len(overlap), WRONG)
    for detection, row in enumerate(overlap):
        single = np.where(free, row, -1.0)
        many = np.where(crowd, row, -1.0)
        if single.size and single.max() >= threshold:
            # If several boxes have the same overlap, the last one is matched, as in pycocotools.
            free[len(single) - 1 - single[::-1].argmax()] = False
            verdict[detection] = RIGHT
        elif many.size and many.max() >= threshold:
            verdict[detection] = IGNORED
    return verdict


def _area(verdicts: Array, num_boxes: int) -> float:
    verdicts = verdicts[verdicts != IGNORED]
    right = np.cumsum(verdicts == RIGHT)
    precision = right / np.maximum(np.arange(len(verdicts)) + 1, 1)
    # COCO defines the precision at a recall as the best precision at this recall or any higher one.
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(right / num_boxes, np.linspace(0.0, 1.0, _RECALLS), side="left")
    return float(np.append(precision, 0.0)[np.minimum(at, len(verdicts))].mean())


def _overlaps(detections: Array, boxes: Array, crowd: Array) -> Array:
    """Computes the intersection over union of detections and true boxes, as COCO defines it.

    For a crowd, the intersection is divided by the area of the detection. The result has shape
    [detections, boxes].
    """
    begin = np.maximum(detections[:, None, :2], boxes[None, :, :2])
    end = np.minimum(detections[:, None, 2:], boxes[None, :, 2:])
    common: Array = np.prod(np.maximum(end - begin, 0.0), axis=-1)
    detection_areas = np.prod(detections[:, 2:] - detections[:, :2], axis=-1)[:, None]
    box_areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)[None]
    unions = np.where(crowd, detection_areas, detection_areas + box_areas - common)
    shares: Array = np.divide(common, unions, out=np.zeros_like(common), where=unions > 0)
    return shares
