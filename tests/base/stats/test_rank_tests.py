"""Rank tests and their intervals, against enumeration and SciPy.

Tests cnnbench/base/inference.py.
"""

import itertools
import math

import numpy as np
import pytest
import scipy  # which loads scipy.stats when it is used
from covering import slow_if
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base import inference


def test_six_against_six_perfectly_separated_is_significant():
    # asv's is_different said "not different" here and nowhere else: its pre-check was one-sided,
    # 1/924 < 0.002, its test two-sided, 2/924 > 0.002. One p value cannot contradict itself.
    for size in (5, 6, 7):
        low, high = list(range(size)), list(range(10, 10 + size))
        p = inference.mann_whitney_p(low, high)
        assert p == pytest.approx(2 / math.comb(2 * size, size))
        assert p == pytest.approx(inference.smallest_p(size, size))


def test_unequal_lengths_with_equal_centres_are_not_significant():
    # pyperf's compare_to raised on 5 against 6 values, swallowed that, and said "significant".
    five, six = [98.0, 99.0, 100.0, 101.0, 102.0], [97.5, 98.5, 99.5, 100.5, 101.5, 102.5]
    assert inference.mann_whitney_p(five, six) > 0.9
    interval = inference.hodges_lehmann_shift(five, six, 0.95)
    assert interval.estimate == pytest.approx(0.0)
    assert interval.low < 0 < interval.high


def test_constants_are_no_evidence():
    # pyperf again: identical constant samples were "significant".
    assert inference.mann_whitney_p([7.0] * 5, [7.0] * 5) == 1.0
    assert inference.mann_whitney_p([7.0] * 41, [7.0] * 3) == 1.0  # approximated
    assert inference.hodges_lehmann_shift([7.0] * 5, [7.0] * 5, 0.95) == inference.ShiftEstimate(
        0.0, 0.0, 0.0
    )
    assert inference.signed_rank_p([0.0] * 6) == 1.0
    assert inference.paired_shift([0.0] * 6, 0.95) == inference.ShiftEstimate(0.0, 0.0, 0.0)


def test_large_samples_agree_with_scipy_s_approximation():
    random = np.random.default_rng(5)
    x, y = random.integers(0, 30, 60).tolist(), random.integers(3, 33, 50).tolist()
    expected = scipy.stats.mannwhitneyu(x, y, method="asymptotic").pvalue
    assert inference.mann_whitney_p(x, y) == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_mann_whitney_enumerates_all_groupings(first, second):
    ranks = scipy.stats.rankdata([*first, *second])
    sums = [sum(choice) for choice in itertools.combinations(ranks, len(first))]
    observed = sum(ranks[: len(first)])
    lower = sum(s <= observed for s in sums) / len(sums)
    upper = sum(s >= observed for s in sums) / len(sums)
    p = inference.mann_whitney_p(first, second)
    assert p == pytest.approx(min(1.0, 2 * min(lower, upper)))
    assert p == pytest.approx(inference.mann_whitney_p(second, first))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=7))
def test_signed_rank_enumerates_all_signs(differences):
    kept = [d for d in differences if d]
    ranks = scipy.stats.rankdata([abs(d) for d in kept]) if kept else []
    signs = list(itertools.product((0, 1), repeat=len(kept)))
    sums = [sum(r for r, s in zip(ranks, choice, strict=True) if s) for choice in signs]
    observed = sum(r for r, d in zip(ranks, kept, strict=True) if d > 0)
    lower = sum(s <= observed for s in sums) / len(sums)
    upper = sum(s >= observed for s in sums) / len(sums)
    expected = min(1.0, 2 * min(lower, upper))
    assert inference.signed_rank_p(differences) == pytest.approx(expected)


def test_shift_by_hand():
    # Differences new - base of {1, 2, 4} and {5, 9}: 4 3 1 8 7 5, sorted 1 3 4 5 7 8: median 4.5.
    assert inference.hodges_lehmann_shift([1, 2, 4], [5, 9], 0.5).estimate == 4.5


