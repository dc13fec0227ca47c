import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.compare import METRICS, Case, Policy, Verdict, aa_spread, judge, judge_all
from cnnbench.compare.explain import processes_needed

# Five processes of 100 images/sec, give or take 0.3 %.
BASE = [100.0, 100.2, 99.8, 100.1, 99.9]


def scaled(values, factor):
    return [value * factor for value in values]


def test_slower():
    # All of NEW below all of BASE: p = 2/252 = 0.0079. Quotients of equal places are 0.9, and of
    # the 25 quotients as many lie above as below, so the shift is -10 %, beyond 3 %.
    found = judge(BASE, scaled(BASE, 0.9))
    assert found.verdict is Verdict.SLOWER
    assert found.change == pytest.approx(-0.1)
    assert found.p == pytest.approx(2 / 252)
    assert found.floor == 0.03
    assert found.reason == "-10.0 % is beyond the floor -2.9 to +3.0 %, p = 0.0079"
    # Ends of the interval at 96 %: P(U <= 1) = 2/252 = 0.0079 <= 0.02, P(U <= 2) = 4/252 = 0.0159
    # too, P(U <= 3) = 7/252 = 0.028 not: the third quotients from outside. Sorted from below:
    # 99.8/100.2, then 99.9/100.2 and 99.8/100.1 (0.9 times each).
    assert found.low == pytest.approx(0.9 * 99.9 / 100.2 - 1, abs=2e-5)
    assert found.high == pytest.approx(0.9 * 100.2 / 99.9 - 1, abs=2e-5)


@pytest.mark.parametrize(
    ("base", "new", "verdict", "words"),
    [
        (BASE, scaled(BASE, 1.1), Verdict.FASTER, "+10.0 %"),
        # 2/70 = 0.029 is below alpha = 0.04.
        ([100] * 4, [90] * 4, Verdict.SLOWER, "p = 0.029"),
        ([100] * 4, [100] * 4, Verdict.SAME, ""),
        ([100] * 4, [90] * 3, Verdict.INCONCLUSIVE, "3 processes in NEW"),
        # Unequal counts.
        (BASE, [*scaled(BASE, 0.9), 91.0], Verdict.SLOWER, ""),
        (BASE, [*BASE, 100.0], Verdict.SAME, ""),
        ([], BASE, Verdict.INCONCLUSIVE, "BASE has no value of throughput"),
        (BASE, [], Verdict.INCONCLUSIVE, "NEW has no value"),
        ([], [], Verdict.INCONCLUSIVE, ""),
        # A change of nothing has no minus.
        ([100.0] * 5, [99.999] * 5, Verdict.SAME, "+0.0 to +0.0 %"),
        # Shares are not symmetric, quotients are: 1/1.031 is -3.007 %, and the way back +3.1 %.
        ([100.0] * 5, [100 / 1.031] * 5, Verdict.SLOWER, ""),
        ([100 / 1.031] * 5, [100.0] * 5, Verdict.FASTER, ""),
        ([100.0] * 5, [100 / 1.029] * 5, Verdict.SAME, ""),
        ([1e-300] * 5, [1e300] * 5, Verdict.FASTER, ""),
        ([1e300] * 5, [1e-300] * 5, Verdict.SLOWER, ""),
    ],
)
def test_verdicts(base, new, verdict, words):
    found = judge(base, new)
    assert found.verdict is verdict
    assert words in found.reason


@pytest.mark.parametrize(
    ("base", "new", "words"),
    [
        (BASE, scaled(BASE, 0.9), "5 pairs are too few to prove a change; at least 6 pairs"),
        (BASE, [*BASE, 100.0], "5 values in BASE and 6 in NEW make no pairs"),
    ],
)
def test_pairs_that_prove_nothing(base, new, words):
    found = judge(base, new, paired=True)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert words in found.reason


@pytest.mark.parametrize(
    ("metric", "base", "factor", "verdict"),
    [
        ("memory", 1e9, 1.1, Verdict.SLOWER),
        ("memory", 1e9, 0.9, Verdict.FASTER),
        ("memory", 1e9, 1.04, Verdict.SAME),
        # 15 of 100 MiB are 15 %, but less than 16 MiB.
        ("memory", 100 * 2**20, 1.15, Verdict.SAME),
        ("memory", 100 * 2**20, 1.17, Verdict.SLOWER),
        ("startup", 10.0, 1.3, Verdict.SLOWER),
        ("startup", 10.0, 1.15, Verdict.SAME),
        ("startup", 10.0, 0.7, Verdict.FASTER),
    ],
)
def test_less_memory_and_time_are_better(metric, base, factor, verdict):
    found = judge([base] * 5, [base * factor] * 5, metric=METRICS[metric])
    assert found.verdict is verdict


