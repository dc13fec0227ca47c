"""Gradients written tower by tower, of which the code under test takes columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.aggregation import pipeline
from cnnbench.variable_mgr.gradients import Column


def columns_of(device_grads: Sequence[Sequence[tuple[Any, Any]]]) -> list[Column]:
    """Columns of device_grads[tower][index], which are (gradient, variable)."""
    return [
        Column([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        for pairs in gradients.transposed(device_grads)
    ]


def trained(manager: Any, tower: int) -> list[Any]:
    """The trainable variables that a tower uses, in creation order."""
    copies = [facade.copy(tower) for facade in manager.savable_variables().values()]
    return [variable for variable in copies if variable.trainable]


class ByTower:
    """A stage, its inverse or a reducer for tensors[tower][index]."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def __call__(self, tensors: Sequence[Sequence[Any]]) -> Any:
        columns = gradients.transposed(tensors)
        result = self.made(columns)
        if not isinstance(result, tuple):
            return _by_tower(result, len(tensors))
        sent, inverse = result
        return _by_tower(sent, len(tensors)), ByTower(inverse)


def run_through(stages: Any, tensors: Sequence[Sequence[Any]], reduce: Any) -> Any:
    """`pipeline.run_through` of tensors[tower][index]."""
    return ByTower(lambda columns: pipeline.run_through(stages, columns, reduce))(tensors)


def _by_tower(columns: Sequence[Sequence[Any]], towers: int) -> list[list[Any]]:
    return [[column[tower] for column in columns] for tower in range(towers)]
