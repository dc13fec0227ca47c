"""Limits of learning-rate schedules, and rates that change at given epochs."""

from __future__ import annotations

import math

import pytest

from cnnbench.base.plugins import PluginInterfaceError
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params
from cnnbench.optimizers import SCHEDULES
from cnnbench.optimizers.schedules import ScheduledSteps, ScheduleSpec, parse_piecewise

RUN = ScheduledSteps(base=0.8, warmup=10, steps=110, steps_per_epoch=10.0)


@pytest.mark.parametrize(
    ("step", "share"), [(10, 0.0), (35, 0.25), (109, 0.99), (110, 1.0), (1000, 1.0)]
)
def test_shares_of_the_steps_after_the_warm_up(step, share):
    assert RUN.done(step) == share


def test_a_run_that_only_warms_up_is_done():
    assert RUN._replace(warmup=110).done(110) == 1.0


@pytest.mark.parametrize(
    ("factor", "epochs", "allowed"),
    [
        # 11 decays in 110 steps; a factor of e^8 is the largest, as e^88 is in float32.
        (math.exp(7.99), 1.0, True),
        (math.exp(8.01), 1.0, False),
        # 10 decays of 11 steps each.
        (math.exp(8.79), 1.1, True),
        (math.exp(8.81), 1.1, False),
        (0.5, 0.1, True),
        (0.5, 0.09, False),
    ],
)
@pytest.mark.parametrize("name", ["staircase", "exponential"])
def test_decays_stay_in_the_range_of_numbers(name, factor, epochs, allowed):
    params = Params(learning_rate_decay_factor=factor, num_epochs_per_decay=epochs)
    if allowed:
        assert SCHEDULES[name](RUN, params)(10) > 0
    else:
        with pytest.raises(FlagError):
            SCHEDULES[name](RUN, params)


@pytest.mark.parametrize(("floor", "allowed"), [(0.8, True), (0.81, False), (0.0, True)])
@pytest.mark.parametrize("name", ["staircase", "exponential", "cosine"])
def test_the_minimum_is_at_most_the_rate(name, floor, allowed):
    params = Params(
        minimum_learning_rate=floor, learning_rate_decay_factor=0.5, num_epochs_per_decay=1.0
    )
    if allowed:
        assert SCHEDULES[name](RUN, params)(10**6) == pytest.approx(floor)
    else:
        with pytest.raises(FlagError) as refused:
            SCHEDULES[name](RUN, params)
        assert refused.value.flag == "minimum_learning_rate"


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({}, ["num_epochs_per_decay", "learning_rate_decay_factor"]),
        ({"num_epochs_per_decay": 1.0}, ["learning_rate_decay_factor"]),
        ({"num_epochs_per_decay": 1.0, "learning_rate_decay_factor": 0.5}, []),
    ],
)
def test_flags_without_which_the_rate_is_constant(flags, missing):
    params = Params(**flags)
    assert SCHEDULES["staircase"].missing_flags(params) == missing
    rate = SCHEDULES["staircase"](RUN, params)(105)
    assert rate == (0.8 if missing else 0.8 * 0.5**10)
    assert SCHEDULES["cosine"].missing_flags(params) == []


@pytest.mark.parametrize(
    ("rate", "allowed"), [(0.0, True), (1e30, True), (-1e-9, False), (math.inf, False)]
)
def test_rates_of_plug_ins_are_finite_and_not_negative(rate, allowed):
    spec = ScheduleSpec(name="own", about="x", make=lambda run: lambda step: rate)
    if allowed:
        assert spec(RUN, Params())(20) == rate
    else:
        with pytest.raises(PluginInterfaceError):
            spec(RUN, Params())


def test_a_schedule_needs_a_function():
    with pytest.raises(UsageError):
        ScheduleSpec(name="own", about="x", make=3)


@pytest.mark.parametrize(
    ("text", "rates", "boundaries"),
    [
        ("0.25", (0.25,), ()),
        ("0.3; 10 ;0.2", (0.3, 0.2), (10,)),
        ("0;0;1e-3;1;0", (0.0, 0.001, 0.0), (0, 1)),
        ("1;999999999;2", (1.0, 2.0), (999_999_999,)),
    ],
)
def test_rates_and_epochs(text, rates, boundaries):
    found = parse_piecewise(text)
    assert (found.rates, found.boundaries, found.source) == (rates, boundaries, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.3;10",
        "0.3;10;0.2;20",
        "0.3;10;0.2;10;0.1",
        "0.3;10;0.2;9;0.1",
        "0.3;-1;0.2",
        "0.3;1.5;0.2",
        "0.3;9999999999;0.2",
        "-0.1",
        "0.3;10;-0.1",
        "nan",
        "0.3;10;x",
    ],
)
def test_rates_and_epochs_that_are_refused(text):
    with pytest.raises(FlagError) as refused:
        parse_piecewise(text)
    assert refused.value.flag == "piecewise_learning_rate_schedule"
