"""After how many pairs a verdict may be given, and how much of alpha it may spend.

Tests cnnbench/base/inference.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy  # which loads scipy.stats when it is used

from cnnbench.base.inference import (
    MOST_PAIRS,
    AnalysisSchedule,
    InterimAnalysis,
    interim_analyses,
    levels_of_analyses,
    paired_shift,
    sequential_p,
    sequential_shift,
    signed_rank_p,
    smallest_p,
)


def test_shares_of_sixteen_pairs_by_hand():
    found = interim_analyses(16, 0.04)
    # Of 0.8: (8/16)^2, (12/16)^2 and all.
    assert found == ((8, 0.2), (12, 0.45), (16, 0.8))


@pytest.mark.parametrize("alpha", [0.2, 0.04, 0.01, 0.002])
def test_every_look_can_be_reached(alpha):
    for pairs in (1, 6, 7, 8, 9, 12, 13, 20, 33, 100):
        check_looks(pairs, alpha)


def check_looks(pairs, alpha):
    found = interim_analyses(pairs, alpha)
    assert found[-1] == (pairs, pytest.approx(0.8))
    numbers = [analysis.pairs for analysis in found]
    assert numbers == sorted(set(numbers))
    for analysis in found[:-1]:
        least = smallest_p(analysis.pairs, analysis.pairs, paired=True)
        assert alpha * analysis.spent >= least


def test_a_look_out_of_reach_leaves_its_share_to_the_next():
    # After 8 of 32 pairs 0.032 / 16 = 0.002 would be spent, and 2 / 2^8 = 0.0078 is needed.
    first = interim_analyses(32, 0.04)[0]
    assert first == InterimAnalysis(12, pytest.approx(0.8 * (12 / 32) ** 2))
    # Half of the level of the first analysis is out of reach of 8 pairs, and is not lost.
    assert interim_analyses(16, 0.02) == ((12, 0.45), (16, 0.8))


@pytest.mark.parametrize("sessions", [(16, 20, 24, 28), (8, 12, 16, 40), (6, 100), (16, 1000)])
def test_an_experiment_that_goes_on_never_spends_more_than_alpha(sessions):
    planned, made = sessions[0], ()
    for pairs in sessions:
        found = interim_analyses(pairs, 0.04, planned=planned, made=made)
        assert found[-1].pairs == pairs
        assert all(one.pairs > made[-1].pairs for one in found if made)
        made = (*made, *found)
    spent = [one.spent for one in made]
    assert spent == sorted(spent)
    # What is left at the end does not depend on the sessions on the way.
    assert spent[-1] == pytest.approx(1 - 0.2 * planned / pairs)
    assert spent[-1] < 1
    # Where nothing is to be added, the last analysis stands.
    assert interim_analyses(pairs, 0.04, planned=planned, made=made) == made[-1:]


def test_further_pairs_can_be_significant():
    def first(planned, alpha=0.04):
        made = interim_analyses(planned, alpha)
        schedule = AnalysisSchedule(alpha, planned, made)
        return next(schedule.significant_pair_counts(planned, alpha))

    assert next(AnalysisSchedule(0.04).significant_pair_counts(4, 0.04)) == 8
    # Four pairs could not be significant, so they have spent nothing.
    assert first(4) == 8
    # After 8 of 8 pairs, 0.0027 more may be spent by 12: 2 / 2^12 = 0.0005.
    assert first(8) == 12
    # At a level of 0.01, 8 of 8 pairs reach 0.008, and 12 pairs are left 0.00067.
    assert first(8, 0.01) == 12


def test_numbers_of_pairs_end_where_advice_does():
    continued = AnalysisSchedule(0.04, 16, interim_analyses(16, 0.04))
    for schedule, measured in ((continued, 16), (AnalysisSchedule(0.04), 0)):
        *_, last = schedule.significant_pair_counts(measured, 0.04)
        assert MOST_PAIRS < last - measured <= MOST_PAIRS + 8


@pytest.mark.parametrize("ties", [False, True])
def test_the_p_value_is_the_smallest_alpha_whose_boundaries_are_crossed(ties):
    # Two looks, 5 and 9 differences, by hand: P(look 1 rejects, or look 2 reaches the sum) is at
    # most the share of alpha that is spent.
    looks = (InterimAnalysis(5, 0.4), InterimAnalysis(9, 1.0))
    generator = np.random.default_rng(3)
    for _ in range(20):
        values = generator.normal(0.6, 1, 9)
        values = np.round(values * 2) / 2 if ties else values
        p = sequential_p(values, looks)
        kept = [values[: look.pairs] for look in looks]
        ranks = [2 * scipy.stats.rankdata(np.abs(some[some != 0])) for some in kept]
        places = [np.flatnonzero(some) for some in kept]
        signed = [np.zeros(9) for _ in looks]
        for own, place, rank in zip(signed, places, ranks, strict=True):
            own[place] = rank
        sums = [abs(float((np.sign(values) * own).sum())) for own in signed]
        all_signs = np.array([*itertools.product((-1, 1), repeat=9)])
        first, second = (np.abs(all_signs @ own) for own in signed)

        def least_alpha(first=first, second=second, observed=sums[1]):
            for alpha in np.linspace(0.001, 1, 1000):
                tail = [s for s in np.unique(first) if (first >= s).mean() <= 0.4 * alpha]
                crossed = first >= min(tail, default=np.inf)
                if (crossed | (second >= observed)).mean() <= alpha:
                    return alpha
            return 1.0

        assert p == pytest.approx(least_alpha(), abs=0.0011)


def test_boundaries_of_three_looks_are_those_of_all_combinations_of_signs():
    looks, generator = interim_analyses(16, 0.04), np.random.default_rng(4)
    signs = 1 - 2 * (np.arange(1 << 16)[:, None] >> np.arange(16) & 1)
    found = []
    for _ in range(12):
        values, crossed = generator.normal(0.6, 1, 16), np.zeros(1 << 16, bool)
        for look in looks:
            ranks = np.zeros(16)
            ranks[: look.pairs] = scipy.stats.rankdata(np.abs(values[: look.pairs]))
            sums, left = np.abs(signs @ ranks), 0.04 * look.spent - crossed.mean()
            kept = [s for s in np.unique(sums) if (~crossed & (sums >= s)).mean() <= left + 1e-12]
            boundary = min(kept, default=math.inf)
            crossed |= sums >= boundary
        found.append(abs((np.sign(values) * ranks).sum()) >= boundary)
        assert (sequential_p(values, looks) <= 0.04) == found[-1]
    assert 2 < sum(found) < 10


def test_one_look_is_the_signed_rank_test_and_its_interval():
    values = np.random.default_rng(1).normal(0.5, 1, 8)
    first = (InterimAnalysis(8, 0.2),)
    assert sequential_p(values, first) == pytest.approx(signed_rank_p(values) / 0.2)
    assert sequential_shift(values, first, 0.04) == paired_shift(values, 1 - 0.008)
    # A first look that cannot reject leaves everything to the second one.
    both = (InterimAnalysis(2, 0.1), InterimAnalysis(8, 1.0))
    assert sequential_p(values, both) == pytest.approx(signed_rank_p(values), rel=1e-3)
    assert sequential_shift(values, both, 0.04) == paired_shift(values, 0.96)


def test_boundaries_use_more_than_levels_that_add_up():
    # Single levels of three looks that together spend 0.032: by the union bound, they were 0.008,
    # 0.01 and 0.014.
    levels = levels_of_analyses(interim_analyses(16, 0.04), 0.04)
    assert levels == (pytest.approx(0.0078, abs=1e-4), *levels[1:])
    assert 0.01 < levels[1] < 0.018
    assert 0.014 < levels[2] < 0.032
    assert sum(levels) > 0.032


def test_more_than_sixteen_pairs_are_simulated_the_same_every_time():
    made = interim_analyses(16, 0.04)
    looks = (*made, *interim_analyses(24, 0.04, planned=16, made=made))
    values = np.random.default_rng(2).normal(0.4, 1, 24)
    p = sequential_p(values, looks)
    assert p == sequential_p(values, looks)
    assert p > signed_rank_p(values)
    # Stronger evidence has a smaller p-value; all signs alike have the smallest.
    assert 0 < sequential_p(np.abs(values), looks) < p
    shift = sequential_shift(values, looks, 0.04)
    assert shift.low < paired_shift(values, 0.96).low < shift.estimate < shift.high


@pytest.mark.slow
def test_no_pair_is_told_apart_from_itself_more_often_than_alpha_says():
    # The chance that any analysis finds a change where there is none, or that any interval misses
    # the centre, by drawing. The noise grows from pair to pair.
    generator, plan, draws = np.random.default_rng(5), interim_analyses(16, 0.04), 250
    alarms = misses = 0
    for _ in range(draws):
        values = generator.normal(0, np.linspace(1, 3, 16))
        looks = [(values[: plan[n - 1].pairs], plan[:n]) for n in (1, 2, 3)]
        alarms += any(sequential_p(*look) <= 0.04 for look in looks)
        shifts = [sequential_shift(some - 2.0, made, 0.04) for some, made in looks[1:]]
        misses += any(not shift.low <= -2.0 <= shift.high for shift in shifts)
    # 0.032 may be spent, and three standard errors of the drawing.
    most = 0.032 + 3 * math.sqrt(0.032 * 0.968 / draws)
    assert 0.01 < alarms / draws <= most
    assert misses / draws <= most
