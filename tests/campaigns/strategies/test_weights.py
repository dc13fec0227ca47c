"""Distances of weights in checkpoints, against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cnnbench.campaigns.strategies.weights import weight_distances
from cnnbench.errors import BenchmarkError


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., dict[str, tuple[float, str]]]:
    """found(a={NAME: VALUES}, ...): distances of modes that have left these in checkpoints."""
    import tensorflow as tf

    from cnnbench.run.driver.checkpoints import Checkpoints
    from cnnbench.variable_mgr.towers import TowerVariable

    def found(**modes: dict[str, list[float]]) -> dict[str, tuple[float, str]]:
        for mode, values in modes.items():
            variables = {
                f"layer/{name}": TowerVariable(name, [tf.Variable(np.float32(value))])
                for name, value in values.items()
            }
            slots = {name: variables.pop(name) for name in [*variables] if "slot" in name}
            manager = SimpleNamespace(
                savable_variables=variables.copy,
                replicas_in_sync=True,
                get_devices=lambda: ("d",),
            )
            (tmp_path / mode).mkdir()
            Checkpoints(manager, slots).save(str(tmp_path / mode), 7)
        return weight_distances({mode: tmp_path / mode for mode in modes})

    return found


def test_the_largest_difference_counts_as_a_share_of_the_largest_value(found) -> None:
    zero = [0.0, 0.0]
    assert found(
        a={"w": [1.0, -4.0], "b": zero, "slot": [2.0]},
        b={"w": [1.0, -4.0], "b": zero, "slot": [2.0]},
        c={"w": [1.5, -4.0], "b": zero, "slot": [2.0]},
        d={"w": [1.5, -4.0], "b": [0.0, 0.25], "slot": [2.0]},
        e={"w": [1.0, -4.0], "b": zero, "slot": [3.0]},
    ) == {
        "a": (0.0, ""),
        "b": (0.0, ""),
        "c": (0.125, "layer/w"),
        "d": (0.25, "layer/b"),
        "e": (0.5, "layer/slot"),
    }


def test_what_is_no_number_is_not_equal(found) -> None:
    nan = [math.nan, 1.0]
    of = found(a={"w": nan}, b={"w": nan}, c={"w": [1.0, 1.0]})
    assert of["b"] == (0.0, "")  # the same bits
    assert math.isnan(of["c"][0])


def test_another_network_is_an_error(found) -> None:
    with pytest.raises(BenchmarkError, match="only some modes have the variable layer/b"):
        found(a={"w": [1.0]}, b={"w": [1.0], "b": [1.0]})


def test_one_mode_has_nothing_to_be_compared_with(found) -> None:
    assert found(a={"w": [1.0]}) == {}
