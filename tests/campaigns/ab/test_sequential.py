"""After how many pairs a verdict may be given, and at which level."""

from __future__ import annotations

import math
import random

import pytest

from cnnbench.base.stats.rank_tests import signed_rank_p, smallest_p
from cnnbench.campaigns.ab.sequential import InterimAnalysis, interim_analyses


def test_levels_of_sixteen_pairs_by_hand():
    found = interim_analyses(16, 0.04)
    assert [analysis.pairs for analysis in found] == [8, 12, 16]
    # 0.04 * (8/16)^2, 0.04 * (12/16)^2 less that, and the rest.
    assert [analysis.alpha for analysis in found] == pytest.approx([0.01, 0.0125, 0.0175])


@pytest.mark.parametrize("pairs", [1, 6, 7, 8, 9, 12, 13, 20, 33, 100])
@pytest.mark.parametrize("alpha", [0.2, 0.04, 0.01, 0.002])
def test_levels_add_up_and_every_look_can_be_reached(pairs, alpha):
    found = interim_analyses(pairs, alpha)
    assert math.isclose(sum(analysis.alpha for analysis in found), alpha)
    assert found[-1].pairs == pairs
    numbers = [analysis.pairs for analysis in found]
    assert numbers == sorted(set(numbers))
    for analysis in found:
        least = smallest_p(analysis.pairs, analysis.pairs, paired=True)
        # Too few pairs for alpha itself are too few for one analysis, too.
        assert analysis.alpha >= least or (len(found) == 1 and alpha < least)


def test_a_look_out_of_reach_leaves_its_share_to_the_next():
    # After 8 of 32 pairs 0.04 / 16 = 0.0025 would be spent, and 2 / 2^8 = 0.0078 is needed.
    first = interim_analyses(32, 0.04)[0]
    assert first == InterimAnalysis(12, pytest.approx(0.04 * (12 / 32) ** 2))


def test_an_early_look_leaves_the_last_one_what_it_needs():
    # 0.0079 of 0.01 would be spent after 8 of 9 pairs, and 2 / 2^9 = 0.0039 is needed at the end.
    assert interim_analyses(9, 0.01) == (InterimAnalysis(9, 0.01),)
    assert [analysis.pairs for analysis in interim_analyses(9, 0.04)] == [8, 9]


def test_one_look_where_pairs_are_fixed():
    assert interim_analyses(16, 0.04, sequential=False) == (InterimAnalysis(16, 0.04),)


def test_no_pair_is_told_apart_from_itself_more_often_than_alpha_says():
    # The chance that any analysis finds a change where there is none, by drawing.
    generator, plan, draws = random.Random(5), interim_analyses(16, 0.04), 4000
    alarms = 0
    for _ in range(draws):
        pairs = [generator.gauss(0, 1) for _ in range(16)]
        alarms += any(signed_rank_p(pairs[: analysis.pairs]) <= analysis.alpha for analysis in plan)
    # 0.04 and three standard errors of the drawing.
    assert alarms / draws <= 0.04 + 3 * math.sqrt(0.04 * 0.96 / draws)
