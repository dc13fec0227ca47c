"""GPU records whose steps were recorded with the time of two, and of none.

Tests cnnbench/judge/compare/comparability.py.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cnnbench.judge.compare import Verdict, compare_records

# Milliseconds, as they were recorded of steps of about 190 and of 50 ms.
TRAINING = (362, 19, 370, 18, 364, 18, 196, 182)
FORWARD_ONLY = (111, 0.1, 100, 0.7, 95, 0.7)
_random = random.Random(1)
NOISY = tuple(100 * _random.lognormvariate(0, 0.6) for _ in range(300))


def is_refused(runs, milliseconds, device="gpu"):
    """Whether one of five runs of NEW with these steps is refused because of them."""

    def made(milliseconds):
        found = runs(step_seconds=tuple(one / 1e3 for one in milliseconds), losses=())
        return replace(found, placement=replace(found.placement, device=device))

    base, new = ([made((100,) * 10) for _ in range(5)] for _ in range(2))
    (entry,) = compare_records(base, [made(milliseconds), *new[1:]]).entries
    reason = entry.main.judgement.reason
    return entry.main.verdict is Verdict.INCONCLUSIVE and reason.startswith("1 of 5 runs in NEW ")


@pytest.mark.parametrize(
    ("milliseconds", "wrong"),
    [
        (FORWARD_ONLY, True),
        ((180,) * 10 + TRAINING * 2, True),
        (TRAINING[:4], False),  # may be chance
        ((180,) * 100 + TRAINING, False),  # a hardly different median
        ((100, 300) * 20, False),
        ((100, 100, 100, 100, 100, 100, 100, 100, 100, 9000) * 10, False),
        (NOISY, False),
        ((), False),
        # Limits by the mean of 100 ms: a quarter, one and a half, and two and a half.
        ((175, 25) * 4, False),
        ((176, 24) * 4, True),
        ((149, 24, 127) * 4, False),
        ((151, 24, 125) * 4, True),
        ((251, 20, 29) * 4, False),
        ((249, 20, 31) * 4, True),
        # At least three, and a tenth of all steps.
        ((200, 0.001) * 3 + (100,) * 24, True),
        ((200, 0.001) * 3 + (100,) * 25, False),
        ((200, 0.001) * 2 + (100,) * 4, False),
    ],
)
def test_step_times_of_gpus(runs, milliseconds, wrong):
    assert is_refused(runs, milliseconds) == wrong


def test_only_times_of_gpus_are_refused(runs):
    devices = ("gpu", "emulated_gpu", "cpu")
    assert [is_refused(runs, TRAINING, device) for device in devices] == [True, True, False]
