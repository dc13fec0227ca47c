"""Absurd values of every numeric flag: refused in one line, or planned at once.

Nothing here loads TensorFlow. The everyday suite has a third of the values.
"""

from __future__ import annotations

import time

import pytest
import targets
from covering import slow_if

from cnnbench.errors import UsageError
from cnnbench.flags.params import FLAGS

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

NUMERIC = {spec.name: spec.kind.name for spec in FLAGS if spec.kind.name in VALUES}


THIRDS = [slice(first, None, 3) for first in range(3)]


@pytest.mark.parametrize("part", slow_if(THIRDS[:2], THIRDS), ids=["first", "second", "third"])
@pytest.mark.parametrize("name", NUMERIC)
def test_extreme_values_are_refused_or_planned_at_once(name: str, part: slice) -> None:
    for value in VALUES[NUMERIC[name]][part]:
        start = time.monotonic()
        refusal = "--"
        try:
            targets.plan([*BASE, *COMPANIONS.get(name, ()), f"--{name}={value}"])
        except UsageError as error:
            refusal = str(error)
        assert refusal.startswith("--"), value
        assert time.monotonic() - start < 10, value


def test_a_learning_rate_that_grows_beyond_all_numbers_is_refused() -> None:
    decay = ("--learning_rate_decay_factor=1e30", "--num_epochs_per_decay=0.01")
    with pytest.raises(UsageError, match="makes the learning rate infinite"):
        targets.plan([*BASE, *decay, "--init_learning_rate=1"])
