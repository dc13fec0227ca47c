"""Average precision: many cases against pycocotools."""

from __future__ import annotations

import json
import math
from pathlib import Path

import detections
import numpy as np
import pytest

from cnnbench.models.average_precision import THRESHOLDS, average_precision


def images(*rows):
    """Rows of (found, there): found are (box, class, score), there are (box, class, is crowd)."""
    wide = max([1, *(max(len(found), len(there)) for found, there in rows)])
    made = {
        "found_boxes": np.zeros((len(rows), wide, 4)),
        "found_classes": np.zeros((len(rows), wide), int),
        "found_scores": np.zeros((len(rows), wide)),
        "boxes": np.zeros((len(rows), wide, 4)),
        "classes": np.zeros((len(rows), wide), int),
        "is_crowd": np.zeros((len(rows), wide), int),
        "num_boxes": np.array([len(there) for _, there in rows]),
    }
    for i, (found, there) in enumerate(rows):
        for j, (box, one, score) in enumerate(found):
            for name, value in (("boxes", box), ("classes", one), ("scores", score)):
                made[f"found_{name}"][i, j] = value
        for j, (box, one, crowd) in enumerate(there):
            for name, value in (("boxes", box), ("classes", one), ("is_crowd", crowd)):
                made[name][i, j] = value
    return made


def test_without_any_box_there_is_no_precision():
    assert all(
        math.isnan(v)
        for v in average_precision(images(([((0.0, 0.0, 0.4, 0.4), 1, 1.0)], [])), 4).values()
    )


PYCOCOTOOLS = json.loads((Path(__file__).parent / "references/average_precision.json").read_text())
CASES = detections.cases()


def fractions(box):
    """Top, left, bottom and right of a box of pixels."""
    left, top, width, height = box
    corners = (top, left, top + height, left + width)
    return tuple(float(pixels) / detections.SIDE for pixels in corners)


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_pycocotools(case):
    """See references/detections.py for the cases, and how the numbers were made."""
    rows = [
        (
            [(fractions(one.box), one.category, one.score) for one in found],
            [(fractions(one.box), one.category, int(one.crowd)) for one in there],
        )
        for found, there in CASES[case]
    ]
    if case == "more than 100 detections":
        assert max(sum(one.category == 2 for one in found) for found, _ in CASES[case]) > 150
    result = average_precision(images(*rows), 7)
    expected = PYCOCOTOOLS["average_precision"][case]
    np.testing.assert_allclose([result[t] for t in THRESHOLDS], expected, rtol=1e-9, atol=1e-12)
