"""Parameters of this machine from measured points, and errors of points that were held out.

Least squares of the relative error, no parameter below 0 (Lawson and Hanson 1974, as in
scipy.optimize.nnls), repeated with weights that make it the sum of absolute errors: a
few points that something disturbed then count little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cnnbench.base.stats.descriptive import median
from cnnbench.lab.predict.formulas import Phase
from cnnbench.lab.predict.host import RATES, Host, Work, features, reduction_work
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.points import MeasuredReduction
from cnnbench.lab.predict.workload import NotPredictedError

_ROUNDS = 10
_CAPACITIES = tuple(2.0 ** (exponent / 2) for exponent in range(40, 61))  # 1 MiB to 1 GiB
# An error below this share counts as much as this, or single points would take all weight.
_SMALL_ERROR = 0.01
_LINK_ROUNDS = 5


CostModel: TypeAlias = "Host | Interconnect"


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
      model: what predicts.
      used: the points it was fitted to.
      left_out: points that no formula covers, with the reason.
    """

    model: CostModel
    used: tuple[MeasuredReduction, ...]
    left_out: tuple[tuple[MeasuredReduction, str], ...]


def fit(points: Sequence[MeasuredReduction]) -> Fit:
    """Fits the model of the devices: `Host` for logical CPUs, `Interconnect` for GPUs.

    Raises:
      ValueError: no point that a formula covers.
    """
    used, left_out = _predictable(points)
    if not used:
        raise ValueError("there is no formula for any of the measured algorithms")
    model = _fit_host(used) if used[0].kind == "cpu" else _fit_network(used)
    return Fit(model, used, left_out)


def _predictable(
    points: Sequence[MeasuredReduction],
) -> tuple[tuple[MeasuredReduction, ...], tuple[tuple[MeasuredReduction, str], ...]]:
    """The points that formulas cover, and the others with the reason."""
    used: list[MeasuredReduction] = []
    left_out: list[tuple[MeasuredReduction, str]] = []
    for point in points:
        try:
            if point.unusual is not None:
                raise NotPredictedError(point.unusual)
            if point.kind == "cpu":
                _work(point)
            else:
                _START.seconds(point.spec, point.tensors, point.devices, point.packing)
            used.append(point)
        except NotPredictedError as error:
            left_out.append((point, str(error)))
    return tuple(used), tuple(left_out)


def _fit_host(points: Sequence[MeasuredReduction]) -> Host:
    """Rates for each of several capacities of the caches; the capacity that fits best."""
    work = [_work(point) for point in points]
    seconds = [point.seconds for point in points]
    best: tuple[float, Host] | None = None
    for capacity in _CAPACITIES:
        rows = [
            list(features(amount, point.tensors, point.devices, capacity).values())
            for amount, point in zip(work, points, strict=True)
        ]
        rates, error = _solve(rows, seconds)
        if best is None or error < best[0]:
            best = error, Host(dict(zip(RATES, rates, strict=True)), capacity)
    assert best is not None
    return best[1]


def _work(point: MeasuredReduction) -> Work:
    return reduction_work(point.spec, point.tensors, point.devices, point.packing, point.group_size)


_START = Interconnect(Link("start", 5e-6, 1e-10, 1e-12))


def _fit_network(points: Sequence[MeasuredReduction]) -> Interconnect:
    """Alpha, beta, gamma and launch; the fastest path depends on them, hence rounds."""
    network = _START
    rows: list[list[float]] = []
    for _ in range(_LINK_ROUNDS):
        before, rows = rows, [[1.0, *_sums(network, point)] for point in points]
        if rows == before:
            break
        (launch, alpha, beta, gamma), _ = _solve(rows, [point.seconds for point in points])
        network = Interconnect(Link("fitted", alpha, beta, gamma), launch=launch)
    return network


def _sums(network: Interconnect, point: MeasuredReduction) -> tuple[float, float, float]:
    """Messages, bytes and additions in a row."""
    total = sum(network.phases(point.spec, point.tensors, point.devices, point.packing), Phase())
    return total.coefficients()


def _solve(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Non-negative x with rows @ x close to seconds.

    Returns:
      x, and the mean of the absolute relative errors, which it makes small.
    """
    import numpy as np
    from scipy.optimize import nnls

    matrix: Any = np.asarray(rows, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    # Columns of like size: seconds per byte and per op lie many orders apart.
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    target = np.ones(len(rows))
    weights = np.ones(len(rows))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        solution, _ = nnls(matrix * weights[:, None], target * weights, maxiter=10_000)
        errors = np.abs(matrix @ solution - target)
        weights = 1 / np.sqrt(np.maximum(errors, _SMALL_ERROR))
    error = float(np.abs(matrix @ solution - target).mean())
    return [float(value) for value in solution / scale], error


@dataclass(frozen=True)
class Residual:
    """A prediction against its measurement.

    Attributes:
      point: the measurement.
      predicted: seconds.
    """

    point: MeasuredReduction
    predicted: float

    @property
    def relative(self) -> float:
        """Share of the measured time; positive if too much was predicted."""
        return self.predicted / self.point.seconds - 1


@dataclass(frozen=True)
class Distribution:
    """Absolute relative errors of several points.

    Attributes:
      count: points.
      median, p90, worst: of the absolute relative errors.
      worst_point: the point of the worst.
    """

    count: int
    median: float
    p90: float
    worst: float
    worst_point: MeasuredReduction


def held_out(
    points: Sequence[MeasuredReduction], group: Callable[[MeasuredReduction], Hashable]
) -> list[Residual]:
    """Errors of points predicted from all points of the other groups.

    Args:
      points: covered by formulas.
      group: what is held out together, such as the size.

    Returns:
      One residual per point; none if there is only one group.
    """
    groups: dict[Hashable, list[MeasuredReduction]] = {}
    for point in points:
        groups.setdefault(group(point), []).append(point)
    if len(groups) < 2:
        return []
    residuals = []
    for key, members in groups.items():
        others = [p for other, rest in groups.items() if other != key for p in rest]
        model = fit(others).model
        residuals += [_residual(model, point) for point in members]
    return residuals


def distribution(residuals: Iterable[Residual]) -> Distribution:
    """Median, 90th percentile (the smallest value that 90 % do not exceed) and worst.

    Raises:
      ValueError: no residuals.
    """
    ordered = sorted(residuals, key=lambda residual: abs(residual.relative))
    if not ordered:
        raise ValueError("no residuals")
    sizes = [abs(residual.relative) for residual in ordered]
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return Distribution(len(sizes), median(sizes), p90, sizes[-1], ordered[-1].point)


def by_algorithm(residuals: Iterable[Residual]) -> dict[str, list[Residual]]:
    """Residuals by spec, in order of the spec's text."""
    groups: dict[str, list[Residual]] = {}
    for residual in residuals:
        groups.setdefault(str(residual.point.spec), []).append(residual)
    return dict(sorted(groups.items()))


def _residual(model: CostModel, point: MeasuredReduction) -> Residual:
    if isinstance(model, Host):
        model = replace(model, group_size=point.group_size)
    return Residual(point, model.seconds(point.spec, point.tensors, point.devices, point.packing))