def test_same_is_a_statement_about_the_whole_interval():
    found = judge(BASE, list(reversed(BASE)))
    assert found.verdict is Verdict.SAME
    assert found.reason == "the interval -0.3 to +0.3 % lies within -2.9 to +3.0 %"
    # A difference can be certain and still too small to matter: 1 % with p = 0.0079.
    found = judge(BASE, scaled(BASE, 0.99))
    assert (found.verdict, found.p) == (Verdict.SAME, pytest.approx(2 / 252))


def test_noise_is_inconclusive_and_not_same():
    found = judge([90, 95, 100, 105, 110], [89, 96, 99, 106, 111])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.p > 0.5
    assert "more processes or a quieter machine" in found.reason


def test_certain_but_not_certainly_beyond_the_floor():
    # 98 against 100, +-0.5: certainly lower (p = 0.0079), but 2 % is within the floor of 3 % and
    # the interval reaches beyond it.
    base = [99.2, 99.6, 100.0, 100.4, 100.8]
    found = judge(base, scaled(base, 0.98))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.startswith(
        "-2.0 % is within the floor -2.9 to +3.0 %, but the interval -3."
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fewer_than_four_are_never_slower_nor_same(size):
    for factor in (0.1, 1.0, 10.0):
        found = judge(BASE[:size], scaled(BASE[:size], factor))
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.change == pytest.approx(factor - 1)
        assert found.p is None
    noun = "process" if size == 1 else "processes"
    assert found.reason == f"{size} {noun} in BASE; a verdict needs at least 4 on each side"


@pytest.mark.parametrize(
    ("bad", "shown"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (0.0, "0"), (-5.0, "-5")],
)
def test_what_cannot_be_a_throughput_has_failed(bad, shown):
    for base, new, side in (([*BASE, bad], BASE, "BASE"), (BASE, [bad], "NEW")):
        found = judge(base, new)
        assert found.verdict is Verdict.FAILED
        values = "value" if len(new) == 1 and side == "NEW" else "values"
        assert found.reason.endswith(
            f"of throughput in {side} cannot be used, the first is {shown}"
        )
        assert values in found.reason
        assert found.change is None


def test_the_spread_of_like_runs_raises_the_floor():
    new = scaled(BASE, 0.9)
    assert judge(BASE, new, noise=0.02).floor == 0.03
    assert judge(BASE, new, noise=0.08).verdict is Verdict.SLOWER
    found = judge(BASE, new, noise=0.12)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == (
        "-10.0 % is within the A/A spread -10.7 to +12.0 %, but the interval -10.3 to -9.7 % "
        "reaches beyond -4.8 to +5.0 %, p = 0.0079"
    )


def test_a_noisy_machine_does_not_make_everything_the_same():
    # The interval of -10 % lies within a spread of 30 %, but no slow-down of 10 % is ever "same".
    assert judge(BASE, scaled(BASE, 0.9), noise=0.3).verdict is Verdict.INCONCLUSIVE
    assert judge(BASE, scaled(BASE, 0.96), noise=0.3).verdict is Verdict.SAME
    # It takes a threshold of the user's own.
    policy = Policy(threshold=0.15)
    assert judge(BASE, scaled(BASE, 0.9), policy).verdict is Verdict.SAME


def test_pairs_take_out_what_both_of_a_pair_share():
    # The machine slows down from pair to pair, by more than NEW is slower.
    base = [100.0, 90.0, 80.0, 70.0, 60.0, 50.0]
    new = scaled(base, 0.95)
    assert judge(base, new).verdict is Verdict.INCONCLUSIVE
    found = judge(base, new, paired=True)
    # All six one way: 2 of 64 choices of signs.
    assert (found.verdict, found.p) == (Verdict.SLOWER, pytest.approx(2 / 64))


def test_a_suite_pays_for_its_tests():
    # One slower among ten: 10 * 2/252 = 0.079. Five processes cannot prove it, six can:
    # 10 * 2/924 = 0.022.
    like = [Case(base=BASE, new=BASE) for _ in range(9)]
    found = judge_all([*like, Case(base=BASE, new=scaled(BASE, 0.9))])[-1]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.p_adjusted == pytest.approx(20 / 252)
    assert found.reason == (
        "5 against 5 processes are too few to prove a change among 10 configurations; "
        "at least 6 on each side are needed"
    )
    six = [*BASE, 100.0]
    found = judge_all([*like, Case(base=six, new=scaled(six, 0.9))])[-1]
    assert found.verdict is Verdict.SLOWER
    assert found.reason.endswith("p = 0.022 over 10 configurations")


def test_a_suite_does_not_pay_for_what_was_not_tested():
    cases = [Case(base=BASE, new=BASE[:3]), Case(base=[], new=[]), Case(base=[math.nan], new=[1.0])]
    found = judge_all([*cases, Case(base=BASE, new=scaled(BASE, 0.9))])
    assert found[-1].p_adjusted == found[-1].p
    assert [one.verdict for one in found] == [
        Verdict.INCONCLUSIVE,
        Verdict.INCONCLUSIVE,
        Verdict.FAILED,
        Verdict.SLOWER,
    ]


def test_metrics_are_families_of_their_own():
    memory = [Case(base=BASE, new=BASE, metric=METRICS["memory"]) for _ in range(9)]
    found = judge_all([*memory, Case(base=BASE, new=scaled(BASE, 0.9))])
    assert found[-1].p_adjusted == found[-1].p


def test_further_metrics_ask_for_more_evidence():
    # 4 against 4, separated: p = 0.029 is enough for throughput (0.04), not for memory (0.01).
    base, new, memory = [1e9] * 4, [2e9] * 4, METRICS["memory"]
    assert judge(new, base).verdict is Verdict.SLOWER
    found = judge(base, new, metric=memory)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == (
        "4 against 4 processes are too few to prove a change; at least 5 on each side are needed"
    )
    assert judge([*base, 1e9], [*new, 2e9], metric=memory).verdict is Verdict.SLOWER


def test_accuracy_is_judged_by_differences():
    accuracy = METRICS["accuracy"]
    base = [0.750, 0.751, 0.752, 0.751, 0.750]
    found = judge(base, [value - 0.01 for value in base], metric=accuracy)
    assert (found.verdict, found.change) == (Verdict.SLOWER, pytest.approx(-0.01))
    assert found.reason == "-1.00 points is beyond the floor -0.50 to +0.50 points, p = 0.0079"
    assert judge(base, base, metric=accuracy).verdict is Verdict.SAME
    # 0 is an accuracy, if not a good one.
    assert judge([0.0] * 5, [0.0] * 5, metric=accuracy).verdict is Verdict.SAME
    assert judge([0.0] * 5, [math.nan] * 5, metric=accuracy).verdict is Verdict.FAILED


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(90, 110), min_size=0, max_size=8),
    st.lists(st.floats(90, 110), min_size=0, max_size=8),
    st.booleans(),
)
def test_swapping_the_sides_mirrors_the_verdict(base, new, paired):
    mirrored = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    there, back = judge(base, new, paired=paired), judge(new, base, paired=paired)
    assert back.verdict is mirrored.get(there.verdict, there.verdict)
    if there.change is not None:
        assert (1 + there.change) * (1 + back.change) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    st.booleans(),
)
def test_whatever_is_given_there_is_an_answer(base, new, paired):
    found = judge(base, new, paired=paired)
    assert found.reason
    usable = all(math.isfinite(value) and value > 0 for value in [*base, *new])
    assert (found.verdict is Verdict.FAILED) == (not usable)


