"""Detections and boxes drawn from seeds, in pixels, and what pycocotools makes of them.

The tests need NumPy alone. The expected values come from an environment of their own, here::

    python -m venv /tmp/reference && /tmp/reference/bin/pip install pycocotools==2.0.11
    /tmp/reference/bin/python detections.py average_precision.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 512
"""Pixels of an image's side: a power of two, so that fractions of it are exact."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A detection: left, top, width and height, class, score."""

    box: tuple[float, float, float, float]
    category: int
    score: float


@dataclasses.dataclass(frozen=True)
class There:
    """A box of the ground truth."""

    box: tuple[float, float, float, float]
    category: int
    crowd: bool = False


Image = tuple[list[Found], list[There]]


def _box(rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Small (below 32 squared pixels), medium (below 96 squared) or large, inside the image."""
    low, high = [(6, 31), (33, 95), (97, 400)][rng.integers(3)]
    width, height = rng.uniform(low, high, 2)
    left, top = rng.uniform(0, SIDE - width), rng.uniform(0, SIDE - height)
    return float(left), float(top), float(width), float(height)


def _near(
    rng: np.random.Generator, box: tuple[float, float, float, float], off: float
) -> tuple[float, float, float, float]:
    left, top, width, height = box
    moved = rng.normal(0, off, 4) * (width, height, width, height)
    return (
        float(left + moved[0]),
        float(top + moved[1]),
        float(width * np.exp(moved[2] / width)),
        float(height * np.exp(moved[3] / height)),
    )


def _images(
    seed: int,
    images: int,
    *,
    classes: int = 6,
    boxes: int = 6,
    crowds: float = 0.0,
    tells: Callable[[int], bool] = lambda image: True,
    least: int = 0,
    copies: int = 2,
    off: float = 0.08,
    digits: int = 9,
) -> list[Image]:
    """Boxes found some times, a little off, sometimes as another class; and other detections.

    Args:
      seed: of all draws.
      images: their number.
      classes: drawn from 1 to this; the last one is never found, the first one never there.
      boxes: at most, in an image.
      crowds: share of boxes that are crowds.
      tells: whether an image has detections, by its number.
      least: detections of a box.
      copies: at most, of a box.
      off: standard deviation of a detection's place and size, in sides of the box.
      digits: of the scores.
    """
    rng = np.random.default_rng(seed)
    made = []
    for image in range(images):
        there = [
            There(_box(rng), int(rng.integers(2, classes + 1)), bool(rng.random() < crowds))
            for _ in range(rng.integers(0, boxes + 1))
        ]
        found = []
        for one in there:
            for _ in range(rng.integers(least, copies + 1)):
                other = int(rng.integers(1, classes)) if rng.random() < 0.15 else one.category
                box = _near(rng, one.box, off)
                found.append(Found(box, min(other, classes - 1), float(rng.beta(3, 2))))
        for _ in range(rng.integers(0, 4)):
            found.append(Found(_box(rng), int(rng.integers(1, classes)), float(rng.beta(2, 4))))
        found = [found[i] for i in rng.permutation(len(found))]
        found = [dataclasses.replace(one, score=round(one.score, digits) + 1e-3) for one in found]
        made.append((found if tells(image) else [], there))
    return made


def _grid(seed: int) -> list[Image]:
    """Boxes of whole pixels: equal overlaps, overlaps of exactly a threshold, equal boxes."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(60):
        there, found = [], []
        for _ in range(3):
            left, top = (float(v) for v in 64 * rng.integers(0, 6, 2))
            there.append(There((left, top, 20.0, 20.0), 1))
            if rng.random() < 0.3:
                there.append(There((left, top, 20.0, 20.0), 1, bool(rng.random() < 0.3)))
            if rng.random() < 0.5:  # of which a detection in the middle finds either
                there.append(There((left + 4, top, 20.0, 20.0), 1))
                found.append(Found((left + 2, top, 20.0, 20.0), 1, float(rng.random())))
            for _ in range(2):
                # Its overlap is height / 20: 0.5, 0.55, ..., 1.
                height = float(rng.integers(10, 21))
                found.append(Found((left, top, 20.0, height), 1, float(rng.random())))
        made.append((found, there))
    return made


def cases() -> dict[str, list[Image]]:
    """Images by the name of what is special about them."""
    return {
        "many classes and sizes": _images(1, 40),
        "equal scores": _images(2, 40, digits=1),
        "crowds": _images(3, 40, crowds=0.35, copies=4),
        "more than 100 detections": _images(
            4, 4, classes=3, boxes=40, least=5, copies=20, off=0.15
        ),
        "images without detections": _images(5, 40, tells=lambda image: image % 3 == 0),
        "no detections at all": _images(6, 4, tells=lambda image: False),
        "exact and equal overlaps": _grid(7),
        "nearly perfect": _images(8, 40, least=1, copies=1, off=0.02),
    }


def by_pycocotools(images: list[Image]) -> list[float]:
    """Mean average precision of each threshold of overlap, for objects of all sizes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations: list[dict[str, Any]] = []
    results = []
    for image, (found, there) in enumerate(images, start=1):
        for one in there:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": one.category,
                    "bbox": list(one.box),
                    "area": one.box[2] * one.box[3],
                    "iscrowd": int(one.crowd),
                }
            )
        results += [
            {
                "image_id": image,
                "category_id": one.category,
                "bbox": list(one.box),
                "score": one.score,
            }
            for one in found
        ]
    classes = {one["category_id"] for one in [*annotations, *results]}
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": i + 1, "width": SIDE, "height": SIDE} for i in range(len(images))],
        "categories": [{"id": one, "name": str(one)} for one in sorted(classes)],
        "annotations": annotations,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        told = truth.loadRes(results) if results else COCO()
        evaluation = COCOeval(truth, told, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    # [threshold, recall, class, area, most detections]; -1 for classes without a box.
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    return [float(at[at > -1].mean()) for at in precision]


if __name__ == "__main__":
    from importlib.metadata import version

    document = {
        "made_by": f"detections.py with pycocotools {version('pycocotools')}",
        "average_precision": {name: by_pycocotools(images) for name, images in cases().items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
