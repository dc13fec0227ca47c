"""The additive model of candidates and rounds, against SciPy and values worked out by hand.

Tests cnnbench/base/inference.py, cnnbench/base/stats.py and cnnbench/base/additive.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy  # which loads scipy.stats when it is used

from cnnbench.base.additive import fit_additive_blocks, fit_additive_model
from cnnbench.base.stats import student_quantile, student_tail


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 101])
def test_tails_are_those_of_students_distribution(freedom: int) -> None:
    for t in (0.0, 0.3, 1.0, 2.5, 6.0, 20.0):
        expected = float(scipy.stats.t.sf(t, freedom))
        assert student_tail(t, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-13)
    for tail in (0.5, 0.1, 0.025, 1e-4):
        assert student_quantile(tail, freedom) == pytest.approx(
            float(scipy.stats.t.isf(tail, freedom)), rel=1e-6, abs=1e-9
        )


def test_a_round_that_is_slow_for_all_moves_no_difference() -> None:
    fitted = fit_additive_model([{"a": 1.0, "b": 2.0}, {"a": 0.0, "b": 1.0}, {"a": 5.0, "b": 6.0}])
    assert fitted.difference("b", "a") == pytest.approx(1.0)
    assert fitted.scatter == pytest.approx(0.0, abs=1e-12)
    assert fitted.freedom == 2


def test_two_candidates_give_the_paired_t_test() -> None:
    a, b = [1.0, 2.0, 3.0, 4.5], [1.4, 2.1, 3.9, 4.8]
    fitted = fit_additive_model([{"a": x, "b": y} for x, y in zip(a, b, strict=True)])
    expected = scipy.stats.ttest_rel(b, a, alternative="greater")
    assert fitted.freedom == 3
    assert fitted.p_value_above("b", "a") == pytest.approx(float(expected.pvalue))
    assert fitted.p_value_above("a", "b") == 1.0
    less = scipy.stats.ttest_1samp(np.subtract(b, a) + 0.2, 0.0, alternative="greater")
    assert fitted.p_value_above("b", "a", 0.2) == pytest.approx(float(less.pvalue))
    difference = np.subtract(b, a)
    assert fitted.standard_error("a", "b") == pytest.approx(difference.std(ddof=1) / 2)


def test_the_noise_is_that_of_all_candidates_and_some_may_be_missing() -> None:
    generator = np.random.default_rng(1)
    truth = dict(zip("abcdef", np.linspace(0, 1, 6), strict=True))
    rounds = [
        {name: value + at + generator.normal(0, 0.01) for name, value in truth.items()}
        for at in range(40)
    ]
    for at in range(20, 40):
        del rounds[at]["b"]
    fitted = fit_additive_model(rounds)
    assert fitted.freedom == 220 - 6 - 40 + 1
    assert fitted.scatter == pytest.approx(0.01, rel=0.15)
    assert fitted.difference("b", "a") == pytest.approx(0.2, abs=0.01)
    errors = [fitted.standard_error(name, "a") for name in ("b", "c")]
    assert errors[0] > errors[1] == pytest.approx(fitted.scatter * math.sqrt(2 / 40))


def test_a_candidate_may_be_noisier_than_the_others() -> None:
    quiet = {"a": 0.0, "b": 0.1, "c": 0.2, "d": 0.3}
    wiggle = [0.004, -0.003, 0.001, -0.002]
    rounds = [
        {name: value + wiggle[at - place] for place, (name, value) in enumerate(quiet.items())}
        for at in range(4)
    ]
    for one, own in zip(rounds, (0.1, -0.12, 0.02, 0.0), strict=True):
        one["e"] = 0.15 + own
    fitted = fit_additive_model(rounds)
    assert fitted.error_quantile("e", "a", 0.025) > fitted.error_quantile("c", "a", 0.025)
    pooled = student_tail(
        fitted.difference("e", "a") / fitted.standard_error("e", "a"), fitted.freedom
    )
    assert fitted.p_value_above("e", "a") > 3 * pooled
    chances = [fitted.p_value_above(name, "a") for name in "bcde"]
    assert chances == pytest.approx([2.88872e-3, 7.39835e-5, 1.89204e-5, 4.12415e-4], rel=1e-5)
    assert fitted.p_value_above("e", "a", 0.1) == pytest.approx(4.30029e-6, rel=1e-5)
    quantiles = [fitted.error_quantile(name, "d", 0.1) for name in "abce"]
    assert quantiles == pytest.approx([0.0394411, 0.0394673, 0.0394469, 0.0456972], rel=1e-5)
    assert [fewer for _, fewer in fitted.own] == [3] * 5
    assert fitted.own[0][0] == pytest.approx(0.0444639, rel=1e-5)
    assert fitted.effect("a") == pytest.approx(-0.15)


def test_one_round_says_nothing_of_the_noise() -> None:
    fitted = fit_additive_model([{"a": 1.0, "b": 2.0}])
    assert (fitted.scatter, fitted.freedom) == (None, 0)
    assert fitted.p_value_above("b", "a") == 1.0
    assert fitted.standard_error("b", "a") is None
    assert fitted.error_quantile("b", "a", 0.025) is None


def test_blocks_may_be_disturbed_by_themselves_once_they_tell_all_differences() -> None:
    first = [{"a": 1.0, "b": 2.0}, {"c": 3.0, "d": 4.0}]
    alone = fit_additive_blocks([first])
    assert alone.difference("c", "b") == pytest.approx(1.0)  # as if all had run together
    second = [{"a": 1.0, "c": 3.0}, {"b": 2.0 - 0.7, "d": 4.0 - 0.7}]
    together = fit_additive_blocks([first, second])
    assert together.is_connected
    assert together.difference("c", "b") == pytest.approx(1.0)
    assert together.scatter == pytest.approx(0.0, abs=1e-12)
    assert fit_additive_model([{**first[0], **first[1]}, {**second[0], **second[1]}]).scatter > 0.1
    assert not fit_additive_model(first).is_connected
    assert fit_additive_model([{"a": 1.0}, {}, {"a": 2.0, "b": 2.0}]).is_connected
