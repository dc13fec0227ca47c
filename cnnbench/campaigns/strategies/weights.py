"""Comparison of the weights of modes, by their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cnnbench.errors import BenchmarkError
from cnnbench.records import checkpoint_folder
from cnnbench.run.driver.checkpoints import stored_variables


def distances(checkpoints: Mapping[str, Path]) -> dict[str, tuple[float, str]]:
    """Distances of the weights in folders from those of the first; empty for fewer than two.

    A distance is the largest difference of two elements of a variable from the reference, as a
    share of the largest element of the reference, and the name of that variable; 0 and "" if all
    bits are equal, NaN if some values are NaN. The checkpoints have equally many steps on the same
    data.
    """
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


def _distance(reference: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> tuple[float, str]:
    if reference.keys() != found.keys():
        name = min(reference.keys() ^ found.keys())
        raise BenchmarkError(f"only some modes have the variable {name}")
    largest, where = 0.0, ""
    for name, expected in reference.items():
        if expected.tobytes() == found[name].tobytes():
            continue
        a, b = (np.asarray(array, np.float64) for array in (expected, found[name]))
        size = float(np.max(np.abs(a)))
        with np.errstate(invalid="ignore"):
            gap = float(np.max(np.abs(a - b)))
        value = gap / size if size else gap
        if not value <= largest:
            largest, where = value, name
        if np.isnan(value):
            break
    return largest, where
