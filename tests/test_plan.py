"""Batches, epochs, warm-up and evaluation points."""

from __future__ import annotations

import pytest

from cnnbench.errors import FlagError
from cnnbench.params import Params
from cnnbench.plan import batches_and_epochs, make_plan


@pytest.mark.parametrize(
    ("batches", "epochs", "batch", "examples", "expected"),
    [
        (None, None, 4, 100, (100, 4.0)),
        (7, None, 4, 100, (7, 0.28)),
        (None, 3.0, 2, 3, (5, 10 / 3)),  # 9 images in batches of 2
        (None, 1.0, 2, 10, (5, 1.0)),
        (None, 0.5, 32, 100, (2, 0.64)),
        (None, 0.001, 32, 100, (1, 0.32)),
    ],
)
def test_batches_and_epochs(batches, epochs, batch, examples, expected) -> None:
    assert batches_and_epochs(batches, epochs, batch, examples) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("flags", "warmup"),
    [
        ({}, 10),
        ({"num_warmup_batches": 3}, 3),
        ({"num_warmup_batches": 0}, 0),
        ({"autotune_threshold": 1}, 10),
        ({"autotune_threshold": 3}, 45),
    ],
)
def test_warm_up(flags, warmup) -> None:
    assert make_plan(Params(**flags)).warmup == warmup


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ({"eval_during_training_every_n_steps": 3}, {3, 6, 9}),
        ({"eval_during_training_every_n_steps": 5}, {5}),  # 10 is the final evaluation
        ({"eval_during_training_at_specified_steps": (2, 9, 10, 11)}, {2, 9}),
        # An epoch of CIFAR-10 is 50000 images: 50 steps of 1000, so 0.05 is 2.5 steps.
        ({"eval_during_training_every_n_epochs": 0.05}, {3, 5, 8}),
        ({"eval_during_training_at_specified_epochs": (0.02, 0.15)}, {1, 8}),
    ],
)
def test_evaluation_points(flags, steps) -> None:
    plan = make_plan(
        Params(model="resnet20", data_name="cifar10", batch_size=1000, num_batches=10, **flags)
    )
    assert plan.eval_steps == steps
    assert plan.mode == "training + evaluation"
    assert plan.num_eval_batches == 10


def test_batches_are_per_device() -> None:
    plan = make_plan(Params(model="resnet50", num_gpus=3))
    assert (plan.batch_per_device, plan.global_batch) == (64, 192)
    assert plan.num_epochs == pytest.approx(100 * 192 / 1281167)


def test_evaluation_counts_validation_images() -> None:
    params = Params(
        model="resnet20",
        data_name="cifar10",
        eval=True,
        train_dir="/somewhere",
        batch_size=128,
        num_gpus=2,
        num_eval_epochs=1.0,
    )
    plan = make_plan(params)
    assert plan.num_eval_batches == plan.num_batches == -(-10_000 // 256)
    assert plan.warmup == 0
    assert not plan.trains


def test_the_evaluation_is_as_long_as_the_training_unless_told() -> None:
    def batches(**flags) -> int:
        return make_plan(Params(eval_during_training_every_n_steps=1, **flags)).num_eval_batches

    assert batches() == 100
    assert batches(num_batches=7) == 7
    assert batches(num_batches=7, num_eval_batches=2) == 2
    assert batches(batch_size=1000, num_eval_epochs=1.0) == 50


def test_unknown_models_are_refused_with_a_suggestion() -> None:
    with pytest.raises(FlagError, match="resnet50"):
        make_plan(Params(model="resnet5O"))
