"""After how many pairs a verdict may be given, and how much of alpha it may spend.

Tests cnnbench/base/inference.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cnnbench.base.inference import (
    MOST_PAIRS,
    AnalysisSchedule,
    InterimAnalysis,
    alpha_spent_by,
    analyses_until,
    interim_analyses,
    nominal_levels,
    pair_counts_to_try,
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


def test_every_look_can_be_reached():
    for alpha, pairs in itertools.product((0.2, 0.04, 0.002), (1, 6, 7, 8, 9, 12, 13, 20, 33, 100)):
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


def ranked(values):
    """Twice the midranks of the absolute values."""
    sizes = np.abs(values)
    return (sizes[:, None] > sizes).sum(1) + (sizes[:, None] >= sizes).sum(1) + 1


@pytest.mark.parametrize("ties", [False, True])
def test_the_p_value_is_the_smallest_alpha_whose_boundaries_are_crossed(ties):
    # Two looks, 5 and 9 differences, by hand: P(look 1 rejects, or look 2 reaches the sum) is at
    # most the share of alpha that is spent.
    looks = (InterimAnalysis(5, 0.4), InterimAnalysis(9, 1.0))
    generator, alphas = np.random.default_rng(3), np.linspace(0.001, 1, 1000)
    signs = np.array([*itertools.product((-1, 1), repeat=9)])
    for _ in range(20):
        values = generator.normal(0.6, 1, 9)
        values = np.round(values * 2) / 2 if ties else values
        ranks = np.zeros((2, 9))
        for own, look in zip(ranks, looks, strict=True):
            place = np.flatnonzero(values[: look.pairs])
            own[place] = ranked(values[place])
        first, second = np.abs(signs @ ranks.T).T
        reached = second >= abs((np.sign(values) * ranks[1]).sum())
        # Boundaries of the first look, and what crosses each, or reaches the sum.
        boundaries = [*np.unique(first), np.inf]
        tails = np.array([(first >= one).mean() for one in boundaries])
        crossed = np.array([((first >= one) | reached).mean() for one in boundaries])
        least = [crossed[np.argmax(tails <= 0.4 * alpha)] <= alpha for alpha in alphas]
        assert sequential_p(values, looks) == pytest.approx(alphas[np.argmax(least)], abs=0.0011)


def test_boundaries_of_three_looks_are_those_of_all_combinations_of_signs():
    looks, generator = interim_analyses(16, 0.04), np.random.default_rng(4)
    signs = 1 - 2 * (np.arange(1 << 16)[:, None] >> np.arange(16) & 1)
    found = []
    for _ in range(12):
        values, crossed = generator.normal(0.6, 1, 16), np.zeros(1 << 16, bool)
        for look in looks:
            ranks = np.zeros(16, int)
            ranks[: look.pairs] = ranked(values[: look.pairs])
            sums, left = np.abs(signs @ ranks), 0.04 * look.spent - crossed.mean()
            numbers = np.bincount(sums[~crossed], minlength=ranks.sum() + 2)
            tails = numbers[::-1].cumsum()[::-1] / len(signs)
            boundary = np.argmax(tails <= left + 1e-12)
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


@pytest.mark.parametrize(
    ("alpha", "ends"),
    [
        # P(T = 0) = 1/256 a side, P(T <= 1) = 2/256, P(T <= 2) = 3/256 and P(T <= 3) = 5/256.
        (0.005, (None, None)),
        (0.01, (0.0, 127.0)),
        (0.017, (0.5, 95.0)),
    ],
)
def test_intervals_of_two_looks_end_at_the_averages_from_outside(alpha, ends):
    # The averages of all pairs begin with 0, (0 + 1) / 2 and 1, and end with 127 and 190 / 2.
    values = [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0]
    shift = sequential_shift(values, (InterimAnalysis(2, 0.1), InterimAnalysis(8, 1.0)), alpha)
    assert (shift.low, shift.high) == ends
    assert shift.estimate == paired_shift(values, 0.9).estimate


def test_intervals_hold_the_centres_that_the_test_keeps():
    looks = (InterimAnalysis(5, 0.4), InterimAnalysis(9, 1.0))
    for seed, alpha in enumerate((0.03, 0.1, 0.3)):
        values = np.random.default_rng(seed).normal(3, 20, 9)
        rows, columns = np.triu_indices(9)
        ends = np.sort((values[rows] + values[columns]) / 2)
        centres = [ends[0] - 50, *(ends[1:] + ends[:-1]) / 2, ends[-1] + 50]
        kept = [sequential_p(values - centre, looks) > alpha for centre in centres]
        assert not kept[0]
        assert not kept[-1]
        first, last = kept.index(True), len(kept) - 1 - kept[::-1].index(True)
        shift = sequential_shift(values, looks, alpha)
        assert (shift.low, shift.high) == (ends[first - 1], ends[last])


@pytest.mark.parametrize(
    ("pairs", "planned", "share"),
    [(4, 16, 0.05), (16, 16, 0.8), (17, 16, 1 - 0.2 * 16 / 17), (32, 16, 0.9)],
)
def test_shares_of_alpha_by_hand(pairs, planned, share):
    assert alpha_spent_by(pairs, planned) == pytest.approx(share)


def test_analyses_end_where_the_pairs_do():
    assert interim_analyses(16, 0.04, sequential=False) == ((16, 1.0),)
    # After 16 pairs the distance between analyses grows to 8, after 32 pairs to 12.
    found = [one.pairs for one in interim_analyses(60, 0.2)]
    assert found == [12, 16, 20, 28, 36, 48, 60]  # the level of 8 pairs is out of reach
    made = interim_analyses(16, 0.2)
    # The next one after 16 of 16 pairs would be at 20, and the one after that too near to 27.
    more = [
        [one.pairs for one in interim_analyses(pairs, 0.2, planned=16, made=made)]
        for pairs in (16, 20, 27, 28, 36)
    ]
    assert more == [[16], [20], [27], [20, 28], [20, 28, 36]]


def test_looks_up_to_a_number_of_pairs():
    analyses = interim_analyses(16, 0.04)
    assert analyses_until(analyses, 12) == (analyses[0], (12, 0.8))
    assert analyses_until(analyses, 13) == (*analyses[:2], (13, 0.8))
    assert analyses_until(analyses, 16) == analyses
    assert analyses_until(analyses, 0) == analyses_until((), 16) == ()


def test_numbers_of_pairs_to_consider():
    assert [*itertools.islice(pair_counts_to_try(9, 4, 8), 6)] == [12, 16, 20, 28, 36, 48]
    *_, before, last = pair_counts_to_try(8, 8, MOST_PAIRS)
    assert (before, last) == (8 + MOST_PAIRS - 8, 8 + MOST_PAIRS)


@pytest.mark.parametrize("pairs", [(8, 40), (8, 41)])
def test_levels_of_long_experiments_are_near_what_they_spend(pairs):
    # The first analysis cannot reject, so the last one alone has all of alpha, less the margin.
    analyses = [
        InterimAnalysis(number, share) for number, share in zip(pairs, (0.01, 1.0), strict=True)
    ]
    first, last = nominal_levels(analyses, 0.04)
    assert first == 0.0
    assert 0.035 < last <= 0.04


@pytest.mark.parametrize(
    ("pairs", "alpha", "p", "ends", "levels"),
    [
        (9, 0.2, 0.356836, (-0.067906, 1.112688), (0.109375, 0.128906)),
        (12, 0.2, 0.243554, (-0.016652, 1.022942), (0.0546875, 0.129395)),
        (16, 0.2, 0.1408, (0.071176, 0.737304), (0.0390625, 0.0639648, 0.116669)),
        (17, 0.04, 0.10966, (-0.067906, 1.014382), (0.0122070, 0.0182495, 0.0174255)),
        (24, 0.04, 0.0257201, (0.0483897, 0.83793), (0.00683594, 0.0109863, 0.0153122, 0.0178703)),
        (
            *(40, 0.04, 0.0199362, (0.0391748, 0.794475)),
            (0.00244141, 0.00268555, 0.00365448, 0.00885972, 0.0145919, 0.0135577),
        ),
    ],
)
def test_numbers_of_interim_analyses(pairs, alpha, p, ends, levels):
    """With enumerated and with simulated signs; they are the same every time."""
    analyses = interim_analyses(pairs, alpha)
    values = np.random.default_rng(2).normal(0.4, 1, pairs)
    assert sequential_p(values, analyses) == pytest.approx(p, rel=1e-5)
    shift = sequential_shift(values, analyses, alpha)
    assert (shift.low, shift.high) == pytest.approx(ends, rel=1e-4)
    assert shift.estimate == paired_shift(values, 0.5).estimate
    assert nominal_levels(analyses, alpha) == pytest.approx(levels, rel=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 6 + [1.0] * 6,
        [1.0] * 9 + [2.0] * 3,
        [0.0, *[1.0] * 8, 2.0, 2.0, 2.0],
        [0.0] * 3 + [1.0] * 6 + [2.0] * 3,
        [*[0.0, 1.0] * 5, 0.5, 0.5],
    ],
)
def test_intervals_of_few_different_values_contain_the_estimate(values):
    """Between two of the averages, all centres may be rejected."""
    alpha = 0.2
    analyses = InterimAnalysis(2, 0.1), InterimAnalysis(12, 1.0)
    shift = sequential_shift(values, analyses, alpha)
    assert shift.low <= shift.estimate <= shift.high
    kept = [
        place / 4
        for place in range(-1, 10)
        if sequential_p(np.subtract(values, place / 4), analyses) > alpha
    ]
    assert shift.low <= min(kept) <= max(kept) <= shift.high
    zeros = sequential_shift([1.0, 0.0, -1.0, 1.0] * 6, interim_analyses(24, 0.2), 0.2)
    assert zeros.low <= zeros.estimate <= zeros.high


def test_differences_of_0_and_ties_have_numbers_too():
    values = np.round(np.random.default_rng(1).normal(0.4, 1, 24))
    analyses = interim_analyses(24, 0.2)
    assert sequential_p(values, analyses) == pytest.approx(0.00527899, rel=1e-5)
    assert sequential_shift(values, analyses, 0.2) == (0.5, 0.5, 0.5)
    other = np.round(np.random.default_rng(0).normal(0.4, 1, 24))
    assert sequential_p(other, analyses) == pytest.approx(0.198084, rel=1e-5)
    assert sequential_shift(other, analyses, 0.2) == (0.5, 0.0, 0.5)