def test_aa_spread_by_hand():
    # Logarithms 0, 0, 0.02, 0.02: mean 0.01, squares 4 * 0.0001 over 3, root 0.011547, twice
    # that 0.023094, and e to it less 1.
    values = [1.0, 1.0, math.exp(0.02), math.exp(0.02)]
    assert aa_spread(values, Policy()) == pytest.approx(math.expm1(2 * math.sqrt(4e-4 / 3)))
    accuracy = METRICS["accuracy"]
    expected = 2 * math.sqrt(4e-4 / 3)
    assert aa_spread([0.7, 0.7, 0.72, 0.72], Policy(), accuracy) == pytest.approx(expected)
    with pytest.raises(ValueError, match="two or more"):
        aa_spread([1.0], Policy())
    with pytest.raises(ValueError, match="usable"):
        aa_spread([1.0, math.nan], Policy())


def test_processes_needed():
    # Unpaired 2/C(2n, n) = .029 .0079 .0022 .00058 for 4 to 7; paired 2/2^n = .031 for 6.
    found = [processes_needed(Policy(), number) for number in (1, 2, 5, 6, 18, 19)]
    assert found == [4, 5, 5, 6, 6, 7]
    assert processes_needed(Policy(), paired=True) == 6
    assert processes_needed(Policy(alpha=0.002)) == 7


@pytest.mark.parametrize("constant", [{"alpha": 0.0}, {"alpha": 1.0}, {"threshold": -0.1}])
def test_policies_that_cannot_be(constant):
    with pytest.raises(ValueError, match=next(iter(constant))):
        Policy(**constant)


