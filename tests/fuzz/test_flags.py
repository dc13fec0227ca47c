"""Absurd values of every numeric flag: refused in one line, or planned at once.

Only what happens before TensorFlow is loaded runs here, so that hundreds of values take seconds.
"""

from __future__ import annotations

import math
import time

import pytest

from cnnbench.errors import UsageError
from cnnbench.flags import parse_args
from cnnbench.flags.params import FLAGS
from cnnbench.run.driver.learning_rate import make_schedule
from cnnbench.run.driver.plan import make_plan

BASE = ("--model=trivial", "--data_name=cifar10", "--device=cpu")
VALUES = {
    "integer": (
        *("-1", "0", "1", "100000000", "2147483647", "2147483648"),
        *("9223372036854775807", "9223372036854775808", "1" + 40 * "0"),
    ),
    "number": ("-1e308", "0", "5e-324", "1e-300", "1e-9", "1", "1e30", "1e300", "1e308"),
    "integers": ("2147483648", "1,9223372036854775808"),
    "numbers": ("1e-300", "1e-9,1", "1e30", "1,1e308"),
}
DECAY = ("--init_learning_rate=0.1", "--learning_rate_decay_factor=0.9")
COMPANIONS = {
    "num_epochs_per_decay": DECAY,
    "minimum_learning_rate": (*DECAY, "--num_epochs_per_decay=2"),
    "learning_rate_decay_factor": ("--init_learning_rate=0.1", "--num_epochs_per_decay=0.01"),
    "num_learning_rate_warmup_epochs": ("--init_learning_rate=0.1",),
    "stop_at_top_1_accuracy": ("--eval_during_training_every_n_steps=5",),
    "num_eval_epochs": ("--eval_during_training_every_n_steps=5",),
}
"""What a flag needs to have an effect."""

NUMERIC = [spec.name for spec in FLAGS if spec.kind in VALUES]
KINDS = {spec.name: spec.kind for spec in FLAGS}


def plan_of(*flags: str) -> None:
    params = parse_args([*BASE, *flags]).params
    plan = make_plan(params)
    steps = plan.num_batches
    schedule = make_schedule(
        params, plan.model.learning_rate, plan.global_batch, max(1, plan.train_examples), steps
    )
    assert all(math.isfinite(schedule(step)) for step in (0, 1, steps // 2, steps - 1))


@pytest.mark.parametrize("name", NUMERIC)
def test_extreme_values_are_refused_or_planned_at_once(name: str) -> None:
    for value in VALUES[KINDS[name]]:
        start = time.monotonic()
        try:
            plan_of(*COMPANIONS.get(name, ()), f"--{name}={value}")
        except UsageError as error:
            refusal = str(error)
        else:
            refusal = ""
        assert refusal.startswith("--") or not refusal, value
        assert time.monotonic() - start < 10, value


def test_a_learning_rate_that_grows_beyond_all_numbers_is_refused() -> None:
    decay = ("--learning_rate_decay_factor=1e30", "--num_epochs_per_decay=0.01")
    with pytest.raises(UsageError, match="grows beyond all numbers"):
        plan_of(*decay, "--init_learning_rate=1")
