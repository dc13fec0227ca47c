"""Prediction errors of points that the model was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from cnnbench.predict.fit import CostModel, fit
from cnnbench.predict.host import Host
from cnnbench.predict.points import MeasuredReduction
from cnnbench.stats.descriptive import median


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