# Error rates: quick versions; the ceilings are three standard errors of the draws above what is
# promised, so that they hold for any seed but one in a thousand.


def share(verdicts, wanted):
    return sum(verdict in wanted for verdict in verdicts) / len(verdicts)


def draws(number, make):
    random = np.random.default_rng(20)
    return [judge(*make(random)).verdict for _ in range(number)]


@pytest.mark.parametrize(
    ("noise", "sizes"), [(0.005, (4, 4)), (0.013, (5, 6)), (0.05, (8, 8)), (0.2, (4, 4))]
)
def test_like_and_like_turn_red_in_at_most_two_per_cent(noise, sizes):
    number = 250
    found = draws(
        number,
        lambda random: [np.exp(random.normal(0, noise, size)).tolist() for size in sizes],
    )
    ceiling = 0.02 + 3 * math.sqrt(0.02 * 0.98 / number)
    assert share(found, {Verdict.SLOWER}) <= ceiling
    assert share(found, {Verdict.FASTER}) <= ceiling


def test_outliers_and_regimes_do_not_turn_it_red():
    # Every process is, by chance, in a quiet or in a busy time; some have a neighbour besides.
    def side(random):
        busy = random.random(6) < 0.4
        outlier = np.where(random.random(6) < 0.1, 0.3, 1.0)
        return (100 * np.where(busy, 0.6, 1.0) * outlier * (1 + random.normal(0, 0.01, 6))).tolist()

    found = draws(250, lambda random: [side(random), side(random)])
    assert share(found, {Verdict.SLOWER}) <= 0.02 + 3 * math.sqrt(0.02 * 0.98 / 250)


def test_slow_downs_are_found_on_a_quiet_machine_and_never_the_same():
    for slower in (1.05, 1.1):
        found = draws(
            200,
            lambda random, slower=slower: [
                np.exp(random.normal(0, 0.013, 5)).tolist(),
                (np.exp(random.normal(0, 0.013, 5)) / slower).tolist(),
            ],
        )
        assert share(found, {Verdict.SLOWER}) >= 0.9
        assert share(found, {Verdict.SAME, Verdict.FASTER}) == 0


def test_ten_per_cent_is_never_the_same_on_a_noisy_machine():
    found = draws(
        200,
        lambda random: [
            np.exp(random.normal(0, 0.1, 6)).tolist(),
            (np.exp(random.normal(0, 0.1, 6)) / 1.1).tolist(),
        ],
    )
    assert share(found, {Verdict.SAME, Verdict.FASTER}) <= 0.01
    assert share(found, {Verdict.INCONCLUSIVE}) > 0.5


def test_autocorrelated_steps_do_not_turn_it_red():
    # Within a process steps follow an AR(1) process as measured (cv 7 %, lag-1 correlation
    # 0.28), and processes differ by 1.3 %: a test over steps would call most of these different.
    def median_speed(random):
        step, steps = 0.0, []
        for shock in random.normal(0, 0.07 * math.sqrt(1 - 0.28**2), 40):
            step = 0.28 * step + shock
            steps.append(math.exp(step))
        return 100 * math.exp(random.normal(0, 0.013)) / float(np.median(steps))

    found = draws(
        120, lambda random: [[median_speed(random) for _ in range(5)] for _ in ("base", "new")]
    )
    assert share(found, {Verdict.SLOWER}) <= 0.02 + 3 * math.sqrt(0.02 * 0.98 / 120)


def test_floors_are_limits_both_ways():
    # A floor of 100 % is 50 % downwards.
    found = judge([100.0] * 5, [40.0] * 5, noise=1.0)
    assert found.reason == "-60.0 % is beyond the floor -50.0 to +100.0 %, p = 0.0079"
    found = judge([100.0] * 5, [90.0] * 5, Policy(threshold=0.25))
    assert found.reason == "the interval -10.0 to -10.0 % lies within -20.0 to +25.0 %"


@pytest.mark.parametrize(
    ("base", "new", "metric", "verdict"),
    [
        (0.75, 0.745, "accuracy", Verdict.SAME),  # 0.0050000000000000044 in binary
        (0.75, 0.755, "accuracy", Verdict.SAME),
        (0.75, 0.7449, "accuracy", Verdict.SLOWER),
        (100.0, 103.0, "throughput", Verdict.SAME),
        (103.0, 100.0, "throughput", Verdict.SAME),
        (100.0, 103.01, "throughput", Verdict.FASTER),
        (103.01, 100.0, "throughput", Verdict.SLOWER),
    ],
)
def test_a_change_as_large_as_the_floor_is_not_beyond_it(base, new, metric, verdict):
    found = judge([base] * 8, [new] * 8, metric=METRICS[metric])
    assert found.verdict is verdict
