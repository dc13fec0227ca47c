from __future__ import annotations

import pytest

from cnnbench.errors import UsageError
from cnnbench.models import Initializer, LearningRateSpec, ModelSpec, VariableSpec

ZERO = Initializer.constant(0.0)


@pytest.mark.parametrize(
    ("initializer", "shape", "expected"),
    [
        (Initializer.constant(3.0), (2, 2), 0.0),
        (Initializer.truncated_normal(0.05), (5, 5, 3, 64), 0.05),
        # fan-in 3 * 3 * 16 = 144, and the cut at two standard deviations undone
        (Initializer.variance_scaling(), (3, 3, 16, 32), 1 / 12 / 0.87962566103423978),
        (Initializer.variance_scaling(2.0), (8, 5), 0.5 / 0.87962566103423978),
        (
            Initializer.variance_scaling(2.0, "fan_out"),
            (3, 3, 16, 2),
            (1 / 3) / 0.87962566103423978,
        ),
        (Initializer.variance_scaling(), (4,), 0.5 / 0.87962566103423978),
        (Initializer.variance_scaling(), (), 1 / 0.87962566103423978),
    ],
)
def test_draw_stddev(initializer, shape, expected):
    assert initializer.draw_stddev(shape) == pytest.approx(expected)


def test_parameters_leave_out_moving_averages_and_trainable_ones_leave_out_frozen():
    variables = (
        VariableSpec("kernel", (3, 4), ZERO),
        VariableSpec("frozen", (5,), ZERO, trainable=False),
        VariableSpec("moving_mean", (7,), ZERO, trainable=False, statistic=True),
    )
    spec = ModelSpec("m", "imagenet", (), 10, variables, 0, 0)
    assert (spec.parameters, spec.trainable_parameters, spec.statistics) == (17, 12, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"boundaries_epochs": (1.0,)},
        {"factors": (1.0, 0.1)},
        {"boundaries_epochs": (2.0, 1.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (2.0, 2.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (1.0,), "factors": (1.0, 0.1), "decay_epochs": 2.0},
    ],
)
def test_learning_rate_spec_refuses_what_does_not_fit(wrong):
    with pytest.raises(UsageError, match="learning rate"):
        LearningRateSpec(0.1, **wrong)


def test_a_cosine_falls_in_steps_of_an_epoch():
    rate = LearningRateSpec.cosine(0.4, base_batch=256, epochs=4, warmup_epochs=1.0)
    assert rate.boundaries_epochs == (1.0, 2.0, 3.0)
    # cos 0, 45, 90 and 135 degrees.
    assert rate.factors == pytest.approx((1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2))
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.4, 256, 1.0)
