"""The two lines at the top: the answer and the advice."""

from __future__ import annotations

import pytest

from cnnbench.judge.compare import compare_records
from cnnbench.judge.compare.result import advice, answer, two_speeds

FAST, SLOW = 200.0, 36.0


def _compared(lenet_runs, base, new, **more):
    runs = lenet_runs(more.pop("facts", {"usable_cpus": 2}))
    flags = more.pop("flags", {})
    sides = [[runs(speed, flags=flags, **more) for speed in side] for side in (base, new)]
    return compare_records(*sides)


def test_slower_and_faster_have_a_size_and_need_no_advice(lenet_runs):
    base = [100.0, 100.2, 99.8, 100.1, 99.9]
    found = _compared(lenet_runs, base, [0.9 * speed for speed in base])
    told = "NEW is 10.0 % slower (9.7 to 10.3 %), 5 and 5 processes, p = 0.0079."
    assert (answer(found), advice(found)) == (told, "")
    found = _compared(lenet_runs, base, [1.1 * speed for speed in base])
    assert answer(found).startswith("NEW is 10.0 % faster (9.7 to 10.3 %)")


def test_without_runs_on_both_sides_there_is_no_change(lenet_runs):
    found = _compared(lenet_runs, [100.0] * 5, [])
    assert answer(found) == "Missing: NEW has no run of this configuration, only BASE has."
    assert answer(_compared(lenet_runs, [], [])) == "Nothing was compared."
    few = _compared(lenet_runs, [100.0] * 2, [100.0] * 2)
    assert answer(few).startswith("Undecided: 2 processes in BASE")
    assert advice(few) == ""


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        ([FAST, FAST * 1.02, SLOW, SLOW * 0.98], [FAST] * 4, (8 / FAST, 8 / SLOW)),
        # A change of B is no second speed of like processes.
        ([FAST, FAST * 1.02, FAST, FAST], [SLOW] * 4, None),
        # One process is an outlier.
        ([FAST, FAST * 1.02, FAST, SLOW], [FAST] * 4, None),
        # No gap: speeds all over the range.
        ([200.0, 140.0, 100.0, 70.0, 50.0], [200.0] * 5, None),
    ],
)
def test_two_speeds_of_like_processes(lenet_runs, base, new, expected):
    (entry,) = _compared(lenet_runs, base, new).entries
    found = two_speeds(entry)
    assert found == (None if expected is None else pytest.approx(expected, rel=0.02))


def test_noise_is_named_with_what_helps(lenet_runs):
    base, new = [FAST, SLOW, FAST, SLOW, FAST, SLOW], [SLOW, FAST, SLOW, FAST, SLOW, FAST]
    flags = {"device": "cpu"}
    found = _compared(lenet_runs, base, new, flags=flags)
    assert answer(found) == (
        "Too noisy to tell: processes run at two speeds, about 40.00 and 222.2 ms a step."
    )
    assert advice(found) == (
        "More processes will not help: use longer runs (five seconds of timed steps), "
        "--num_intra_threads=1 or an idle machine (cnnbench env --check)."
    )
    # Long runs of one thread leave the machine.
    found = _compared(lenet_runs, base, new, flags={**flags, "num_intra_threads": 1}, steps=100)
    assert advice(found) == (
        "More processes will not help: use an idle machine (cnnbench env --check)."
    )


def test_a_few_more_are_advised_where_they_are_enough(lenet_runs):
    base = [97.0, 98.5, 100.0, 101.5, 103.0]
    found = _compared(lenet_runs, base, [speed * 1.01 for speed in base])
    needed = found.entries[0].main.judgement.needed
    assert advice(found) == f"About {needed - 5} more processes of each side settle it."
    assert answer(found).startswith("Undecided: +1.0 % (")
