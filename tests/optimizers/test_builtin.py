"""Constants of the optimizers: their defaults, as in the papers, and the values that are allowed.

Tests cnnbench/optimizers/builtin/*.py.
"""

from __future__ import annotations

import pytest

from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import parse_run

# Default, values that are allowed, and values that are not.
CONSTANTS = {
    "momentum": (0.9, (0.0, 1.0), (-0.1, 1.1)),
    "rmsprop_decay": (0.9, (0.0, 1.0), (-0.1, 1.1)),
    "rmsprop_momentum": (0.9, (0.0, 1.0), (-0.1, 1.1)),
    "rmsprop_epsilon": (1.0, (0.0, 5.0), (-0.1,)),
    "adam_beta1": (0.9, (0.0, 0.999), (-0.1, 1.0)),
    "adam_beta2": (0.999, (0.0, 0.99999), (-0.1, 1.0)),
    "adam_epsilon": (1e-8, (0.0, 0.1), (-0.1,)),
    "lamb_epsilon": (1e-6, (0.0, 0.1), (-0.1,)),
    "lion_beta1": (0.9, (0.0, 0.999), (-0.1, 1.0)),
    "lion_beta2": (0.99, (0.0, 0.999), (-0.1, 1.0)),
    "lars_coefficient": (1e-3, (1e-9, 2.0), (0.0, -0.1)),
}


def optimizer_of(flag):
    return next(name for name, spec in OPTIMIZERS.items() if flag in spec.flags)


@pytest.mark.parametrize("flag", CONSTANTS)
def test_defaults_and_limits_of_constants(flag):
    default, allowed, refused = CONSTANTS[flag]
    assert SPECS[flag].default == default
    for value in allowed:
        plan = parse_run((f"--optimizer={optimizer_of(flag)}", f"--{flag}={value}"))
        assert getattr(plan.params, flag) == value
    for value in refused:
        with pytest.raises((FlagError, UsageError), match=flag):
            parse_run((f"--optimizer={optimizer_of(flag)}", f"--{flag}={value}"))


def test_all_constants_have_been_tried():
    assert {flag for spec in OPTIMIZERS.values() for flag in spec.flags} == {*CONSTANTS}


@pytest.mark.parametrize(
    ("name", "linear", "decoupled", "refuses_fp16"),
    [
        ("sgd", True, False, False),
        ("momentum", False, False, False),
        ("rmsprop", False, False, False),
        ("adam", False, False, True),
        ("adamw", False, True, True),
        ("lamb", False, True, True),
        ("lars", False, True, True),
        ("lion", False, True, False),
    ],
)
def test_properties_of_optimizers(name, linear, decoupled, refuses_fp16):
    spec = OPTIMIZERS[name]
    assert (spec.linear, spec.decoupled, bool(spec.refuses_fp16)) == (
        linear,
        decoupled,
        refuses_fp16,
    )


def test_values_of_slots_and_fixed_arguments():
    initial = {
        name: [slot.initial for slot in spec.slots]
        for name, spec in OPTIMIZERS.items()
        if spec.slots
    }
    assert initial == {
        **{"momentum": [0.0], "rmsprop": [1.0, 0.0], "lars": [0.0], "lion": [0.0]},
        **{name: [0.0, 0.0] for name in ("adam", "adamw", "lamb")},
    }
    assert OPTIMIZERS["momentum"].fixed == {"use_nesterov": True}
    assert OPTIMIZERS["sgd"].mlperf["sgd_opt_momentum"] == 0
    assert OPTIMIZERS["lars"].mlperf["lars_epsilon"] == 0
    assert OPTIMIZERS["lion"].values(Params(lion_beta1=0.5))["lion_beta1"] == 0.5
