"""Average precision: by hand, against a slow one, and many cases against pycocotools."""

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


def slow(rows, one, threshold):
    """The definition, without arrays."""

    def area(b):
        return (b[2] - b[0]) * (b[3] - b[1])

    def overlap(a, b):
        common = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(
            0, min(a[3], b[3]) - max(a[1], b[1])
        )
        return common / (area(a) + area(b) - common)

    hits, total = [], 0
    for found, there in rows:
        boxes = [box for box, c, _ in there if c == one]
        total += len(boxes)
        for box, _, score in sorted((f for f in found if f[1] == one), key=lambda f: -f[2]):
            near = max(boxes, key=lambda b: overlap(box, b), default=None)
            right = near is not None and overlap(box, near) >= threshold
            if right:
                boxes.remove(near)
            hits.append((score, right))
    if not total:
        return None
    hits.sort(key=lambda h: -h[0])
    curve = []
    for n in range(1, len(hits) + 1):
        right = sum(hit for _, hit in hits[:n])
        curve.append((right / total, right / n))
    recalls = [i / 100 for i in range(101)]
    return (
        sum(max([p for r, p in curve if r >= level - 1e-12], default=0) for level in recalls) / 101
    )


@pytest.mark.parametrize("seed", range(4))
def test_many_boxes_against_the_slow_one(seed):
    rng = np.random.default_rng(seed)

    def box():
        first = rng.uniform(0, 0.5, 2)
        return tuple(np.concatenate([first, first + rng.uniform(0.2, 0.5, 2)]).tolist())

    rows = []
    for _ in range(6):
        there = [(box(), int(rng.integers(1, 4)), 0) for _ in range(rng.integers(0, 5))]
        found = [(box(), int(rng.integers(1, 4)), float(rng.uniform(0.01, 1))) for _ in range(4)]
        for b, c, _ in there:
            moved = tuple(np.array(b) + rng.normal(0, 0.03, 4))
            found.append((moved, c, float(rng.uniform(0.01, 1))))
        rows.append((found, there))
    result = average_precision(images(*rows), 4)
    for threshold in THRESHOLDS:
        known = [v for c in (1, 2, 3) if (v := slow(rows, c, threshold)) is not None]
        assert result[threshold] == pytest.approx(np.mean(known), abs=1e-9)
    assert 0 < result[THRESHOLDS[0]] < 1


PYCOCOTOOLS = json.loads((Path(__file__).parent / "references/average_precision.json").read_text())
CASES = detections.cases()


def fractions(box):
    """Top, left, bottom and right of a box of pixels."""
    left, top, width, height = box
    corners = (top, left, top + height, left + width)
    return tuple(float(pixels) / detections.SIDE for pixels in corners)


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_pycocotools(case):
    """See tests/helpers/detections.py for the cases, and how the numbers were made."""
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
