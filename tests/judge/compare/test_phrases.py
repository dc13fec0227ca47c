"""Which phrase fits a change; golden/sentences.txt has their wording."""

from __future__ import annotations

import pytest

from cnnbench.judge.compare import METRICS, phrases
from cnnbench.judge.compare.estimate import Estimate

SPEED, MEMORY = METRICS["throughput"], METRICS["memory"]


@pytest.mark.parametrize(
    ("low", "high", "certain"),
    [
        (-0.2, -0.1, True),
        (0.1, 0.2, True),
        (-0.1, 0.1, False),
        (0.0, 0.1, False),
        (None, 0.1, False),
        (0.1, None, False),
    ],
)
def test_the_size_of_a_change_is_told_if_its_direction_is_certain(low, high, certain):
    found = Estimate(change=0.05, low=low, high=high)
    text = phrases.known_change_text(SPEED, found)
    assert text == (phrases.size_text if certain else phrases.change_text)(SPEED, found)
    assert phrases.change_text(SPEED, Estimate(low=low, high=high)) == "-"


def test_directions_of_metrics():
    words = [
        phrases.direction(metric, change)
        for metric in (SPEED, MEMORY)
        for change in (0.1, 0.0, -0.1)
    ]
    assert words == ["faster", "slower", "slower", "more", "less", "less"]
