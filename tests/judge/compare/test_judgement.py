"""Verdicts on plain values, worked out by hand and by drawing.

Tests cnnbench/judge/compare/estimate.py.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cnnbench.base.inference import AnalysisSchedule, interim_analyses
from cnnbench.judge.compare import (
    METRICS,
    Case,
    Policy,
    Samples,
    Verdict,
    judge,
    judge_all,
)
from cnnbench.judge.compare.estimate import (
    exceeds,
    from_test_scale,
    smallest_relevant_change,
    statistics_of,
    to_test_scale,
)
from cnnbench.judge.metrics.judged import BUS_BANDWIDTH

# Five processes of 100 images/sec, give or take 0.3 %.
BASE = [100.0, 100.2, 99.8, 100.1, 99.9]
THROUGHPUT, MEMORY, ACCURACY = (METRICS[name] for name in ("throughput", "memory", "accuracy"))
SLOWER, FASTER, SAME, OPEN = (
    Verdict[name] for name in ("SLOWER", "FASTER", "SAME", "INCONCLUSIVE")
)


def scaled(values, factor):
    return [value * factor for value in values]


def judged(base, new, policy=None, **more):
    return judge(Samples(base, new, **more), policy or Policy())


def pairs_of(*changes, **more):
    """The judgement of pairs whose changes are given in per cent."""
    new = [100.0 * (1 + change / 100) for change in changes]
    return judged([100.0] * len(new), new, paired=True, **more)


def case(base, new):
    return Case(Samples(base, new))


def test_slower():
    # All of NEW below all of BASE: p = 2/252 = 0.0079. Quotients of equal places are 0.9, and of
    # the 25 quotients as many lie above as below, so the shift is -10 %, beyond 3 %.
    found = judged(BASE, scaled(BASE, 0.9))
    assert found.verdict is SLOWER
    assert found.change == pytest.approx(-0.1)
    assert found.p == pytest.approx(2 / 252)
    assert found.floor == 0.03
    # Ends of the interval at 96 %: P(U <= 1) = 2/252 = 0.0079 <= 0.02, P(U <= 2) = 4/252 = 0.0159
    # too, P(U <= 3) = 7/252 = 0.028 not: the third quotients from outside. Sorted from below:
    # 99.8/100.2, then 99.9/100.2 and 99.8/100.1 (0.9 times each).
    assert found.low == pytest.approx(0.9 * 99.9 / 100.2 - 1, abs=2e-5)
    assert found.high == pytest.approx(0.9 * 100.2 / 99.9 - 1, abs=2e-5)


@pytest.mark.parametrize(
    ("base", "new", "more", "verdict"),
    [
        (BASE, scaled(BASE, 1.1), {}, FASTER),
        # 2/70 = 0.029 is below alpha = 0.04, but not below that of memory (0.01).
        ([100] * 4, [90] * 4, {}, SLOWER),
        ([1e9] * 4, [2e9] * 4, {"metric": MEMORY}, OPEN),
        ([1e9] * 5, [2e9] * 5, {"metric": MEMORY}, SLOWER),
        ([100] * 4, [100] * 4, {}, SAME),
        ([100] * 4, [90] * 3, {}, OPEN),
        # Unequal counts.
        (BASE, [*scaled(BASE, 0.9), 91.0], {}, SLOWER),
        (BASE, [*BASE, 100.0], {}, SAME),
        ([], BASE, {}, OPEN),
        (BASE, [], {}, OPEN),
        ([], [], {}, OPEN),
        ([1e-300] * 5, [1e300] * 5, {}, FASTER),
        ([1e300] * 5, [1e-300] * 5, {}, SLOWER),
        # Same is a statement about the whole interval; noise is not the same.
        (BASE, BASE[::-1], {}, SAME),
        ([90, 95, 100, 105, 110], [89, 96, 99, 106, 111], {}, OPEN),
        # 0 is an accuracy, if not a good one.
        ([0.0] * 5, [0.0] * 5, {"metric": ACCURACY}, SAME),
        ([0.0] * 5, [math.nan] * 5, {"metric": ACCURACY}, Verdict.FAILED),
        # Pairs that prove nothing.
        (BASE, scaled(BASE, 0.9), {"paired": True}, OPEN),
        (BASE, [*BASE, 100.0], {"paired": True}, OPEN),
    ],
)
def test_verdicts(base, new, more, verdict):
    assert judged(base, new, **more).verdict is verdict


SPREAD = [99.2, 99.6, 100.0, 100.4, 100.8]
HUNDREDS = [100.0] * 5
LIMITS = {
    "a change of nothing has no minus": (HUNDREDS, [99.999] * 5, {}, SAME),
    # Shares are not symmetric, quotients are: 1/1.031 is -3.007 %, and the way back +3.1 %.
    "3.1 % less": (HUNDREDS, [100 / 1.031] * 5, {}, SLOWER),
    "3.1 % more": ([100 / 1.031] * 5, HUNDREDS, {}, FASTER),
    "2.9 % less": (HUNDREDS, [100 / 1.029] * 5, {}, SAME),
    # All of NEW are below all of BASE (p = 0.0079), but it may be by less than the floor.
    "lower, perhaps by less": ([98, 99, 100, 101, 102], [87, 90, 93, 96, 97.5], {}, OPEN),
    # 98 against 100, +-0.5: certainly lower, but 2 % is within the floor of 3 % and the interval
    # reaches beyond it.
    "certainly lower by 2 %": (SPREAD, scaled(SPREAD, 0.98), {}, OPEN),
    "a threshold of 15 %": (BASE, scaled(BASE, 0.9), {"policy": Policy(threshold=0.15)}, SAME),
    # Floors are limits both ways: one of 100 % is 50 % downwards, 20 % less is undone by 25 %.
    "60 % less, 100 %": (HUNDREDS, [40.0] * 5, {"policy": Policy(threshold=1.0)}, SLOWER),
    "45 % less, 100 %": (HUNDREDS, [55.0] * 5, {"policy": Policy(threshold=1.0)}, SAME),
    "19 % less, 25 %": (HUNDREDS, [81.0] * 5, {"policy": Policy(threshold=0.25)}, SAME),
    "21 % less, 25 %": (HUNDREDS, [79.0] * 5, {"policy": Policy(threshold=0.25)}, SLOWER),
}


def test_limits_of_verdicts():
    found = {title: judged(*sides, **more).verdict for title, (*sides, more, _) in LIMITS.items()}
    assert found == {title: verdict for title, (*_, verdict) in LIMITS.items()}


WORDS = {
    ("memory", 1e9, 1.1e9): "more",
    ("memory", 1e9, 0.9e9): "less",
    ("startup", 10.0, 13.0): "longer",
    ("startup", 10.0, 7.0): "quicker",
    ("startup", 10.0, 11.5): "same",
    ("cpu_time", 1.0, 1.1): "more",
    ("cpu_time", 1.0, 0.9): "less",
    ("accuracy", 0.75, 0.7449): "worse",
    ("accuracy", 0.75, 0.7551): "better",
    ("accuracy", 0.75, 0.745): "same",  # 0.0050000000000000044 less in binary
}


def test_words_of_metrics():
    found = {}
    for name, base, new in WORDS:
        verdict = judged([base] * 8, [new] * 8, metric=METRICS[name]).verdict
        found[name, base, new] = verdict.word(METRICS[name])
    assert found == WORDS


def test_fewer_than_four_are_never_slower_nor_same():
    for size in (1, 2, 3):
        for factor in (0.1, 1.0, 10.0):
            found = judged(BASE[:size], scaled(BASE[:size], factor))
            assert found.verdict is OPEN
            assert found.change == pytest.approx(factor - 1)
            assert found.p is None
            assert found.at_least == 4


def test_what_cannot_be_a_throughput_has_failed():
    for bad in (math.nan, math.inf, -math.inf, 0.0, -5.0):
        for base, new, side in (([*BASE, bad], BASE, "BASE"), (BASE, [bad], "NEW")):
            found = judged(base, new)
            assert found.verdict is Verdict.FAILED
            assert side in found.reason
            assert found.change is None


def test_the_false_alarm_that_neighbours_made():
    # Five of eight pairs differ by at most 2 %, a neighbour met B in the other three. All eight are
    # slower, and the estimate is far beyond the threshold, so only the interval says how little is
    # known.
    base = [100.0] * 8
    new = [98.8, 98.4, 99.0, 98.1, 98.6, 68.0, 66.0, 64.0]
    found = judged(base, new, Policy(alpha=0.01), paired=True)
    assert found.p < 0.01
    assert (found.verdict, found.change) == (SLOWER, pytest.approx(-0.182, abs=1e-3))
    assert (found.low, found.high) == pytest.approx((-0.36, -0.01), abs=1e-3)


@pytest.mark.slow
def test_an_open_question_names_scatter_and_what_would_answer_it():
    # Logarithms of the quotients: +-0.03, so that their standard deviation is 0.03 * sqrt(8/7).
    base = [100.0] * 8
    new = [100 * math.exp(sign * 0.03) for sign in (1, -1) * 4]
    made = interim_analyses(8, 0.04)
    plan = AnalysisSchedule(0.04, 8, made)
    found = judged(base, new, paired=True, looks=made, plan=plan)
    assert found.verdict is OPEN
    assert found.scatter == pytest.approx(0.03 * math.sqrt(8 / 7))
    more = found.more
    assert (more, found.new_experiment) == (found.needed - 8, None)
    assert str(more) in found.reason
    # So many are enough, by the analyses that are made on the way.
    looks = (*made, *plan.analyses(found.needed))
    assert looks[-1].pairs == found.needed
    random, passed = np.random.default_rng(4), 0
    for _ in range(15):
        all_new = [*new, *(100 * np.exp(random.normal(0, found.scatter, more))).tolist()]
        so_far = [looks[:number] for number in range(len(looks), 1, -1)]  # the last passes most
        verdicts = (
            judged([100.0] * n, all_new[:n], paired=True, looks=some).verdict
            for n, some in ((some[-1].pairs, some) for some in so_far)
        )
        passed += any(one in (SAME, Verdict.NOT_SLOWER) for one in verdicts)
    assert 9 <= passed <= 14
    # Judged once, fewer are enough; a new experiment cannot count the measured ones.
    assert judged(base, new, paired=True).needed < found.needed
    assert judged(base, new, paired=True, plan=AnalysisSchedule(0.04)).needed % 4 == 0
    # Nothing scatters, or there is a verdict: no number.
    assert judged(base, base, paired=True).needed is None
    assert judged(base, scaled(base, 0.5), paired=True).needed is None


def test_pairs_take_out_what_both_of_a_pair_share():
    # The machine slows down from pair to pair, by more than NEW is slower.
    base = [100.0, 90.0, 80.0, 70.0, 60.0, 50.0]
    new = scaled(base, 0.95)
    assert judged(base, new).verdict is OPEN
    found = judged(base, new, paired=True)
    # All six one way: 2 of 64 choices of signs.
    assert (found.verdict, found.p) == (SLOWER, pytest.approx(2 / 64))


def test_a_suite_pays_for_its_tests():
    # One slower among ten: 10 * 2/252 = 0.079. Five processes cannot prove it, six can:
    # 10 * 2/924 = 0.022.
    like = [case(BASE, BASE) for _ in range(9)]
    found = judge_all([*like, case(BASE, scaled(BASE, 0.9))])[-1]
    assert found.verdict is OPEN
    assert found.p_adjusted == pytest.approx(20 / 252)
    assert (found.at_least, found.family) == (6, 10)
    assert found.reason.endswith("; 6 on each side could prove one of 3.4 %")
    six = [*BASE, 100.0]
    found = judge_all([*like, case(six, scaled(six, 0.9))])[-1]
    assert (found.verdict, found.p_adjusted) == (SLOWER, pytest.approx(20 / 924))


def test_a_suite_does_not_pay_for_what_was_not_tested():
    untested = [case(BASE, BASE[:3]), case([], []), case([math.nan], [1.0])]
    found = judge_all([*untested, case(BASE, scaled(BASE, 0.9))])
    assert found[-1].p_adjusted == found[-1].p
    assert [one.verdict for one in found] == [OPEN, OPEN, Verdict.FAILED, SLOWER]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(90, 110), min_size=0, max_size=8),
    st.lists(st.floats(90, 110), min_size=0, max_size=8),
    st.booleans(),
)
def test_swapping_the_sides_mirrors_the_verdict(base, new, paired):
    mirrored = {FASTER: SLOWER, Verdict.NOT_FASTER: Verdict.NOT_SLOWER}
    mirrored |= {new: old for old, new in mirrored.items()}
    there = judged(base, new, paired=paired)
    back = judged(new, base, Policy(questions=("faster",)), paired=paired)
    assert back.verdict is mirrored.get(there.verdict, there.verdict)
    if there.change is not None:
        assert (1 + there.change) * (1 + back.change) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    st.booleans(),
)
@example([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1e-132, 1e-132], False)
def test_whatever_is_given_there_is_an_answer(base, new, paired):
    found = judged(base, new, paired=paired)
    assert found.reason
    usable = all(math.isfinite(value) and value > 0 for value in [*base, *new])
    assert (found.verdict is Verdict.FAILED) == (not usable)


# Error rates: quick versions; the ceilings are three standard errors of the draws above what is
# promised, so that they hold for any seed but one in a thousand.


def normal(noise, size, factor=1.0):
    return lambda random: (factor * np.exp(random.normal(0, noise, size))).tolist()


def busy_or_quiet(random):
    """Every process is, by chance, in a quiet or in a busy time; some have a neighbour besides."""
    busy = random.random(6) < 0.4
    outlier = np.where(random.random(6) < 0.1, 0.3, 1.0)
    return (100 * np.where(busy, 0.6, 1.0) * outlier * (1 + random.normal(0, 0.01, 6))).tolist()


def autocorrelated(random):
    """Processes that differ by 1.3 %, of steps of an AR(1) process as measured (cv 7 %, lag-1
    correlation 0.28): a test over steps would call most of these different."""
    speeds = []
    for _ in range(5):
        step, steps = 0.0, []
        for shock in random.normal(0, 0.07 * math.sqrt(1 - 0.28**2), 40):
            step = 0.28 * step + shock
            steps.append(math.exp(step))
        speeds.append(100 * math.exp(random.normal(0, 0.013)) / float(np.median(steps)))
    return speeds


SLOW = pytest.mark.slow
RED = 0.02 + 3 * math.sqrt(0.02 * 0.98 / 250)
QUIET = {"slower": (0, RED), "faster": (0, RED)}


@pytest.mark.parametrize(
    ("base", "new", "rates"),
    [
        # Like and like turn red or green in at most two per cent.
        (normal(0.013, 5), normal(0.013, 6), QUIET),
        *(
            pytest.param(normal(noise, size), normal(noise, size), QUIET, marks=SLOW)
            for noise, size in ((0.005, 4), (0.05, 8), (0.2, 4))
        ),
        (busy_or_quiet, busy_or_quiet, {"slower": (0, RED)}),
        pytest.param(autocorrelated, autocorrelated, {"slower": (0, RED)}, marks=SLOW),
        # Slow-downs are found on a quiet machine, and never the same.
        *(
            (
                normal(0.013, size),
                normal(0.013, size, factor),
                {"slower": (0.9, 1), "same": (0, 0), "faster": (0, 0)},
            )
            for size, factor in ((12, 0.95), (5, 0.9))
        ),
        # On a noisy machine they are at least not the same.
        (
            normal(0.1, 6),
            normal(0.1, 6, 1 / 1.1),
            {"same": (0, 0.005), "faster": (0, 0.005), "inconclusive": (0.5, 1)},
        ),
    ],
)
def test_error_rates(base, new, rates):
    random = np.random.default_rng(20)
    found = [judged(base(random), new(random)).verdict for _ in range(250)]
    for verdict, (least, most) in rates.items():
        assert least <= found.count(Verdict(verdict)) / len(found) <= most


@pytest.mark.slow
def test_of_several_reported_changes_few_are_false():
    # Each configuration has changed in the metric with the small share.
    rng, runs = np.random.default_rng(1), 250
    shares = {"throughput": (0.9, 0.1), "cpu_time": (0.1, 0.9)}
    policy, false = Policy(alpha=0.2), 0.0
    for _ in range(runs):
        cases = [
            Case(
                Samples(
                    rng.lognormal(0, 0.1, 7),
                    rng.lognormal(0 if share > 0.5 else 3, 0.1, 7),
                    METRICS[name],
                ),
                policy.replace(share=share, own_threshold=0.0),
            )
            for name, own in shares.items()
            for share in own
        ]
        found = judge_all(cases)
        moved = [one.verdict in (SLOWER, FASTER) for one in found]
        assert moved[1]
        assert moved[2]
        false += (moved[0] + moved[3]) / sum(moved)
    # Half of the hypotheses are true, so the share is at most about half of alpha.
    assert 0.02 < false / runs < 0.2


def test_intervals_of_reported_changes_have_the_level_of_their_test():
    six = [*BASE, 100.0]
    slow, like = scaled(six, 0.9), [case(six, six) for _ in range(7)]
    alone = judged(six, slow)
    assert alone.confidence is None
    one = judge_all([*like, case(six, slow)])[-1]
    assert one.confidence == pytest.approx(1 - 0.04 / 8)
    assert one.low < alone.low < alone.high < one.high
    two = judge_all([*like[1:], *[case(six, slow)] * 2])
    assert [found.confidence for found in two[-2:]] == [pytest.approx(1 - 2 * 0.04 / 8)] * 2
    assert two[0].confidence is None


def test_many_changes_of_a_suite_are_found_where_one_alone_could_not_be():
    # One slower among ten needs 6 + 6 processes, five slower ones do not.
    like = [case(BASE, BASE) for _ in range(5)]
    found = judge_all([*like, *[case(BASE, scaled(BASE, 0.9))] * 5])
    assert [one.verdict for one in found] == [SAME] * 5 + [SLOWER] * 5
    assert found[-1].p_adjusted == pytest.approx(10 / 5 * 2 / 252)


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    # Verdicts if only slower is asked for, only faster, or both.
    [
        # The interval reaches above the threshold of -3 %, the estimate is below.
        (range(-8, 0), (SLOWER, SLOWER, SLOWER)),
        (range(1, 9), (FASTER, FASTER, FASTER)),
        ((-1, 0, 1, -1, 0, 1, -1, 1), (SAME, SAME, SAME)),
        ((-1, -1, -2, -2, -3, -3, -4, -4), (OPEN, Verdict.NOT_FASTER, OPEN)),
        ((1, 1, 2, 2, 3, 3, 4, 4), (Verdict.NOT_SLOWER, OPEN, OPEN)),
        ((-8, -5, -2, -1, 1, 2, 5, 8), (OPEN, OPEN, OPEN)),
    ],
)
def test_a_verdict_answers_what_is_asked(changes, verdicts):
    asked = [("slower",), ("faster",), ("slower", "faster")]
    found = [pairs_of(*changes, policy=Policy(questions=one)).verdict for one in asked]
    assert found == [*verdicts]


def test_without_pairs_the_whole_interval_must_exceed_the_threshold():
    base = [100.0, 100.5, 101.0, 101.5, 102.0, 102.5]
    new = [94.0, 95.0, 96.0, 98.0, 99.0, 100.2]
    found = judged(base, new)
    assert found.p <= 0.04
    assert found.change < -0.03 < found.high
    assert found.verdict is OPEN
    assert judged(base, new, policy=Policy(threshold=0.001)).verdict is SLOWER


@pytest.mark.parametrize(
    ("change", "metric", "limit", "is_above"),
    [
        (0.031, THROUGHPUT, 0.03, True),
        (0.03, THROUGHPUT, 0.03, False),
        (-0.0292, THROUGHPUT, 0.03, True),  # undone by +3.008 %
        (-0.0291, THROUGHPUT, 0.03, False),
        (-1.0, THROUGHPUT, 1e300, True),
        (-0.0051, ACCURACY, 0.005, True),
        (-0.005, ACCURACY, 0.005, False),
        (0.005 * (1 + 1e-13), ACCURACY, 0.005, False),  # a rounding error
    ],
)
def test_what_is_above_a_limit(change, metric, limit, is_above):
    assert exceeds(change, metric, limit) == is_above


@pytest.mark.parametrize(
    ("base", "more", "policy", "floor"),
    [
        ([100.0], {}, {}, 0.03),
        ([100.0], {"paired": True}, {}, 0.03),
        ([100.0], {}, {"threshold": 0.2}, 0.2),
        # 16 MiB of 100 MiB, and of 1,600 MiB.
        ([100.0 * 2**20], {"metric": MEMORY}, {}, 0.16),
        ([1600.0 * 2**20], {"metric": MEMORY}, {}, 0.05),
        ([0.5], {"metric": ACCURACY}, {}, 0.005),
    ],
)
def test_smallest_relevant_changes(base, more, policy, floor):
    found = smallest_relevant_change(Samples(base, base, **more), Policy(**policy))
    assert found == pytest.approx(floor)


def test_scales_of_tests():
    assert to_test_scale(0.1, THROUGHPUT) == pytest.approx(math.log(1.1))
    assert from_test_scale(math.log(0.9), THROUGHPUT) == pytest.approx(-0.1)
    assert to_test_scale(-1.0, THROUGHPUT) == -math.inf
    assert from_test_scale(1e4, THROUGHPUT) == math.inf
    assert to_test_scale(-0.2, ACCURACY) == from_test_scale(-0.2, ACCURACY) == -0.2


def test_statistics_of_two_samples_by_hand():
    base, new = [1.0, 3.0, 5.0], [2.0, 2.0]
    found = statistics_of(Samples(base, new, ACCURACY), Policy(alpha=0.9, further_alpha=0.5))
    # Differences 1, -1 and -3, twice each; squares 8 and 0 over three.
    assert (found.change, found.base_median, found.new_median) == (-1.0, 3.0, 2.0)
    assert found.scatter == pytest.approx(math.sqrt(8 / 3))
    assert found.p == found.p_of_looks
    assert (found.alpha, found.family) == (0.9, 1)
    assert statistics_of(Samples([1.0], [2.0]), Policy()).scatter is None
    three = statistics_of(Samples([1.0], [2.0, 4.0], ACCURACY), Policy())
    assert three.scatter == pytest.approx(math.sqrt(2))
    assert statistics_of(Samples([1.0, 1.1], [2.0, 2.2]), Policy(), 3, 0.5).family == 3
    pairs = statistics_of(Samples([1.0, 1.1], [2.0, 2.2], paired=True), Policy(), alpha=0.5)
    assert (pairs.scatter, pairs.change, pairs.alpha) == (0.0, pytest.approx(1.0), 0.5)
    assert statistics_of(Samples([1.0], [2.0], paired=True), Policy()).scatter is None


@pytest.mark.parametrize(
    ("ends", "metric", "worse", "better"),
    [
        ((-0.02, 0.02), THROUGHPUT, False, False),
        ((-0.04, 0.02), THROUGHPUT, True, False),
        ((-0.02, 0.04), THROUGHPUT, False, True),
        ((0.04, 0.05), THROUGHPUT, False, True),
        ((-0.05, -0.04), THROUGHPUT, True, False),
        ((-0.06, 0.02), MEMORY, False, True),
        ((-0.02, 0.06), MEMORY, True, False),
        ((None, None), THROUGHPUT, True, True),
    ],
)
def test_changes_that_an_interval_leaves_open(ends, metric, worse, better):
    values = [1e10] * 4
    found = statistics_of(Samples(values, values, metric), Policy())
    found = dataclasses.replace(found, low=ends[0], high=ends[1])
    assert [found.may_exceed_floor(is_better) for is_better in (False, True)] == [worse, better]
    excludes = ends[0] is not None and ends[0] * ends[1] > 0
    assert found.excludes_zero == excludes
    assert found.interval_exceeds_floor == excludes  # as both ends are beyond 3 %


def test_too_few_values_in_a_suite_need_those_of_the_suite():
    # 10 * 2/252 = 0.079 is above 0.04, and 10 * 2/924 = 0.022 is not.
    found = judge_all([*[case(BASE, BASE)] * 9, case(BASE[:3], BASE[:3])])[-1]
    assert found.at_least == 6
    known = Case(Samples(BASE, BASE), known=(OPEN, "interrupted"))
    assert judge_all([*[case(BASE, BASE)] * 10, known])[-1].at_least == 6


def test_metrics_are_families_of_their_own_unless_they_share_alpha():
    speed, memory = Samples(BASE, scaled(BASE, 0.9)), Samples([1e9] * 5, [1e9] * 5, MEMORY)
    found = judge_all([Case(speed), Case(memory)])
    assert [one.family for one in found] == [1, 1]
    assert found[0].p_adjusted == pytest.approx(2 / 252)
    shared = judge_all([Case(one, Policy(share=0.5)) for one in (speed, memory)])
    assert [one.family for one in shared] == [1, 1]
    assert shared[0].p_adjusted == pytest.approx(2 * 2 / 252)
    assert shared[0].confidence == pytest.approx(1 - 0.02)


def test_kinds_of_measurements_have_equal_parts_of_alpha():
    speed = Samples(BASE, scaled(BASE, 0.9))
    other = Samples(BASE, BASE, BUS_BANDWIDTH)
    alone = judge_all([Case(speed, Policy(share=1.0))])[0]
    both = judge_all([Case(one, Policy(share=0.5)) for one in (speed, other)])
    assert alone.p_adjusted == pytest.approx(2 / 252)
    assert both[0].p_adjusted == pytest.approx(2 * 2 / 252)
    assert [one.family for one in both] == [1, 1]


def test_the_least_relevant_amount_is_a_share_of_the_base():
    startup = dataclasses.replace(METRICS["startup"], least=0.1, threshold=0.2)

    def floor(base):
        return smallest_relevant_change(Samples((base,) * 2, (1.0,) * 2, startup), Policy())

    assert floor(0.25) == pytest.approx(0.4)
    assert floor(1.0) == floor(0.0) == 0.2
