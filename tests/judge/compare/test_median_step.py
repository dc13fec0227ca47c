"""Recurring pauses turn a verdict and are named; a rare stall does neither.

Tests cnnbench/judge/compare/median_step.py.
"""

import pytest
from sides import every, paused

from cnnbench.judge.compare import METRICS, Policy, Samples, Verdict, compare_records
from cnnbench.judge.compare.median_step import change_and_slow_steps, median_step_text

EVERY_THIRD = every(3, 0.05)


def test_recurring_pauses_are_slower_and_named(runs):
    found = compare_records(paused(runs, "a"), paused(runs, "b", EVERY_THIRD))
    (entry,) = found.entries
    assert entry.main.verdict is Verdict.SLOWER
    assert entry.main.judgement.change == pytest.approx(-0.29, abs=0.03)
    assert entry.main.judgement.median_change == pytest.approx(0, abs=0.02)
    assert "third step" in found.answer
    back = compare_records(paused(runs, "a", EVERY_THIRD), paused(runs, "b"))
    assert back.entries[0].main.verdict is Verdict.FASTER
    assert "in A " in back.answer


def test_a_rare_stall_of_a_hundred_steps_turns_no_verdict_and_is_not_mentioned(runs):
    found = compare_records(paused(runs, "a"), paused(runs, "b", stalled=(3,)))
    (entry,) = found.entries
    assert entry.main.verdict is Verdict.SAME
    assert entry.main.judgement.median_change is None
    assert "median step" not in found.answer


def test_a_side_alone_names_what_its_median_hides(runs):
    assert median_step_text(paused(runs, "a"), 0.03) == ""
    text = median_step_text(paused(runs, "b", EVERY_THIRD), 0.03)
    assert "third step" in text
    assert median_step_text([runs(step_seconds=(0.1, 0.1, 0.3))], 0.03) == ""


def test_only_whole_runs_with_enough_steps_count(runs):
    pausing = paused(runs, "b", EVERY_THIRD)
    text = median_step_text(pausing, 0.03)
    failed = runs(None, error=("Error", "no"))
    assert median_step_text([*pausing, failed], 0.03) == text
    assert median_step_text([*pausing, runs(step_seconds=(0.04,) * 9, losses=())], 0.03) == ""
    assert median_step_text([], 0.03) == ""
    assert median_step_text([failed], 0.03) == ""
    # Of 0.04 and 0.057 s: 42 % more at the median step.
    assert median_step_text(pausing, 0.3) == text
    assert median_step_text(pausing, 0.5) == ""
    level = [runs(step_seconds=(0.1,) * 10, losses=()) for _ in range(3)]
    assert median_step_text(level, 0.0) == ""


LEVEL, THIRD = (0.1,) * 30, (0.1, 0.1, 0.2) * 10


def changes(runs, base, new, change=-0.25, metric="throughput", **policy):
    """What `change_and_slow_steps` returns for three runs of each side."""
    sides = [[runs(step_seconds=seconds, losses=()) for _ in range(3)] for seconds in (base, new)]
    samples = Samples((80.0,) * 3, (60.0,) * 3, METRICS[metric])
    return change_and_slow_steps(samples, change, *sides, Policy(**policy))


def test_the_change_at_the_median_step_and_slow_steps_by_hand(runs):
    # Every third step takes twice as long: 10 * 0.1 s of 4 s, which is a quarter.
    change, (before, after) = changes(runs, LEVEL, THIRD)
    assert (change, before) == (pytest.approx(0.0, abs=1e-12), "")
    assert "third step" in after
    change, (before, after) = changes(runs, THIRD, LEVEL, change=1 / 3)
    assert (change, after) == (pytest.approx(0.0, abs=1e-12), "")
    assert "third step" in before
    assert changes(runs, LEVEL, tuple(2 * one for one in THIRD), change=-0.625)[0] == (
        pytest.approx(-0.5)
    )


@pytest.mark.parametrize(
    ("threshold", "known", "named"),
    # From 60 to 80 images/sec are 33.3 %, and slow steps cost 25 % of the time.
    [(0.24, True, True), (0.26, True, False), (0.33, True, False), (0.34, False, False)],
)
def test_from_which_threshold_on_slow_steps_are_named(runs, threshold, known, named):
    change, texts = changes(runs, LEVEL, THIRD, threshold=threshold)
    assert (change is not None) == known
    assert any(texts) == named


def test_slow_steps_of_both_sides_explain_no_change(runs):
    like = changes(runs, THIRD, THIRD, change=-0.25)
    assert like == (pytest.approx(0.0, abs=1e-12), ("", ""))
    # Every second step of 0.3 s costs half, which is more than a quarter.
    second = (0.1, 0.1, 0.1, 0.1, 0.1, 0.6) * 5
    _, (before, after) = changes(runs, THIRD, second, change=-0.45)
    assert (bool(before), bool(after)) == (True, True)


@pytest.mark.parametrize(
    "given", [{"change": None}, {"change": -1.0}, {"metric": "step_seconds"}, {"change": 0.0}]
)
def test_changes_without_a_median_step(runs, given):
    assert changes(runs, LEVEL, THIRD, **given) == (None, ("", ""))


def test_runs_without_steps_have_no_median_step(runs):
    samples = Samples((80.0,), (60.0,))
    timed, bare = runs(step_seconds=THIRD, losses=()), runs(step_seconds=(), losses=())
    failed = runs(None, error=("Error", "no"))
    for new in ([bare], [timed, bare], [], [failed]):
        assert change_and_slow_steps(samples, -0.25, [timed], new, Policy()) == (None, ("", ""))
    level = runs(step_seconds=LEVEL, losses=())
    found, _ = change_and_slow_steps(samples, -0.25, [level, failed], [timed], Policy())
    assert found == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("numbers", [(4, 5), (5, 4), (4, 4)])
def test_paired_sides_may_have_different_numbers_of_runs(runs, numbers):
    """`compare --paired` reports the change of such runs without a verdict."""
    base, new = (
        [runs(step_seconds=seconds, losses=()) for _ in range(number)]
        for number, seconds in zip(numbers, (LEVEL, THIRD), strict=True)
    )
    samples = Samples((80.0,) * numbers[0], (60.0,) * numbers[1], paired=True)
    change, _ = change_and_slow_steps(samples, -0.25, base, new, Policy())
    assert change == pytest.approx(0.0, abs=1e-12)
