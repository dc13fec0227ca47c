"""Optimizers and schedules of plug-ins."""

from __future__ import annotations

import re

import pytest
from short_runs import TINY, run

from cnnbench.errors import UsageError
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    OptimizerSpec,
    ScheduleSpec,
    Slot,
    register_optimizer,
    register_schedule,
)
from cnnbench.optimizers.spec import Constant

EPSILON = OPTIMIZERS.constants["adam_epsilon"]


def adagrad(weight, gradient, rate, squares, epsilon, exponent):
    squares = squares + gradient**2
    return rate * gradient / (squares**exponent + epsilon), squares


SPEC = {
    "name": "adagrad",
    "formula": "s += g^2, w -= lr g / (sqrt(s) + epsilon)",
    "update": adagrad,
    "slots": (Slot("squares", "squares", 0.1),),
    "constants": {"epsilon": EPSILON},
    "fixed": {"exponent": 0.5},
}


@pytest.fixture(autouse=True)
def own_tables():
    before = dict(OPTIMIZERS), dict(SCHEDULES)
    yield
    for table, names in zip((OPTIMIZERS, SCHEDULES), before, strict=True):
        table.clear()
        table.update(names)


@pytest.mark.usefixtures("quick_start")
def test_a_registered_optimizer_and_schedule_train():
    register_optimizer(OptimizerSpec(**SPEC))
    falling = ScheduleSpec(
        name="linear",
        about="linearly to zero",
        make=lambda steps: lambda step: steps.base * (1.0 - steps.done(step)),
    )
    register_schedule(falling)
    assert {"adagrad"} <= set(SPECS["optimizer"].choices)
    flags = {"optimizer": "adagrad", "learning_rate_schedule": "linear", "adam_epsilon": 1e-3}
    made = run(**{**TINY, "init_learning_rate": 0.1, **flags})
    assert made.record.config["optimizer"] == "adagrad"
    assert made.record.losses[-1] < made.record.losses[0]
    assert "no effect" not in made.err


@pytest.mark.usefixtures("quick_start")
def test_a_function_with_another_number_of_results_is_named():
    register_optimizer(OptimizerSpec(**{**SPEC, "update": lambda **given: (given["gradient"],)}))
    with pytest.raises(UsageError, match=r"test_registry.py:\d+: .* tuple of 2, not a tuple of 1"):
        run(optimizer="adagrad")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "sgd"}, "optimizer sgd is registered already"),
        ({"name": ""}, "an optimizer needs a name of printable characters"),
        ({"constants": {"epsilon": Constant("my_epsilon", 1.0, "")}}, "no flag --my_epsilon; use"),
        ({"update": None}, "adagrad needs either an operation or an update"),
        ({"operation": "ResourceApplyAdagrad"}, "either an operation or"),
        ({"update": None, "operation": "X", "decoupled": True}, "only an update can apply decay"),
    ],
)
def test_a_wrong_declaration_is_refused(changes, told):
    with pytest.raises(UsageError, match=re.escape(told)):
        register_optimizer(OptimizerSpec(**{**SPEC, **changes}))


def test_other_objects_and_taken_names_of_schedules_are_refused():
    with pytest.raises(UsageError, match="optimizer: 3 is no OptimizerSpec"):
        register_optimizer(3)
    with pytest.raises(UsageError, match="schedule cosine is registered already"):
        register_schedule(SCHEDULES["cosine"])
