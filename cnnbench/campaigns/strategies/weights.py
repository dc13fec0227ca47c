"""Compares the weights that several runs have trained, from their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cnnbench.base.lazy_numpy import np
from cnnbench.campaigns.processes import ResultsFolder
from cnnbench.errors import BenchmarkError
from cnnbench.flags import ACCEPTED, FLAGS, RunPart, names_of_flags
from cnnbench.records.checkpoints import find_latest_checkpoint
from cnnbench.run.runtime.native_log import without_info_lines


class WeightDistance(NamedTuple):
    """How much the weights of a checkpoint differ from the reference.

    Attributes:
      distance: the largest difference between an element and its reference, as a share of the
        variable's largest reference element; NaN if some values are NaN.
      variable: the name of the variable with this element; "" if all bits are equal.
    """

    distance: float
    variable: str


def weight_distances(checkpoints: Mapping[str, Path]) -> dict[str, WeightDistance]:
    """Compares the weights of checkpoints with the weights of the first checkpoint.

    Returns the distance of each checkpoint, by name; nothing for fewer than two checkpoints.
    `checkpoints` contains folders.

    The reference of a variable is its value in the first folder. All checkpoints must have the same
    number of steps on the same data.
    """
    if len(checkpoints) < 2:
        return {}
    values = {name: _read_checkpoint(name, folder) for name, folder in checkpoints.items()}
    reference = next(iter(values.values()))
    return {name: _weight_distance(reference, weights) for name, weights in values.items()}


def _read_checkpoint(name: str, folder: Path) -> dict[str, np.ndarray]:
    # This import loads TensorFlow.
    from cnnbench.run.driver.stored_checkpoint import read_stored_variables

    path = find_latest_checkpoint(str(folder))
    if path is None:
        raise BenchmarkError(f"{name} wrote no checkpoint")
    return read_stored_variables(path)


def _weight_distance(
    reference: dict[str, np.ndarray], weights: dict[str, np.ndarray]
) -> WeightDistance:
    if reference.keys() != weights.keys():
        name = min(reference.keys() ^ weights.keys())
        raise BenchmarkError(f"only some modes have the variable {name}: weights not compared")
    largest, where = 0.0, ""
    for name, expected in reference.items():
        if expected.tobytes() == weights[name].tobytes():
            continue
        a, b = (np.asarray(array, np.float64) for array in (expected, weights[name]))
        size = float(np.max(np.abs(a)))
        with np.errstate(invalid="ignore"):
            gap = float(np.max(np.abs(a - b)))
        value = gap / size if size else gap
        if not value <= largest:
            largest, where = value, name
        if np.isnan(value):
            break
    return WeightDistance(largest, where)


CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, which are removed after their weights have been compared."""

_WEIGHTS = "weights"  # Name of the journal's note with the distances between weights.


def stored_weight_distances(
    folder: ResultsFolder, name: str = ""
) -> Mapping[str, WeightDistance] | None:
    """The weight distances that an earlier session stored under `name`; None if there are none."""
    for event in folder.earlier_journal_notes(_WEIGHTS):
        if event["name"] == name:
            stored = event["distances"].items()
            return {of: WeightDistance(float(gap), variable) for of, (gap, variable) in stored}
    return None


def compare_and_remove(
    folder: ResultsFolder, checkpoints: Mapping[str, Path], name: str = ""
) -> Mapping[str, WeightDistance]:
    """Compares checkpoints by `weight_distances`, stores the result and removes the checkpoints."""
    # Reading checkpoints loads TensorFlow, so it must happen after all measurements.
    with without_info_lines():
        gaps = weight_distances(checkpoints)
    folder.add_journal_note(_WEIGHTS, name=name, distances=gaps)
    folder.remove(folder.folder / CHECKPOINTS)
    return gaps


_NOT_FOR_WEIGHTS = (
    *names_of_flags(ACCEPTED.values(), RunPart.LENGTH | RunPart.WARM_UP | RunPart.EVALUATIONS),
    *names_of_flags(FLAGS, RunPart.LEARNING_RATE),
    *names_of_flags(FLAGS, RunPart.PROFILE),
)
# Learning rate of the processes whose weights are compared.
# Modes add gradients in different orders, so rounding errors of their weights differ.
# With a network's usual learning rate, each step multiplies rounding errors by 100 or more.
_RATE_FOR_WEIGHTS = 1e-6
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.02


def flags_of_weights_process(flags: Mapping[str, str], steps: int) -> dict[str, str]:
    """Changes the flags of a run for a short training whose weights will be compared."""
    return {
        **{name: text for name, text in flags.items() if name not in _NOT_FOR_WEIGHTS},
        "num_batches": str(steps),
        "num_warmup_batches": "0",
        "init_learning_rate": str(_RATE_FOR_WEIGHTS),
        "check_replica_consistency": "1",
    }


def weights_tolerance(precision: str) -> float:
    """Maximum distance between weights (see `weight_distances`) that rounding errors can cause."""
    return _TOLERANCE if precision == "fp32" else _TOLERANCE_16_BITS
