"""The chance that pairs to come bring a verdict."""

from __future__ import annotations

import math

import pytest

from cnnbench.base.inference import InterimAnalysis
from cnnbench.campaigns.ab.futility import clear_verdict_probability
from cnnbench.judge.compare import Policy, Samples

LAST = [InterimAnalysis(16, 0.5)]
SHAPE = (1.5, -1.2, 0.8, -0.7, 0.4, -0.5, 0.2, -0.3)


def pairs(change, scatter):
    new = [100 * (1 + change) * math.exp(scatter * z) for z in SHAPE]
    return Samples([100.0] * 8, new, paired=True)


@pytest.mark.parametrize(
    ("change", "scatter", "least", "most"),
    [
        (0.0, 0.005, 1.0, 1.0),  # will be the same
        (-0.1, 0.02, 1.0, 1.0),  # will be slower
        (0.1, 0.02, 1.0, 1.0),
        (0.0, 0.1, 0.0, 0.15),  # the interval will be wider than the floor
        (-0.03, 0.02, 0.3, 0.7),  # on the floor
        (-0.06, 0.1, 0.2, 0.8),  # may turn out either way
    ],
)
def test_by_change_and_scatter(change, scatter, least, most):
    assert least <= clear_verdict_probability(pairs(change, scatter), LAST) <= most


def test_a_wider_floor_and_more_pairs_change_it():
    case = pairs(0.0, 0.06)
    narrow = clear_verdict_probability(case, LAST)
    assert clear_verdict_probability(case, LAST, Policy(threshold=0.2)) == 1.0
    assert clear_verdict_probability(case, [InterimAnalysis(200, 1.0)]) > narrow
    # Both directions are harder to exclude than one.
    both = Policy(questions=("slower", "faster"))
    assert clear_verdict_probability(case, LAST, both) < narrow
    # Whoever asks again gets the same answer.
    assert clear_verdict_probability(case, LAST) == narrow
