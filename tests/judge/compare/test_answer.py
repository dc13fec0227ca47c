"""The two lines at the top: the answer and the advice."""

from __future__ import annotations

import json

import pytest

from cnnbench.judge.compare import compare_records
from cnnbench.judge.report.renderers import render

FAST, SLOW = 200.0, 36.0
BASE = [100.0, 100.2, 99.8, 100.1, 99.9]


@pytest.fixture
def told(lenet_runs):
    """Answer and advice on runs of some speeds."""

    def told(base, new, **more):
        runs = lenet_runs({"usable_cpus": 2})
        sides = [[runs(speed, **more) for speed in side] for side in (base, new)]
        document = json.loads(render(compare_records(*sides), "json"))
        return document["answer"], document["advice"]

    return told


def test_slower_and_faster_have_a_size_and_need_no_advice(told):
    found = "NEW is 10.0 % slower (9.7 to 10.3 %), 5 and 5 processes, p = 0.0079."
    assert told(BASE, [0.9 * speed for speed in BASE]) == (found, "")
    answer, _ = told(BASE, [1.1 * speed for speed in BASE])
    assert answer.startswith("NEW is 10.0 % faster (9.7 to 10.3 %)")


def test_without_runs_on_both_sides_there_is_no_change(told):
    missing = "Missing: NEW has no run of this configuration, only BASE has."
    assert told([100.0] * 5, []) == (missing, "")
    assert told([], []) == ("Nothing was compared.", "")
    answer, advice = told([100.0] * 2, [100.0] * 2)
    assert (answer[:32], advice) == ("Undecided: 2 processes in BASE; ", "")


@pytest.mark.parametrize(
    ("speeds", "noise"),
    [
        ([FAST, FAST * 1.02, SLOW, SLOW * 0.98] * 2, "run at two speeds, about 39.61 and 224.5 ms"),
        # One process is an outlier.
        ([FAST, FAST * 1.02, FAST, SLOW, FAST], "differ by 115.8 %"),
        # A small gap, and speeds all over the range.
        ([139.0, 140.0, 100.0, 101.0], "differ by"),
        ([200.0, 145.0, 90.0, 65.0], "differ by"),
    ],
)
def test_noise_is_named(told, speeds, noise):
    answer, _ = told(speeds, speeds[::-1])
    assert answer.startswith(f"Too noisy for a verdict: processes {noise}")


def test_noise_has_remedies(told):
    sides, flags = ([FAST, SLOW] * 3, [SLOW, FAST] * 3), {"device": "cpu"}
    assert told(*sides, flags=flags)[1] == (
        "More processes will not help: use longer runs (five seconds of timed steps), "
        "--num_intra_threads=1 or an idle machine (cnnbench env --check)."
    )
    # Long runs of one thread leave the machine.
    assert told(*sides, flags={**flags, "num_intra_threads": 1}, steps=100)[1] == (
        "More processes will not help: use an idle machine (cnnbench env --check)."
    )


def test_a_few_more_are_advised_where_they_are_enough(told):
    base = [97.0, 98.5, 100.0, 101.5, 103.0]
    answer, advice = told(base, [speed * 1.01 for speed in base])
    assert answer.startswith("Undecided: +1.0 % (")
    assert advice == "About 6 more processes of each side settle it."
