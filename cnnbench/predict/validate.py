"""How well the model predicts points it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from cnnbench.predict.fit import fit
from cnnbench.predict.host import Host
from cnnbench.predict.network import Network
from cnnbench.predict.points import Point, median


@dataclass(frozen=True)
class Error:
    """A prediction against its measurement.

    Attributes:
      point: the measurement.
      predicted: seconds.
    """

    point: Point
    predicted: float

    @property
    def relative(self) -> float:
        """Of the measured time; positive if too much was predicted."""
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
    worst_point: Point


def in_sample(points: Sequence[Point]) -> list[Error]:
    """Errors of the model that was fitted to the same points."""
    model = fit(points).model
    return [_error(model, point) for point in points]


def held_out(points: Sequence[Point], group: Callable[[Point], Hashable]) -> list[Error]:
    """Errors of points predicted from all points of the other groups.

    Args:
      points: covered by formulas.
      group: what is held out together, such as the size.

    Returns:
      One error per point; none if there is only one group, from which nothing follows
      for another.
    """
    groups: dict[Hashable, list[Point]] = {}
    for point in points:
        groups.setdefault(group(point), []).append(point)
    if len(groups) < 2:
        return []
    errors = []
    for key, members in groups.items():
        others = [p for other, rest in groups.items() if other != key for p in rest]
        model = fit(others).model
        errors += [_error(model, point) for point in members]
    return errors


def by_size(point: Point) -> Hashable:
    """Points of one total size."""
    return point.bytes


def by_devices(point: Point) -> Hashable:
    """Points of one number of devices."""
    return point.devices


def distribution(errors: Iterable[Error]) -> Distribution:
    """Median, 90th percentile (the smallest value that 90 % do not exceed) and worst.

    Raises:
      ValueError: no errors.
    """
    ordered = sorted(errors, key=lambda error: abs(error.relative))
    if not ordered:
        raise ValueError("no errors")
    sizes = [abs(error.relative) for error in ordered]
    return Distribution(
        len(sizes),
        median(sizes),
        sizes[math.ceil(0.9 * len(sizes)) - 1],
        sizes[-1],
        ordered[-1].point,
    )


def by_algorithm(errors: Iterable[Error]) -> dict[str, list[Error]]:
    """Errors by spec, in order of the spec's text."""
    groups: dict[str, list[Error]] = {}
    for error in errors:
        groups.setdefault(str(error.point.spec), []).append(error)
    return dict(sorted(groups.items()))


def _error(model: Host | Network, point: Point) -> Error:
    if isinstance(model, Host):
        model = replace(model, group_size=point.group_size)
    return Error(point, model.seconds(point.spec, point.tensors, point.devices, point.packing))
