"""Distances of weights in checkpoints, against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.campaigns.strategies.weights import WeightDistance, distances
from cnnbench.errors import BenchmarkError
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.variable_mgr.tower_variable import TowerVariable


def result(name: str, folder: Path | None, apart: str = "") -> SimpleNamespace:
    return SimpleNamespace(name=name, apart=apart, checkpoint=folder)


@pytest.fixture
def saved(tmp_path: Path):
    """The result of a mode that has left these values in its checkpoint."""

    def save(name: str, apart: str = "", **values: list[float]) -> SimpleNamespace:
        variables = {
            f"layer/{key}": TowerVariable(key, [tf.Variable(np.float32(value))])
            for key, value in values.items()
        }
        manager = SimpleNamespace(
            savable_variables=lambda: variables, replicas_in_sync=True, get_devices=lambda: ("d",)
        )
        (tmp_path / name).mkdir()
        Checkpoints(manager).save(str(tmp_path / name), 7)
        return result(name, tmp_path / name, apart)

    return save


def test_the_largest_difference_counts_as_a_share_of_the_largest_value(saved) -> None:
    found = distances(
        [
            saved("a", w=[1.0, -4.0], b=[0.0, 0.0]),
            saved("b", w=[1.0, -4.0], b=[0.0, 0.0]),
            saved("c", w=[1.5, -4.0], b=[0.0, 0.0]),
            saved("d", w=[1.5, -4.0], b=[0.0, 0.25]),
            saved("apart", apart="trains apart", w=[9.0, 9.0], b=[9.0, 9.0]),
            result("failed", None),
        ]
    )
    assert found == {
        "a": WeightDistance(0.0),
        "b": WeightDistance(0.0),
        "c": WeightDistance(0.125, "layer/w"),
        "d": WeightDistance(0.25, "layer/b"),
    }
    assert found["c"].within(0.125)
    assert not found["c"].within(0.1)


def test_what_is_no_number_is_not_equal(saved) -> None:
    nan = [math.nan, 1.0]
    found = distances([saved("a", w=nan), saved("b", w=nan), saved("c", w=[1.0, 1.0])])
    assert found["b"] == WeightDistance(0.0)  # the same bits
    assert not found["c"].within(1e9)


def test_slots_are_compared_too(tmp_path: Path) -> None:
    found = []
    for name, value in (("a", 2.0), ("b", 3.0)):
        weight = {"w": TowerVariable("w", [tf.Variable([1.0])])}
        slot = {"w/momentum": TowerVariable("w/momentum", [tf.Variable([value])])}
        manager = SimpleNamespace(
            savable_variables=weight.copy, replicas_in_sync=True, get_devices=lambda: ("d",)
        )
        (tmp_path / name).mkdir()
        Checkpoints(manager, slot).save(str(tmp_path / name), 1)
        found.append(result(name, tmp_path / name))
    assert distances(found)["b"] == WeightDistance(0.5, "w/momentum")


def test_another_network_is_an_error(saved) -> None:
    with pytest.raises(BenchmarkError, match="only some modes have the variable layer/b"):
        distances([saved("a", w=[1.0]), saved("b", w=[1.0], b=[1.0])])


def test_one_mode_has_nothing_to_be_compared_with(saved) -> None:
    assert distances([saved("a", w=[1.0]), saved("x", apart="so", w=[1.0])]) == {}
