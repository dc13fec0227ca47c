"""Optimizers and schedules of plug-ins.

Tests cnnbench/optimizers/spec.py and cnnbench/optimizers/schedules.py, and the flags that plug-ins
add to cnnbench/flags/params.py.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from registries import kept
from short_runs import TINY, run

from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params, args_from_values
from cnnbench.flags.identity import identity_flags
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    OptimizerSpec,
    ScheduledSteps,
    ScheduleSpec,
    Slot,
    register_optimizer,
    register_schedule,
)
from cnnbench.optimizers.schedules import BUILT_IN
from cnnbench.optimizers.spec import Constant
from cnnbench.plan import check_flags

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
    with kept(OPTIMIZERS, SCHEDULES):
        yield


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


def constant(flag, default, **limits):
    return {"constants": {"epsilon": Constant(flag, default, "", **limits)}}


def own_constant():
    """Registers adagrad with a constant of its own."""
    register_optimizer(OptimizerSpec(**{**SPEC, **constant("my_epsilon", 1.0, minimum=0)}))


def test_a_constant_of_a_plug_in_is_given_in_constants():
    own_constant()
    params = Params(optimizer="adagrad", constants={"my_epsilon": "0.5"})
    assert params.my_epsilon == 0.5
    assert params.constants == {"my_epsilon": 0.5}
    assert params == Params(optimizer="adagrad", constants={"my_epsilon": 0.5})
    assert params != Params(optimizer="adagrad")
    assert Params(optimizer="adagrad", constants={"my_epsilon": 1.0}) == Params(optimizer="adagrad")
    assert params.replace(batch_size=3).my_epsilon == 0.5
    assert params.replace(constants={"my_epsilon": 0.25}).my_epsilon == 0.25
    assert params.replace(constants={}).my_epsilon == 1.0
    assert params.as_dict()["my_epsilon"] == 0.5
    assert "constants" not in params.as_dict()
    assert Params.from_dict(params.as_dict()) == params
    assert identity_flags(params.as_dict())["my_epsilon"] == 0.5
    assert "my_epsilon" not in Params().as_dict()
    with pytest.raises(FlagError, match="my_epsilon=-1: must be at least 0"):
        check_flags(params.replace(constants={"my_epsilon": -1.0}), {})


def test_other_names_are_not_constants_of_plug_ins():
    own_constant()
    with pytest.raises(TypeError, match="my_epsilon"):
        Params(my_epsilon=1.0)
    with pytest.raises(FlagError, match=r"^--momentum=0\.5: no optimizer or schedule of a plug-in"):
        Params(constants={"momentum": 0.5})
    del OPTIMIZERS["adagrad"]
    with pytest.raises(AttributeError, match="my_epsilon"):
        Params().my_epsilon  # noqa: B018
    with pytest.raises(FlagError, match=r"^--my_epsilon=1: no optimizer or schedule of a plug-in"):
        Params(constants={"my_epsilon": 1.0})
    with pytest.raises(TypeError, match="my_epsilon"):
        Params.from_dict({"my_epsilon": 1.0})


def test_every_constant_of_cnnbench_is_a_flag():
    for table in (OPTIMIZERS, SCHEDULES):
        for name, constant in table.constants.items():
            spec = SPECS[name]
            limits = {"minimum": spec.minimum, "maximum": spec.maximum}
            limits |= {"above": spec.above, "below": spec.below}
            assert getattr(Params(), name) == spec.default == constant.default
            assert {limit: bound for limit, bound in limits.items() if bound is not None} == (
                constant.limits
            )


def test_a_constant_without_effect_is_a_notice():
    own_constant()
    flags = {"my_epsilon": 0.5, "optimizer": "adagrad"}
    for changes, why in (
        ({"optimizer": "sgd"}, ("without --optimizer=adagrad",)),
        ({"forward_only": True}, ("with --eval or --forward_only: they do not train",)),
        ({}, ()),
    ):
        found = check_flags(args_from_values({**flags, **changes}), {}).notices
        about = [notice for notice in found if "--my_epsilon " in notice]
        assert [notice.partition(" effect ")[2] for notice in about] == [*why]


def test_two_optimizers_share_a_constant():
    own_constant()
    (shared,) = OPTIMIZERS["adagrad"].constants.values()
    register_optimizer(OptimizerSpec(**{**SPEC, "name": "b", "constants": {"epsilon": shared}}))
    assert "(--optimizer=adagrad or b)." in SPECS["my_epsilon"].help


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "sgd"}, "optimizer sgd is registered already"),
        ({"name": ""}, "an optimizer needs a name of printable characters"),
        (constant("adam_epsilon", 1.0), "--adam_epsilon exists; use OPTIMIZERS.constants['adam_"),
        (constant("batch_size", 1.0), "--batch_size exists already; choose another"),
        (constant("minimum_learning_rate", 1.0), "--minimum_learning_rate exists already; choose"),
        (constant("my-epsilon", 1.0), "lower-case letters, digits and _"),
        (constant(3, 1.0), "lower-case letters, digits and _"),
        (
            {"constants": {"epsilon": Constant("my_epsilon", 1.0, None)}},
            "a text as its help; its name is 'my_epsilon'",
        ),
        (constant("as_dict", 1.0), "--as_dict exists already; choose another"),
        (constant("my_epsilon", 1.0, above=1), "--my_epsilon=1: must be greater than 1"),
        (constant("my_epsilon", None), "--my_epsilon=: must be a finite number"),
        ({"constants": {"epsilon": 1.0}}, "constants must be for 'epsilon' a Constant, not 1.0"),
        ({"update": None}, "adagrad needs either an operation or an update"),
        ({"operation": "ResourceApplyAdagrad"}, "either an operation or"),
        ({"update": None, "operation": "X", "decoupled": True}, "decay needs an update function"),
        ({"update": None, "operation": "X", "takes_step": True}, "takes_step needs an update"),
    ],
)
def test_a_wrong_declaration_is_refused(changes, told):
    with pytest.raises(UsageError, match=re.escape(told)):
        register_optimizer(OptimizerSpec(**{**SPEC, **changes}))


def test_other_objects_and_taken_names_of_schedules_are_refused():
    with pytest.raises(UsageError, match="optimizer: 3 is not of type OptimizerSpec"):
        register_optimizer(3)
    with pytest.raises(UsageError, match="schedule cosine is registered already"):
        register_schedule(SCHEDULES["cosine"])


@pytest.mark.parametrize("name", [*(schedule.name for schedule in BUILT_IN), "own"])
def test_a_floor_above_the_rate_that_falls_to_it_is_refused(name):
    floor = Constant("own_floor", 0.0, "Lower limit", minimum=0, floor=True)
    falling = ScheduleSpec(
        name="own",
        about="linearly to --own_floor",
        make=lambda run, low: lambda step: low + (run.base - low) * (1.0 - run.done(step)),
        constants={"low": floor},
    )
    register_schedule(falling)
    flag = floor.flag if name == "own" else "minimum_learning_rate"
    decay = {"num_epochs_per_decay": 1.0, "learning_rate_decay_factor": 0.5}

    def first_rate(low):
        steps = ScheduledSteps(1.0, 0, 100, 10.0)
        return SCHEDULES[name](steps, SimpleNamespace(**decay, **{flag: low}))(0)

    assert first_rate(1.0) == 1.0
    with pytest.raises(FlagError, match=f"--{flag}=2: must be at most --init_learning_rate=1"):
        first_rate(2.0)


def test_constants_are_those_of_the_registered_optimizers():
    before = OPTIMIZERS.constants
    assert "adam_epsilon" in before
    assert OPTIMIZERS.plugin_constants == SCHEDULES.plugin_constants == {}
    assert len(SPECS) == len([*SPECS])
    own_constant()
    assert len(SPECS) == len([*SPECS])
    assert OPTIMIZERS.constants.keys() - before.keys() == {"my_epsilon"}
    assert OPTIMIZERS.plugin_constants == {"my_epsilon": OPTIMIZERS["adagrad"].flags["my_epsilon"]}
    assert SCHEDULES.plugin_constants == {}
    del OPTIMIZERS["adagrad"]
    assert OPTIMIZERS.constants == before
