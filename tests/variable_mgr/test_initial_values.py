"""Initial values: their distributions, and that they depend on seed, name and tower alone.

Tests variable_mgr/base.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from covering import covering_pairs

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr.base import initial_value

MODES = ("parameter_server", "replicated", "independent")


def test_constants():
    value = initial_value(VariableSpec("b", (2, 3), Initializer.constant(0.1)), 7)
    assert value.dtype == "float32"
    np.testing.assert_array_equal(value, np.full((2, 3), np.float32(0.1)))
    assert initial_value(VariableSpec("s", (), Initializer.constant(2.0)), 7).shape == ()


@pytest.mark.parametrize(
    ("initializer", "stddev"),
    [
        (Initializer.truncated_normal(0.5), 0.5 * 0.8796),
        (Initializer.variance_scaling(), (1 / (9 * 40)) ** 0.5),
        (Initializer.variance_scaling(2.0, "fan_out"), (2 / (9 * 60)) ** 0.5),
    ],
)
def test_spread_and_cut_of_normal_draws(initializer, stddev):
    shape = (3, 3, 40, 60)
    value = initial_value(VariableSpec("w", shape, initializer), 7).numpy()
    assert value.shape == shape
    assert value.std() == pytest.approx(stddev, rel=0.02)
    assert abs(value.mean()) < 0.02 * stddev
    assert np.abs(value).max() <= 2 * initializer.draw_stddev(shape) * 1.000001


def test_values_depend_on_seed_name_and_tower_only():
    kernel = VariableSpec("a/kernel", (4, 4), Initializer.truncated_normal(1.0))
    other = VariableSpec("b/kernel", (4, 4), Initializer.truncated_normal(1.0))
    draws = [
        initial_value(kernel, 7),
        initial_value(kernel, 8),
        initial_value(other, 7),
        initial_value(kernel, 7, tower=1),
        initial_value(kernel, 7, tower=2),
    ]
    distinct = {tuple(draw.numpy().ravel()) for draw in draws}
    assert len(distinct) == len(draws)
    np.testing.assert_array_equal(initial_value(kernel, 7), draws[0])


def test_all_modes_and_tower_counts_start_with_the_same_weights(make_manager, declared):
    reference = make_manager("replicated", 1, seed=11)
    expected = {v.name: reference.variable(0, v.name).numpy() for v in declared}
    for mode, towers, place in covering_pairs(MODES, (1, 2, 8), ("cpu", "towers")):
        manager = make_manager(mode, towers, seed=11, parameter_device=place)
        in_sync = range(towers) if manager.replicas_in_sync else [0]
        for tower in in_sync:
            for name, value in expected.items():
                np.testing.assert_array_equal(manager.variable(tower, name), value)


def test_the_order_of_declaration_does_not_matter(make_manager, declared):
    forward, backward = (
        make_manager("replicated", 2, variables=order, seed=3)
        for order in (declared, declared[::-1])
    )
    for variable in declared:
        np.testing.assert_array_equal(
            forward.variable(1, variable.name), backward.variable(1, variable.name)
        )