def test_interval_of_the_shift_by_hand():
    # 4 against 4: P(U = 0) = 1/70 = 0.0143 is below 0.02, P(U <= 1) = 2/70 = 0.0286 is not, so
    # at 96 % nothing but the outermost of the 16 differences is an end: 11 - 4 and 14 - 1.
    assert inference.hodges_lehmann_shift(
        [1, 2, 3, 4], [11, 12, 13, 14], 0.96
    ) == inference.ShiftEstimate(10, 7, 13)
    # At 90 % (0.05 per side): P(U <= 1) = 0.0286 still fits, P(U <= 2) = 4/70 = 0.057 does not:
    # the second differences from outside. Sorted they begin 7 8 8 and end 12 12 13.
    assert inference.hodges_lehmann_shift(
        [1, 2, 3, 4], [11, 12, 13, 14], 0.90
    ) == inference.ShiftEstimate(10, 8, 12)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_samples_have_an_estimate_but_no_interval(size):
    values = [float(v) for v in range(size)]
    interval = inference.hodges_lehmann_shift(values, [v + 1 for v in values], 0.95)
    assert interval == inference.ShiftEstimate(1.0, None, None)


def test_bounds_of_many_samples_are_those_of_each():
    samples = np.random.default_rng(1).normal(size=(5, 45))
    for size in (4, 8, 45):  # too few, exact, approximated
        found = inference.paired_shift_intervals(samples[:, :size], 0.96)
        for row, shift in zip(samples[:, :size], zip(*found, strict=True), strict=True):
            one = inference.paired_shift(row.tolist(), 0.96)
            ends = (one.low, one.high) if one.low is not None else (-math.inf, math.inf)
            assert shift == pytest.approx((ends[0], one.estimate, ends[1]))


@pytest.mark.parametrize("size", [4, 8, 45])  # too few, exact, approximated
def test_bounds_of_samples_of_few_values_are_those_of_any_sample(size):
    values = np.random.default_rng(1).normal(size=6)
    drawn = np.random.default_rng(size).integers(6, size=(20, size))
    counts = np.array([np.bincount(row, minlength=6) for row in drawn])
    found = inference.shift_intervals_of_counts(values, counts, 0.96)
    expected = inference.paired_shift_intervals(values[drawn], 0.96)
    np.testing.assert_array_equal(found, expected)


def test_paired_shift_by_hand():
    # Means of all pairs of 1 2 6, each with itself too: 1 1.5 3.5 2 4 6, median (2 + 3.5) / 2.
    assert inference.paired_shift([1, 2, 6], 0.9).estimate == 2.75
    # Six differences: P(T = 0) = 1/64 = 0.0156 <= 0.02 < P(T <= 1) = 2/64: the outermost means.
    assert inference.paired_shift([1, 2, 3, 4, 5, 6], 0.96) == inference.ShiftEstimate(3.5, 1, 6)
    assert inference.paired_shift([1, 2, 3, 4, 5], 0.96) == inference.ShiftEstimate(3, None, None)


@pytest.mark.parametrize(("base", "new"), slow_if([(4, 7), (60, 45)], [(5, 5), (4, 7), (60, 45)]))
def test_intervals_hold_the_truth_as_often_as_they_promise(base, new):
    random = np.random.default_rng(base)
    draws = 400
    inside = 0
    for _ in range(draws):
        interval = inference.hodges_lehmann_shift(
            random.normal(size=base).tolist(), random.normal(2.0, size=new).tolist(), 0.9
        )
        inside += interval.low <= 2.0 <= interval.high
    # Three standard errors of 400 draws at 0.9 are 0.045; small samples reach more than 0.9.
    assert inside / draws > 0.9 - 0.045


