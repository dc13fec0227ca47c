"""Goldens of the ancestor's schedules, flag by flag."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags.groups.optimizer import PiecewiseSchedule, parse_piecewise
from cnnbench.models.spec import LearningRateSpec
from cnnbench.run.driver import learning_rate

IMAGENET = 1281167
CIFAR10 = 50000

CONSTANT = LearningRateSpec(base=0.005)
RESNET = LearningRateSpec(
    base=0.128,
    base_batch=256,
    boundaries_epochs=(30, 60, 80, 90),
    factors=(1, 0.1, 0.01, 0.001, 0.0001),
    warmup_epochs=5,
)


@dataclass(frozen=True)
class Flags:
    init_learning_rate: float | None = None
    learning_rate_schedule: str = "staircase"
    piecewise_learning_rate_schedule: PiecewiseSchedule | None = None
    num_epochs_per_decay: float = 0.0
    learning_rate_decay_factor: float = 0.0
    minimum_learning_rate: float = 0.0
    num_learning_rate_warmup_epochs: float = 0.0
    resnet_base_lr: float | None = None


def make_schedule(flags, defaults, global_batch, examples_per_epoch, steps=1000):
    return learning_rate.make_schedule(flags, defaults, global_batch, examples_per_epoch, steps)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (150136, 0.128),
        (150137, 0.0128),
        (300273, 0.0128),
        (300274, 0.00128),
        (10_000_000, 0.0000128),
    ],
)
def test_resnet50_at_batch_256(step, rate):
    assert make_schedule(Flags(), RESNET, 256, IMAGENET)(step) == pytest.approx(rate, rel=1e-12)


def test_resnet_warms_up_over_five_whole_epochs_of_steps():
    schedule = make_schedule(Flags(), RESNET, 256, IMAGENET)
    steps = 25022  # int(1281167 / 256 * 5)
    assert schedule(1) == pytest.approx(0.128 / steps)
    assert schedule(steps - 1) == pytest.approx(0.128 * (steps - 1) / steps)
    assert schedule(steps) == 0.128


@pytest.mark.parametrize(("batch", "peak"), [(64, 0.032), (256, 0.128), (2048, 1.024)])
def test_resnet_rate_scales_with_the_global_batch(batch, peak):
    schedule = make_schedule(Flags(), RESNET, batch, IMAGENET)
    assert schedule(int(IMAGENET / batch * 5)) == pytest.approx(peak)


def test_resnet_base_lr_overrides_the_base_of_scaled_models_only():
    flags = Flags(resnet_base_lr=0.1)
    assert make_schedule(flags, RESNET, 512, IMAGENET)(20000) == pytest.approx(0.2)
    assert make_schedule(flags, CONSTANT, 512, IMAGENET)(20000) == 0.005


def test_constant_model_default():
    schedule = make_schedule(Flags(), CONSTANT, 32, IMAGENET)
    assert [schedule(step) for step in (0, 1, 10**7)] == [0.005] * 3


def test_unscaled_model_boundaries_are_inclusive():
    cifar = LearningRateSpec(
        base=0.1, boundaries_epochs=(82, 123, 300), factors=(1, 0.1, 0.01, 0.002)
    )
    schedule = make_schedule(Flags(), cifar, 128, CIFAR10)
    boundary = int(50000 / 128 * 82)
    assert (schedule(0), schedule(boundary)) == (0.1, 0.1)
    assert schedule(boundary + 1) == pytest.approx(0.01)
    assert schedule(10**7) == pytest.approx(0.0002)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 1.0), (120108, 1.0), (120109, 0.1), (200181, 0.1), (200182, 0.01), (10**8, 0.01)],
)
def test_piecewise_flag_at_batch_32(step, rate):
    flags = Flags(piecewise_learning_rate_schedule=parse_piecewise("1;3;.1;5;.01"))
    assert make_schedule(flags, RESNET, 32, IMAGENET)(step) == rate


def test_piecewise_flag_with_a_single_rate():
    flags = Flags(piecewise_learning_rate_schedule=parse_piecewise("0.25"))
    assert make_schedule(flags, RESNET, 32, IMAGENET)(123) == 0.25


def test_init_learning_rate_is_constant_and_never_scaled():
    for batch in (32, 4096):
        schedule = make_schedule(Flags(init_learning_rate=0.3), RESNET, batch, IMAGENET)
        assert [schedule(step) for step in (0, 1, 10**7)] == [0.3] * 3


def test_a_learning_rate_of_zero_is_a_choice():
    assert make_schedule(Flags(init_learning_rate=0.0), RESNET, 256, IMAGENET)(30000) == 0.0


def test_exponential_decay_is_a_staircase():
    flags = Flags(init_learning_rate=0.8, num_epochs_per_decay=2.5, learning_rate_decay_factor=0.5)
    schedule = make_schedule(flags, CONSTANT, 96, 1000)
    period = 26  # int(1000 / 96 * 2.5)
    assert [schedule(s) for s in (0, period - 1, period, 2 * period - 1, 2 * period)] == [
        0.8,
        0.8,
        0.4,
        0.4,
        0.2,
    ]


def test_decay_stops_at_the_minimum():
    flags = Flags(
        init_learning_rate=0.8,
        num_epochs_per_decay=1,
        learning_rate_decay_factor=0.5,
        minimum_learning_rate=0.3,
    )
    schedule = make_schedule(flags, CONSTANT, 10, 100)
    assert [schedule(step) for step in (0, 10, 20, 1000)] == [0.8, 0.4, 0.3, 0.3]


@pytest.mark.parametrize(
    "incomplete", [{"num_epochs_per_decay": 1.0}, {"learning_rate_decay_factor": 0.5}]
)
def test_no_decay_with_half_of_its_flags(incomplete):
    flags = Flags(init_learning_rate=0.8, **incomplete)
    assert make_schedule(flags, CONSTANT, 10, 100)(1000) == 0.8


def test_decay_more_often_than_steps_is_refused():
    flags = Flags(init_learning_rate=0.8, num_epochs_per_decay=0.5, learning_rate_decay_factor=0.5)
    with pytest.raises(FlagError, match=r"--num_epochs_per_decay=0\.5: is less than one step"):
        make_schedule(flags, CONSTANT, 100, 100)


@pytest.mark.parametrize(
    "rate",
    [
        {"init_learning_rate": 0.6},
        {"piecewise_learning_rate_schedule": parse_piecewise("0.6;5;0.06")},
    ],
)
def test_warmup_of_user_rates(rate):
    flags = Flags(num_learning_rate_warmup_epochs=1.5, **rate)
    schedule = make_schedule(flags, RESNET, 32, 1000)
    steps = 46  # int(1000 / 32 * 1.5)
    assert schedule(0) == 0.0
    assert schedule(23) == pytest.approx(0.6 * 23 / steps)
    assert schedule(steps - 1) == pytest.approx(0.6 * (steps - 1) / steps)
    assert schedule(steps) == 0.6


def test_warmup_wins_over_decay_and_leaves_the_model_alone():
    decaying = Flags(
        init_learning_rate=1.0,
        num_epochs_per_decay=1,
        learning_rate_decay_factor=0.5,
        num_learning_rate_warmup_epochs=3,
    )
    schedule = make_schedule(decaying, CONSTANT, 10, 100)
    assert schedule(15) == pytest.approx(0.5)
    assert schedule(29) == pytest.approx(29 / 30)
    assert schedule(30) == 0.125
    own = make_schedule(Flags(num_learning_rate_warmup_epochs=3), CONSTANT, 10, 100)
    assert own(0) == 0.005


def test_exponential_decay_falls_in_every_step():
    flags = Flags(
        init_learning_rate=0.8,
        learning_rate_schedule="exponential",
        num_epochs_per_decay=2,
        learning_rate_decay_factor=0.25,
        minimum_learning_rate=0.06,
    )
    schedule = make_schedule(flags, CONSTANT, 10, 100)  # a period is 20 steps
    rates = [schedule(step) for step in (0, 5, 10, 20, 30, 40)]
    assert rates == pytest.approx([0.8, 0.8 / 2**0.5, 0.4, 0.2, 0.1, 0.06])


def test_a_cosine_ends_at_the_minimum_with_the_run():
    flags = Flags(
        init_learning_rate=1.1, learning_rate_schedule="cosine", minimum_learning_rate=0.1
    )
    schedule = make_schedule(flags, CONSTANT, 10, 100, steps=80)
    rates = [schedule(step) for step in (0, 20, 40, 60, 80, 81, 10**6)]
    # (1 + cos 45 degrees) / 2 and its complement.
    assert rates == pytest.approx([1.1, 0.9535533906, 0.6, 0.2464466094, 0.1, 0.1, 0.1])


def test_a_cosine_begins_after_the_warm_up():
    flags = Flags(
        init_learning_rate=0.4, learning_rate_schedule="cosine", num_learning_rate_warmup_epochs=3
    )
    schedule = make_schedule(flags, CONSTANT, 10, 100, steps=90)  # 30 steps of them warm up
    rates = [schedule(step) for step in (0, 15, 29, 30, 45, 60, 75, 90)]
    assert rates == pytest.approx(
        [0, 0.2, 0.4 * 29 / 30, 0.4, 0.3414213562, 0.2, 0.0585786438, 0], abs=1e-9
    )


def test_a_cosine_in_a_run_shorter_than_the_warm_up_only_climbs():
    flags = Flags(
        init_learning_rate=0.4, learning_rate_schedule="cosine", num_learning_rate_warmup_epochs=3
    )
    schedule = make_schedule(flags, CONSTANT, 10, 100, steps=20)
    assert [schedule(step) for step in (0, 15, 19)] == pytest.approx([0, 0.2, 0.4 * 19 / 30])


def test_warmup_shorter_than_a_step_does_nothing():
    flags = Flags(init_learning_rate=0.5, num_learning_rate_warmup_epochs=0.5)
    assert make_schedule(flags, CONSTANT, 100, 100)(0) == 0.5


@pytest.mark.parametrize(("batch", "examples"), [(0, 10), (-1, 10), (10, 0)])
def test_sizes_must_be_positive(batch, examples):
    with pytest.raises(ValueError, match="in batches of"):
        make_schedule(Flags(), CONSTANT, batch, examples)


def test_the_flags_of_the_command_line_fit():
    from cnnbench.flags import Params

    params = Params(init_learning_rate=0.3)
    assert make_schedule(params, CONSTANT, 32, IMAGENET)(0) == 0.3
