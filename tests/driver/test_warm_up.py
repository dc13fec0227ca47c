"""When a warm-up is looked at, and when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnnbench.driver.plan import WarmUp, make_plan
from cnnbench.errors import FlagError
from cnnbench.flags import Params, parse_args
from cnnbench.stats.steady_state import MIN_STEPS


def test_a_fixed_warm_up_is_never_looked_at():
    assert WarmUp(10, 10).checks == frozenset()
    assert WarmUp(10, 10).status(False) == "fixed"


def test_checks_come_ever_further_apart_and_at_the_end():
    checks = sorted(WarmUp(10, 100, auto=True).checks)
    assert checks == [20, 25, 30, 35, 40, 45, 50, 55, 60, 66, 72, 79, 86, 94, 100]


@given(st.integers(0, 300), st.integers(0, 300))
def test_checks_lie_between_the_least_and_the_most(least, more):
    warm_up = WarmUp(least, max(20, least + more), auto=True)
    assert max(warm_up.checks) == warm_up.most
    assert all(max(least, MIN_STEPS) <= step <= warm_up.most for step in warm_up.checks)


def test_steady():
    warm_up = WarmUp(10, 100, auto=True)
    assert warm_up.steady([0.5] + [0.02] * 19)
    assert not warm_up.steady([0.03] * 15 + [0.02] * 5)
    assert (warm_up.status(True), warm_up.status(False)) == ("steady", "limit")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, WarmUp(10, 10)),
        ({"num_warmup_batches": 0}, WarmUp(0, 0)),
        ({"warmup": "auto"}, WarmUp(10, 200, auto=True)),
        ({"warmup": "auto", "num_warmup_batches": 50}, WarmUp(50, 200, auto=True)),
        ({"warmup": "auto", "max_warmup_batches": 30}, WarmUp(10, 30, auto=True)),
        ({"warmup": "auto", "autotune_threshold": 3}, WarmUp(45, 200, auto=True)),
        ({"warmup": "auto", "eval": True, "train_dir": "d"}, WarmUp(0, 0)),
    ],
)
def test_plan(flags, expected):
    assert make_plan(Params(model="lenet", **flags)).warm_up == expected


def test_more_steps_in_any_case_than_at_most():
    with pytest.raises(FlagError, match="--max_warmup_batches=30: is less than the 40 steps"):
        make_plan(Params(warmup="auto", num_warmup_batches=40, max_warmup_batches=30))


def test_fewer_steps_than_can_be_judged_are_refused():
    with pytest.raises(FlagError, match="at least 20"):
        parse_args(["--warmup=auto", "--max_warmup_batches=19"])
