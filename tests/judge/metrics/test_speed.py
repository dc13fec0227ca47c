"""Slow steps in words.

Tests cnnbench/base/slow_steps.py.
"""

from __future__ import annotations

import pytest

from cnnbench.base.slow_steps import find_slow_steps, slow_step_cost_increase


@pytest.mark.parametrize(
    ("slow", "extra", "words"),
    [
        (range(10, 20), 0.02, ["10 consecutive steps"]),
        (range(10, 11), 0.2, ["one step of"]),
        (range(2, 40, 3), 0.2, ["every third step", "32.5 %"]),
        ((2, 3, 9, 31), 0.2, ["one step in 10", "10.0 %"]),
    ],
)
def test_slow_steps_have_their_number_and_their_whole_cost(slow, extra, words):
    found = find_slow_steps([0.02 + extra * (step in slow) for step in range(40)])
    assert [word for word in ("200.0 ms", *words) if word not in found.text] == []


def test_further_cost_of_slow_steps():
    few, many = (find_slow_steps([0.02 + 0.02 * (n % e == 0) for n in range(40)]) for e in (10, 2))
    assert slow_step_cost_increase(few, many) == pytest.approx(many.cost - few.cost)
    assert slow_step_cost_increase(None, many) == many.cost
    assert slow_step_cost_increase(many, None) == -many.cost
