from __future__ import annotations

import pytest

from cnnbench.models import Initializer, ModelSpec, VariableSpec
from cnnbench.models.elements import IMAGE_CLASSIFICATION, Element
from cnnbench.models.spec import BatchNorm, KerasDeclaration

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


def test_makers_of_initializers_set_their_own_fields():
    assert Initializer.constant(3.0) == Initializer("constant", 3.0, 1.0, 1.0, "fan_in", "")
    assert Initializer.truncated_normal(0.5) == Initializer("truncated_normal", stddev=0.5)
    assert Initializer.variance_scaling() == Initializer("variance_scaling", scale=1.0)
    assert Initializer.variance_scaling(2.0, "fan_out") == Initializer(
        "variance_scaling", scale=2.0, mode="fan_out"
    )
    given = Initializer.given(lambda name, seed, tower: [seed, tower], "digest")
    assert (given.kind, given.source, given.draw("w", 3, 1)) == ("given", "digest", [3, 1])
    # The source tells the values apart, and not the function.
    assert given == Initializer.given(lambda name, seed, tower: [], "digest")
    assert given != Initializer.given(given.draw, "other")


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"weight_decay": False}, False),
        ({"trainable": False}, False),
        ({"trainable": False, "weight_decay": False}, False),
    ],
)
def test_only_trained_weights_with_decay_fit_16_bits(fields, fits):
    variable = VariableSpec("w", (3, 4), ZERO, **fields)
    assert variable.fits_16_bits is fits
    assert (variable.size, variable.bytes) == (12, 48)
    assert VariableSpec("w", (), ZERO).size == 1
    assert (variable.statistic, variable.dtype) == (False, "")


def test_the_state_of_a_generator_is_no_parameter():
    state = VariableSpec("seed", (2,), ZERO, trainable=False, dtype="int64")
    constant = VariableSpec("scale", (3,), ZERO, dtype="float32")
    spec = ModelSpec("m", "imagenet", (), 10, (state, constant), 0, 0)
    assert (spec.parameters, spec.trainable_parameters, spec.statistics) == (3, 3, 0)
    assert (dict(spec.flattened), spec.recomputed_flops_per_image, spec.peak_values) == (
        {},
        None,
        0,
    )


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ([("image", (224, 224, 3))], "224x224x3"),
        ([("user", ()), ("item", ())], "user, item"),
        ([("x", (5,)), ("y", (2, 1))], "5, 2x1"),
    ],
)
def test_shapes_of_features_as_text(features, text):
    elements = [Element(name, shape, "feature") for name, shape in features]
    spec = ModelSpec("m", "imagenet", (*elements, IMAGE_CLASSIFICATION[1]), 10, (), 0, 0)
    assert spec.input_shape == text


def test_defaults_of_batch_norm_and_of_what_keras_declares():
    assert BatchNorm() == BatchNorm(decay=0.9, epsilon=1e-5, scale=True, unbiased=True)
    assert KerasDeclaration(8, 3, 10, ()).work == ({}, 0, 0)
