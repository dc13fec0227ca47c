"""What a comparison says in its first two lines; golden/sentences.txt has how it says it."""

from __future__ import annotations

import pytest

from cnnbench.judge.compare import compare_records

FAST, SLOW = 200.0, 36.0
BASE = [100.0, 100.2, 99.8, 100.1, 99.9]


@pytest.fixture
def compared(lenet_runs):
    """The comparison of runs of some speeds."""

    def compared(base, new, **more):
        runs = lenet_runs({"usable_cpus": 2})
        return compare_records(*([runs(speed, **more) for speed in side] for side in (base, new)))

    return compared


@pytest.mark.parametrize(
    ("base", "new", "values", "advice"),
    [
        (BASE, [0.9 * speed for speed in BASE], ("10.0 % slower", "9.7 to 10.3", "0.0079"), ""),
        (BASE, [1.1 * speed for speed in BASE], ("10.0 % faster", "9.7 to 10.3", "0.0079"), ""),
        ([100.0] * 5, [], ("Missing", "NEW"), ""),
        ([], [100.0] * 5, ("Missing", "BASE"), ""),
        ([], [], (), ""),
        ([100.0] * 2, [100.0] * 2, ("Undecided", "2 processes"), ""),
        # A few more are advised where they are enough.
        (
            [97.0, 98.5, 100.0, 101.5, 103.0],
            [speed * 1.01 for speed in (97.0, 98.5, 100.0, 101.5, 103.0)],
            ("Undecided", "+1.0 %"),
            "6",
        ),
    ],
)
def test_the_answer_has_the_numbers_and_the_advice_what_is_open(
    compared, base, new, values, advice
):
    found = compared(base, new)
    assert all(value in found.answer for value in values)
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)


@pytest.mark.parametrize(
    ("speeds", "two_speeds", "values"),
    [
        ([FAST, FAST * 1.02, SLOW, SLOW * 0.98] * 2, (39.61, 224.5), ("39.61", "224.5")),
        # One process is an outlier.
        ([FAST, FAST * 1.02, FAST, SLOW, FAST], None, ("115.8 %",)),
        # A small gap, and speeds all over the range.
        ([139.0, 140.0, 100.0, 101.0], None, ("%",)),
        ([200.0, 145.0, 90.0, 65.0], None, ("%",)),
    ],
)
def test_noise_is_named(compared, speeds, two_speeds, values):
    found = compared(speeds, speeds[::-1])
    (entry,) = found.entries
    assert entry.main.too_noisy
    assert all(value in found.answer for value in values)
    if two_speeds is None:
        assert entry.two_speeds is None
    else:
        assert [1e3 * one for one in entry.two_speeds] == pytest.approx(two_speeds, abs=0.05)


def test_noise_has_remedies(compared):
    sides, flags = ([FAST, SLOW] * 3, [SLOW, FAST] * 3), {"device": "cpu"}
    remedies = ("longer runs", "--num_intra_threads=1", "cnnbench env --check")
    short = compared(*sides, flags=flags).advice
    assert all(one in short for one in remedies)
    # Long runs of one thread leave the machine.
    long = compared(*sides, flags={**flags, "num_intra_threads": 1}, steps=100).advice
    assert [one in long for one in remedies] == [False, False, True]