def test_interval_and_test_agree():
    # The interval holds 0 exactly where the test at its level does not reject: same statistic.
    random = np.random.default_rng(8)
    for _ in range(200):
        x, y = random.normal(size=6).tolist(), random.normal(1.0, size=5).tolist()
        d = random.normal(0.7, size=8).tolist()
        for p, interval in (
            (inference.mann_whitney_p(x, y), inference.hodges_lehmann_shift(x, y, 0.95)),
            (inference.signed_rank_p(d), inference.paired_shift(d, 0.95)),
        ):
            assert (p <= 0.05) == (not interval.low <= 0 <= interval.high)


def test_smallest_p():
    # Two-sided for n per side, as measured with SciPy: 2: .333, 3: .100, 4: .029, 5: .0079.
    found = [inference.smallest_p(n, n) for n in (1, 2, 3, 4, 5)]
    assert found == pytest.approx([1.0, 2 / 6, 2 / 20, 2 / 70, 2 / 252])
    assert inference.smallest_p(9, 6, paired=True) == 2 / 64
    assert inference.smallest_p(1, 1, paired=True) == 1.0
    assert inference.smallest_p(4, 7) == inference.smallest_p(7, 4) == pytest.approx(2 / 330)


def test_false_discoveries_by_hand():
    # Sorted 0.01 0.02 0.03 0.5, times 4, 4/2, 4/3, 1, and never above a later value.
    adjusted = inference.adjusted_p_values([0.03, 0.01, 0.5, 0.02], [0.25] * 4)
    assert adjusted == pytest.approx([0.04, 0.04, 0.5, 0.04])
    # One of two tests, and both of them.
    halves = [0.5, 0.5]
    assert inference.adjusted_p_values([0.01, 0.9], halves) == pytest.approx([0.02, 0.9])
    assert inference.adjusted_p_values([0.01, 0.03], halves) == pytest.approx([0.02, 0.03])
    # With four rejected tests, the first one might use 2 alpha, but never uses more than alpha.
    large = inference.adjusted_p_values([0.03, 0.001, 0.001, 0.001], [0.5, 0.1, 0.2, 0.2])
    assert large[0] == pytest.approx(0.03)
    assert inference.adjusted_p_values([], []) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=6))
def test_rejected_hypotheses_are_those_of_benjamini_and_hochberg(p_values):
    adjusted = inference.adjusted_p_values(p_values, [1 / len(p_values)] * len(p_values))
    expected = scipy.stats.false_discovery_control(p_values)
    assert adjusted == pytest.approx(expected.tolist())


def test_standard_deviation_by_hand():
    # Mean 3, squares of the deviations 4 1 1 4, over n - 1 = 3.
    assert inference.standard_deviation([1, 2, 4, 5]) == pytest.approx(math.sqrt(10 / 3))


@pytest.mark.parametrize(("size", "is_exact"), [(40, True), (41, False)])
def test_samples_of_more_than_forty_values_are_approximated(size, is_exact):
    random = np.random.default_rng(size)
    x, y = random.normal(size=size).tolist(), random.normal(0.3, size=12).tolist()
    method = "exact" if is_exact else "asymptotic"
    for first, second in ((x, y), (y, x)):
        expected = scipy.stats.mannwhitneyu(first, second, method=method).pvalue
        assert inference.mann_whitney_p(first, second) == pytest.approx(expected, rel=1e-9)
    method = "exact" if is_exact else "approx"
    expected = scipy.stats.wilcoxon(x, method=method, correction=not is_exact).pvalue
    assert inference.signed_rank_p(x) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [
        # The tables of Hollander and Wolfe: 0.95 for 10 and 20 pairs, 10 against 10, 5 against 8.
        ([10], 9),
        ([20], 53),
        ((10, 10), 24),
        ((5, 8), 7),
        # Half of 861 values, less 1.96 standard deviations: the variance is 41 * 42 * 83 / 24.
        ([41], 279),
        # Half of 3,000 and of 410: the variances are 50 * 60 * 111 / 12 and 41 * 10 * 52 / 12.
        ((50, 60), 1173),
        ((41, 10), 122),
        ((1, 41), 0),
    ],
)
def test_ranks_of_the_ends_of_intervals(sizes, rank):
    assert inference.interval_end_rank(sizes, 0.95) == rank
