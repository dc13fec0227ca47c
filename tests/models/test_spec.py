from __future__ import annotations

import pytest

from cnnbench.models import Initializer, ModelSpec, VariableSpec

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
