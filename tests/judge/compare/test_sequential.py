"""After how many pairs a verdict may be given, and at which level."""

from __future__ import annotations

import math
import random

import pytest

from cnnbench.base.inference import (
    AnalysisSchedule,
    InterimAnalysis,
    interim_analyses,
    signed_rank_p,
    smallest_p,
)


def test_levels_of_sixteen_pairs_by_hand():
    found = interim_analyses(16, 0.04)
    assert [analysis.pairs for analysis in found] == [8, 12, 16]
    # Of 0.8 * 0.04: a quarter, (12/16)^2 less that, and the rest.
    assert [analysis.alpha for analysis in found] == pytest.approx([0.008, 0.01, 0.014])


@pytest.mark.parametrize("pairs", [1, 6, 7, 8, 9, 12, 13, 20, 33, 100])
@pytest.mark.parametrize("alpha", [0.2, 0.04, 0.01, 0.002])
def test_levels_add_up_and_every_look_can_be_reached(pairs, alpha):
    found = interim_analyses(pairs, alpha)
    assert math.isclose(sum(analysis.alpha for analysis in found), 0.8 * alpha)
    assert found[-1].pairs == pairs
    numbers = [analysis.pairs for analysis in found]
    assert numbers == sorted(set(numbers))
    for analysis in found:
        least = smallest_p(analysis.pairs, analysis.pairs, paired=True)
        # Too few pairs for alpha itself are too few for one analysis, too.
        assert analysis.alpha >= least or (len(found) == 1 and 0.8 * alpha < least)


def test_a_look_out_of_reach_leaves_its_share_to_the_next():
    # After 8 of 32 pairs 0.032 / 16 = 0.002 would be spent, and 2 / 2^8 = 0.0078 is needed.
    first = interim_analyses(32, 0.04)[0]
    assert first == InterimAnalysis(12, pytest.approx(0.032 * (12 / 32) ** 2))


def test_an_early_look_leaves_the_last_one_what_it_needs():
    # 0.0079 of 0.01 would be spent after 8 of 9 pairs, and 2 / 2^9 = 0.0039 is needed at the end.
    assert interim_analyses(9, 0.0125) == (InterimAnalysis(9, pytest.approx(0.01)),)
    assert [analysis.pairs for analysis in interim_analyses(9, 0.04)] == [8, 9]
    # Half of the level of the first analysis is out of reach of 8 pairs, and is not lost.
    first, last = interim_analyses(16, 0.04, share=0.5)
    assert (first, last) == (
        InterimAnalysis(12, pytest.approx(0.018)),
        InterimAnalysis(16, pytest.approx(0.014)),
    )


@pytest.mark.parametrize("sessions", [(16, 20, 24, 28), (8, 12, 16, 40), (6, 100), (16, 1000)])
def test_an_experiment_that_goes_on_never_spends_more_than_alpha(sessions):
    planned, made = sessions[0], ()
    for pairs in sessions:
        found = interim_analyses(pairs, 0.04, planned=planned, made=made)
        assert found[-1].pairs == pairs
        assert all(one.pairs > made[-1].pairs for one in found if made)
        assert all(one.alpha > 0 for one in found)
        made = (*made, *found)
    # What is left at the end does not depend on the sessions on the way.
    spent = sum(one.alpha for one in made)
    assert spent == pytest.approx(0.04 * (1 - 0.2 * planned / pairs))
    assert spent < 0.04
    # Where nothing is to be added, the last level stands.
    assert interim_analyses(pairs, 0.04, planned=planned, made=made) == made[-1:]


def test_pairs_to_go_on_with_can_reach_their_level():
    made = interim_analyses(4, 0.04)
    assert next(AnalysisSchedule(0.04).pair_counts_that_can_be_significant(4)) == 8
    # By 8 pairs 0.004 more may be spent, by 12 0.0053: 2 / 2^8 = 0.0078, 2 / 2^12 = 0.0005.
    assert next(AnalysisSchedule(0.04, 4, made).pair_counts_that_can_be_significant(4)) == 12


def test_no_pair_is_told_apart_from_itself_more_often_than_alpha_says():
    # The chance that any analysis finds a change where there is none, by drawing.
    generator, plan, draws = random.Random(5), interim_analyses(16, 0.04), 4000
    alarms = 0
    for _ in range(draws):
        pairs = [generator.gauss(0, 1) for _ in range(16)]
        alarms += any(signed_rank_p(pairs[: analysis.pairs]) <= analysis.alpha for analysis in plan)
    # 0.04 and three standard errors of the drawing.
    assert alarms / draws <= 0.04 + 3 * math.sqrt(0.04 * 0.96 / draws)
