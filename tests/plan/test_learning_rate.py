"""Learning rates of the schedules, among them those of tf_cnn_benchmarks.

Tests cnnbench/plan/rates.py and cnnbench/optimizers/schedules.py.
"""

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.models import get_model
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.optimizers import SCHEDULES
from cnnbench.optimizers.schedules import parse_piecewise
from cnnbench.plan.rates import make_rates

IMAGENET = 1281167
CIFAR10 = 50000
COCO = 118287

CONSTANT = LearningRateSpec(base=0.005)
CIFAR = get_model("resnet20", "cifar10").learning_rate
DENSENET = get_model("densenet40_k12", "cifar10").learning_rate
ALEXNET = get_model("alexnet", "cifar10").learning_rate
SSD = get_model("ssd300", "coco").learning_rate
RESNET = LearningRateSpec(
    base=0.128,
    base_batch=256,
    boundaries_epochs=(30, 60, 80, 90),
    factors=(1, 0.1, 0.01, 0.001, 0.0001),
    warmup_epochs=5,
)
DECAYING = {"init_learning_rate": 0.8, "num_epochs_per_decay": 1, "learning_rate_decay_factor": 0.5}
COSINE = {"init_learning_rate": 0.4, "learning_rate_schedule": "cosine"}


RATES = {
    # The ancestor's own numbers: 5 of 90 epochs of 5004 steps warm up.
    "resnet50": (
        {},
        (RESNET, 256, IMAGENET),
        {
            **{0: 0.0, 1: 0.128 / 25022, 25021: 0.128 * 25021 / 25022, 25022: 0.128},
            **{150136: 0.128, 150137: 0.0128, 300273: 0.0128, 300274: 0.00128},
            10_000_000: 0.0000128,
        },
    ),
    "a rate for a batch of 256, in smaller ones": ({}, (RESNET, 64, IMAGENET), {100091: 0.032}),
    "another base": ({"resnet_base_lr": 0.1}, (RESNET, 512, IMAGENET), {20000: 0.2}),
    "only of models that scale it": (
        {"resnet_base_lr": 0.1},
        (CONSTANT, 512, IMAGENET),
        {20000: 0.005},
    ),
    "constant": ({}, (CONSTANT, 32, IMAGENET), {0: 0.005, 1: 0.005, 10**7: 0.005}),
    # The ancestor multiplies the 390 whole batches of an epoch. Boundaries are inclusive.
    "CIFAR-10": (
        {},
        (CIFAR, 128, CIFAR10),
        {0: 0.1, 31980: 0.1, 31981: 0.01, 117000: 0.001, 117001: 0.0002, 10**7: 0.0002},
    ),
    # The ancestor's exponential_decay: a period is 100 * 50000 // 128 steps, and its end decays.
    "AlexNet": (
        {},
        (ALEXNET, 128, CIFAR10),
        {0: 0.1, 39061: 0.1, 39062: 0.01, 78123: 0.01, 78124: 0.001, 10**9: 0.0},
    ),
    "DenseNets": ({}, (DENSENET, 128, CIFAR10), {58500: 0.1, 58501: 0.01}),
    # The ancestor warms up over int(118287 / 64 * 5) steps and has the boundaries of a batch of 32.
    "ssd300": (
        {},
        (SSD, 64, COCO),
        {
            **{0: 0.0, 1: 0.002 / 9241, 9240: 0.002 * 9240 / 9241, 9241: 0.002},
            **{80000: 0.002, 80001: 0.0002, 100000: 0.0002, 100001: 0.00002},
        },
    ),
    "piecewise": (
        {"piecewise_learning_rate_schedule": parse_piecewise("1;3;.1;5;.01")},
        (RESNET, 32, IMAGENET),
        {0: 1.0, 120108: 1.0, 120109: 0.1, 200181: 0.1, 200182: 0.01, 10**8: 0.01},
    ),
    "a single piece": (
        {"piecewise_learning_rate_schedule": parse_piecewise("0.25")},
        (RESNET, 32, IMAGENET),
        {123: 0.25},
    ),
    "a rate of the user is not scaled": (
        {"init_learning_rate": 0.3},
        (RESNET, 4096, IMAGENET),
        {0: 0.3, 1: 0.3, 10**7: 0.3},
    ),
    "zero is a choice": ({"init_learning_rate": 0.0}, (RESNET, 256, IMAGENET), {30000: 0.0}),
    # A period is int(1000 / 96 * 2.5) steps.
    "decay is a staircase": (
        {**DECAYING, "num_epochs_per_decay": 2.5},
        (CONSTANT, 96, 1000),
        {0: 0.8, 25: 0.8, 26: 0.4, 51: 0.4, 52: 0.2},
    ),
    "decay stops at the minimum": (
        {**DECAYING, "minimum_learning_rate": 0.3},
        (CONSTANT, 10, 100),
        {0: 0.8, 10: 0.4, 20: 0.3, 1000: 0.3},
    ),
    "no decay without a factor": (
        {**DECAYING, "learning_rate_decay_factor": 0.0},
        (CONSTANT, 10, 100),
        {1000: 0.8},
    ),
    "no decay without a period": (
        {**DECAYING, "num_epochs_per_decay": 0.0},
        (CONSTANT, 10, 100),
        {1000: 0.8},
    ),
    # int(1000 / 32 * 1.5) steps.
    "warm-up": (
        {"init_learning_rate": 0.6, "num_learning_rate_warmup_epochs": 1.5},
        (RESNET, 32, 1000),
        {0: 0.0, 23: 0.6 * 23 / 46, 45: 0.6 * 45 / 46, 46: 0.6},
    ),
    "warm-up of pieces": (
        {
            "piecewise_learning_rate_schedule": parse_piecewise("0.6;5;0.06"),
            "num_learning_rate_warmup_epochs": 1.5,
        },
        (RESNET, 32, 1000),
        {0: 0.0, 23: 0.6 * 23 / 46, 45: 0.6 * 45 / 46, 46: 0.6},
    ),
    "no decay in the warm-up": (
        {**DECAYING, "init_learning_rate": 1.0, "num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100),
        {15: 0.5, 29: 29 / 30, 30: 0.125},
    ),
    "no warm-up of a model's own rate": (
        {"num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100),
        {0: 0.005},
    ),
    "no warm-up of less than a step": (
        {"init_learning_rate": 0.5, "num_learning_rate_warmup_epochs": 0.5},
        (CONSTANT, 100, 100),
        {0: 0.5},
    ),
    # A period is 20 steps.
    "exponential decay in every step": (
        {
            **DECAYING,
            **{"learning_rate_schedule": "exponential", "num_epochs_per_decay": 2},
            **{"learning_rate_decay_factor": 0.25, "minimum_learning_rate": 0.06},
        },
        (CONSTANT, 10, 100),
        {0: 0.8, 5: 0.8 / 2**0.5, 10: 0.4, 20: 0.2, 30: 0.1, 40: 0.06},
    ),
    # (1 + cos 45 degrees) / 2 and its complement.
    "a cosine ends at the minimum with the run": (
        {**COSINE, "init_learning_rate": 1.1, "minimum_learning_rate": 0.1},
        (CONSTANT, 10, 100, 80),
        {0: 1.1, 20: 0.9535533906, 40: 0.6, 60: 0.2464466094, 80: 0.1, 81: 0.1, 10**6: 0.1},
    ),
    "a cosine begins after the warm-up": (
        {**COSINE, "num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100, 90),
        {
            **{0: 0.0, 15: 0.2, 29: 0.4 * 29 / 30, 30: 0.4, 45: 0.3414213562, 60: 0.2},
            **{75: 0.0585786438, 90: 0.0},
        },
    ),
    "a run shorter than the warm-up only climbs": (
        {**COSINE, "num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100, 20),
        {0: 0.0, 15: 0.2, 19: 0.4 * 19 / 30},
    ),
    "a run as long as the warm-up, too": (
        {**COSINE, "num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100, 30),
        {29: 0.4 * 29 / 30, 30: 0.0},
    ),
    "a run a step longer has one step at the peak": (
        {**COSINE, "num_learning_rate_warmup_epochs": 3},
        (CONSTANT, 10, 100, 31),
        {29: 0.4 * 29 / 30, 30: 0.4, 31: 0.0},
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_rates(name):
    flags, (defaults, batch, examples, *steps), expected = RATES[name]
    rates = make_rates(Params(**flags), defaults, batch, examples, *(steps or [1000]))
    assert [rates.schedule(step) for step in expected] == pytest.approx(
        list(expected.values()), rel=1e-9, abs=1e-9
    )


def test_every_schedule_has_rates_by_hand():
    found = {flags.get("learning_rate_schedule", "staircase") for flags, *_ in RATES.values()}
    missing = SCHEDULES.keys() - found
    assert not missing, (
        f"tests/plan/test_learning_rate.py: RATES needs a case for each of {missing}"
    )
    assert found <= SCHEDULES.keys()


def test_decay_more_often_than_steps_is_refused():
    flags = Params(**{**DECAYING, "num_epochs_per_decay": 0.5})
    with pytest.raises(FlagError, match=r"--num_epochs_per_decay=0\.5: is less than one step"):
        make_rates(flags, CONSTANT, 100, 100, 1000)
