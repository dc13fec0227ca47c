"""Average precision: by hand, and many cases against pycocotools."""

from __future__ import annotations

import json
import math
from pathlib import Path

import detections
import numpy as np
import pytest

from cnnbench.models.average_precision import THRESHOLDS, average_precision

BOX, OTHER, AWAY = (0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9), (0.0, 0.6, 0.2, 0.8)


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


def at(threshold, *rows):
    found = average_precision(images(*rows), 4)
    return found[min(THRESHOLDS, key=lambda t: abs(t - threshold))]


TWO = [(BOX, 1, 0), (OTHER, 1, 0)]


@pytest.mark.parametrize(
    ("found", "there", "expected"),
    [
        ([(BOX, 1, 0.9)], [(BOX, 1, 0)], 1.0),
        ([(BOX, 2, 0.9)], [(BOX, 1, 0)], 0.0),  # another class
        ([], TWO, 0.0),
        ([(BOX, 1, 0.9)], TWO, 51 / 101),  # recalls 0, 0.01, ..., 0.5
        ([(BOX, 1, 0.9), (AWAY, 1, 0.8), (OTHER, 1, 0.7)], TWO, (51 + 50 * 2 / 3) / 101),
        ([(AWAY, 1, 0.9), (BOX, 1, 0.8)], [(BOX, 1, 0)], 0.5),
        ([(BOX, 1, 0.9), (BOX, 1, 0.8), (OTHER, 1, 0.7)], TWO, (51 + 50 * 2 / 3) / 101),  # twice
        # What lies on a crowd is neither right nor wrong, however often.
        ([(AWAY, 1, 0.9), (AWAY, 1, 0.8), (BOX, 1, 0.1)], [(BOX, 1, 0), (AWAY, 1, 1)], 1.0),
        # Classes count alike, those without a box not at all.
        ([(BOX, 1, 0.9), (AWAY, 3, 0.9)], [(BOX, 1, 0), (OTHER, 2, 0)], 0.5),
    ],
)
def test_cases_by_hand(found, there, expected):
    assert at(0.5, (found, there)) == pytest.approx(expected)


def test_a_box_that_is_a_little_off_counts_up_to_its_overlap():
    off = (0.0, 0.0, 0.4, 0.29)  # overlaps with BOX by 0.725
    found = average_precision(images(([(off, 1, 0.9)], [(BOX, 1, 0)])), 4)
    assert [found[t] for t in THRESHOLDS] == [1.0 if t < 0.725 else 0.0 for t in THRESHOLDS]


def test_a_part_of_a_crowd_is_on_it():
    part = (0.1, 0.1, 0.2, 0.2)
    row = ([(part, 1, 0.9), (OTHER, 1, 0.5)], [(BOX, 1, 1), (OTHER, 1, 0)])
    assert at(0.5, row) == 1.0


def test_scores_are_ordered_over_all_images():
    wrong_first = ([(AWAY, 1, 0.9)], [(BOX, 1, 0)])
    assert at(0.5, wrong_first, ([(BOX, 1, 0.8)], [(BOX, 1, 0)])) == pytest.approx(51 / 101 / 2)


def test_without_any_box_there_is_no_precision():
    assert all(math.isnan(v) for v in average_precision(images(([(BOX, 1, 1.0)], [])), 4).values())


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
