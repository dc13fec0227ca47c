"""Comparison of the weights of modes, by their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cnnbench.campaigns.strategies.session import StrategyCase
from cnnbench.errors import BenchmarkError
from cnnbench.run.driver import checkpoint_folder
from cnnbench.run.driver.checkpoints import stored_variables


@dataclass(frozen=True)
class WeightDistance:
    """The distance of weights from the reference, that of the `variable` where it is largest.

    `value` is the largest difference of two elements, as a share of the largest element of the
    reference; 0, with the variable "", if all bits are equal, NaN if some are no numbers.
    """

    value: float
    variable: str = ""

    def within(self, tolerance: float) -> bool:
        """Whether rounding explains the distance."""
        return self.value <= tolerance  # NaN is not


def distances(results: Sequence[StrategyCase]) -> dict[str, WeightDistance]:
    """The distances of all modes that should train alike from the first of them, by name.

    The checkpoints are of equally many steps on the same data; empty for fewer than two.
    """
    return between(
        {
            one.name: one.checkpoint
            for one in results
            if one.checkpoint is not None and not one.apart
        }
    )


def between(checkpoints: Mapping[str, Path]) -> dict[str, WeightDistance]:
    """The distances of weights in folders from those of the first; see `distances`."""
    if len(checkpoints) < 2:
        return {}
    values = {name: _read(name, folder) for name, folder in checkpoints.items()}
    reference = next(iter(values.values()))
    return {name: _distance(reference, found) for name, found in values.items()}


def _read(name: str, folder: Path) -> dict[str, np.ndarray]:
    path = checkpoint_folder.latest(str(folder))
    if path is None:
        raise BenchmarkError(f"{name} has left no checkpoint")
    return stored_variables(path)


def _distance(reference: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> WeightDistance:
    if reference.keys() != found.keys():
        name = min(reference.keys() ^ found.keys())
        raise BenchmarkError(f"only some modes have the variable {name}")
    largest = WeightDistance(0.0)
    for name, expected in reference.items():
        if expected.tobytes() == found[name].tobytes():
            continue
        a, b = (np.asarray(array, np.float64) for array in (expected, found[name]))
        size = float(np.max(np.abs(a)))
        with np.errstate(invalid="ignore"):
            gap = float(np.max(np.abs(a - b)))
        value = gap / size if size else gap
        if not value <= largest.value:
            largest = WeightDistance(value, name)
        if np.isnan(value):
            break
    return largest
