"""Level changes that `cnnbench history` finds in simulated time series, and their positions.

A time series contains measurements of consecutive commits, with one run each unless `RUNS` applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cnnbench.judge.history import METRICS, SeriesPoint, TimeSeries, Trend, trend
from cnnbench.judge.metrics.origin import Origin
from validation.studies import (
    Generator,
    Series,
    Study,
    Sums,
    all_kept,
    percent_of,
    share_of,
    surely_above,
    surely_below,
)

SCATTER = 0.05
"""Standard deviation of the logarithms of speeds, except for noise with two states."""

_SLOW_STATE, _SLOW_SHARE, _WITHIN = 0.7, 0.3, 0.01

RED = 0.05
"""Stated largest share of time series without a true change that have a slowdown not undone."""

HELD = 0.95
"""Stated smallest share of found level changes whose range contains the true position."""

Noise = Callable[[Generator, int], Series]


def _correlated(generator: Generator, count: int, correlation: float) -> Series:
    values = generator.standard_normal(count)
    for index in range(1, count):
        new = math.sqrt(1 - correlation**2) * values[index]
        values[index] = correlation * values[index - 1] + new
    return SCATTER * values


def _two_states(generator: Generator, count: int) -> Series:
    slow = generator.random(count) < _SLOW_SHARE
    return math.log(_SLOW_STATE) * slow + _WITHIN * generator.standard_normal(count)


NOISES: Mapping[str, Noise] = {
    "normal": lambda g, n: SCATTER * g.standard_normal(n),
    "Laplace": lambda g, n: SCATTER * g.laplace(0.0, math.sqrt(0.5), n),
    "heavy tails, t(3)": lambda g, n: SCATTER * g.standard_t(3, n) / math.sqrt(3),
    "5 % of points 8 sd off": lambda g, n: (
        SCATTER * (g.standard_normal(n) + 8.0 * (g.random(n) < 0.05))
    ),
    "correlated, 0.3": partial(_correlated, correlation=0.3),
    "correlated, 0.5": partial(_correlated, correlation=0.5),
    "correlated, 0.6": partial(_correlated, correlation=0.6),
    "two states, 30 % at x 0.7": _two_states,
}
"""Kinds of noise of runs; the history uses the median of a commit's runs."""

POINTS = (6, 8, 12, 30, 60, 120)
RUNS = (1, 3)
"""Runs of each commit. With noise that is correlated between commits, only one run is simulated."""

STEPS = (
    *((6, 5, 3), (6, 8, 3), (12, 5, 6), (30, 3, 15), (30, 5, 3)),
    *((60, 3, 5), (60, 3, 10), (60, 5, 3), (60, 5, 5), (60, 8, 2)),
)
"""True level changes: commits, size in standard deviations, commits from the change on."""

POWER: Mapping[tuple[int, float, int], float] = {
    (60, 3, 10): 0.75,
    (60, 5, 5): 0.80,
    (60, 8, 2): 0.65,
}
"""Smallest shares of level changes that are found under normal noise, at most two commits off."""

PLACES = ((12, 3, 6), (20, 2, 10), (40, 2, 20), (40, 3, 20), (60, 3, 6), (100, 2, 20))


def trend_of(logs: Series, hosts: Sequence[str] = ()) -> Trend:
    """Finds levels and level changes in a time series of throughputs.

    Args:
      logs: logarithms of the throughputs, [commits, runs].
      hosts: name of the host for each commit.
    """
    points = tuple(
        SeriesPoint(
            name=str(index),
            origin=Origin(),
            runs=(),
            values=tuple(np.exp(runs).tolist()),
            hosts=tuple(hosts[index : index + 1]),
        )
        for index, runs in enumerate(logs)
    )
    series = TimeSeries(configuration="", key="", machine="", points=points, empty=())
    return trend(series, METRICS["throughput"])


def draw_noise(generator: Generator, noise: str, points: int, runs: int) -> dict[Any, float]:
    """Draws a time series without a level change; returns what the history reports about it."""
    found = trend_of(NOISES[noise](generator, points * runs).reshape(points, runs))
    return {
        "stepped": bool(found.steps),
        "red": bool(found.lasting_regressions),
        "states": found.noise.states is not None,
        "correlated": found.noise.correlation is not None,
    }


def draw_step(generator: Generator, noise: str, step: tuple[int, float, int]) -> dict[Any, float]:
    """Draws a time series with one slowdown; returns how well the nearest reported change matches.

    Returns:
      "near": whether the reported change is at most two commits off; "stepped": whether it is a
      level change with a range (a trend has none); "held": whether the range contains the true
      position; "width": number of commits in the range.
    """
    points, size, after = step
    place = points - after
    logs = NOISES[noise](generator, points)
    logs[place:] -= size * SCATTER
    steps = trend_of(logs.reshape(points, 1)).steps
    if not steps:
        return {}
    nearest = min(steps, key=lambda one: abs(one.index - place))
    near: dict[Any, float] = {"near": abs(nearest.index - place) <= 2}
    if nearest.is_trend:
        return near
    low, high = (int(one.name) for one in (nearest.earliest, nearest.latest))
    return {**near, "stepped": 1, "held": low <= place <= high, "width": high - low + 1}


@dataclass(frozen=True)
class Shape:
    """Changes in a simulated time series of 40 commits, and what the history must report.

    Attributes:
      name: description.
      logs: logarithm of the level at each commit.
      kind: kind of change that the history must report; "" if it must report nothing; "red" if it
        must report a slowdown of any kind.
      ends: indices of the commits at which the change begins and ends, or of all level changes.
      least: smallest share of time series with white noise that must be reported in this way; None
        for no requirement.
    """

    name: str
    logs: Series
    kind: str
    ends: tuple[int, ...] = ()
    least: float | None = 0.90

    def is_said(self, found: Trend) -> bool:
        """Whether a history reports exactly this shape; positions may be off by three commits."""
        states = found.noise.states
        if self.kind in ("two_states", "two_machines"):
            return not found.steps and states is not None and states.kind == self.kind
        if self.kind == "red":
            return bool(found.lasting_regressions)
        if self.kind in ("", "outlier"):
            return not found.steps and (
                not self.kind or [one.index for one in found.outliers] == [*self.ends]
            )
        places = [step.index for step in found.steps]
        if self.kind == "trend":
            places += [int(step.latest.name) for step in found.steps]
        return (
            len(places) == len(self.ends)
            and all(step.kind == self.kind for step in found.steps)
            and all(abs(a - b) <= _OFF for a, b in zip(places, self.ends, strict=True))
        )


def _stepped(*changes: tuple[int, float]) -> Series:
    logs = np.zeros(_SHAPED)
    for place, change in changes:
        logs[place:] += math.log1p(change)
    return logs


def _sloped(first: int, last: int, change: float) -> Series:
    total = (last - first + 1) * math.log1p(change)
    logs: Series = np.interp(np.arange(_SHAPED), [first - 1, last], [0.0, total])
    return logs


def _pulse(place: int, points: int, change: float) -> Series:
    return _stepped((place, change)) - _stepped((place + points, change))


_SHAPED, _NOISE, _OFF, _SLOW_HOST = 40, 0.015, 3, -0.08

_ALL_SHAPES = (
    Shape("nothing", _stepped(), "", (), 0.98),
    Shape("-5 % from 10 on", _stepped((10, -0.05)), "red", (), 0.97),
    Shape("-5 % from 20 on", _stepped((20, -0.05)), "red", (), 0.97),
    Shape("-5 % from 30 on", _stepped((30, -0.05)), "red", (), 0.97),
    Shape("-5 % for 11 points", _pulse(15, 11, -0.05), "undone", (15, 26), 0.75),
    Shape("-10 % for 11 points", _pulse(15, 11, -0.10), "undone", (15, 26), 0.97),
    Shape("+5 % for 11 points", _pulse(15, 11, 0.05), "red", (), 0.75),
    Shape("-10 % twice", _stepped((12, -0.1), (26, -0.1)), "step", (12, 26)),
    Shape("-8 % from 37 on", _stepped((37, -0.08)), "red", (), None),
    Shape("-1 % each from 10 to 29", _sloped(10, 29, -0.01), "trend", (10, 29)),
    Shape("-2 % each from 1 to 39", _sloped(1, 39, -0.02), "trend", (1, 39)),
    Shape("+8 % for 5 points", _pulse(18, 5, 0.08), "plateau", (18, 23)),
    Shape("-12 % for 1 point", _pulse(18, 1, -0.12), "outlier", (18,)),
    Shape("two states", _stepped(), "two_states"),
    Shape("two machines", _stepped(), "two_machines"),
)
SHAPES = {one.name: one for one in _ALL_SHAPES}
"""Time series of 40 commits with noise of 1.5 %; "two states" has different noise."""

CORRELATIONS = (0.0, 0.3, 0.6)
_FALSE_IF_CORRELATED = 0.05


def draw_shape(generator: Generator, name: str, correlation: float) -> dict[Any, float]:
    """Draws a time series of a shape; returns whether the history reports the shape."""
    shape, hosts = SHAPES[name], list[str]()
    logs = shape.logs + _NOISE / SCATTER * _correlated(generator, _SHAPED, correlation)
    if shape.kind == "two_states":
        logs = _two_states(generator, _SHAPED)
    if shape.kind == "two_machines":
        is_slow = generator.random(_SHAPED) < _SLOW_SHARE
        logs = logs + math.log1p(_SLOW_HOST) * is_slow
        hosts = ["slow" if one else "fast" for one in is_slow]
    return {"said": shape.is_said(trend_of(logs.reshape(-1, 1), hosts))}


def _unsaid(found: Sums, name: str, correlation: float) -> str:
    least = SHAPES[name].least if not correlation else None
    if correlation and not SHAPES[name].kind:
        least = 1 - _FALSE_IF_CORRELATED
    if least is None or not surely_below(found["said"], found["draws"], least):
        return ""
    return f"{name}, {correlation}: {share_of(found, 'said')}"


def _red(found: Sums, noise: str, points: int, runs: int) -> str:
    above = surely_above(found["red"], found["draws"], RED)
    return f"{_with_runs(noise, runs)}, {points}: {share_of(found, 'red')}" if above else ""


def _with_runs(noise: str, runs: int) -> str:
    return noise + (f", {runs} runs" if runs > 1 else "")


def _step_name(step: tuple[int, float, int]) -> str:
    points, size, after = step
    return f"{size} sd, the last {after} of {points}"


def _not_found(found: Sums, noise: str, step: tuple[int, float, int]) -> str:
    if noise == "normal" and surely_below(found["near"], found["draws"], POWER.get(step, 0.0)):
        return f"{_step_name(step)}: {share_of(found, 'near')}"
    return ""


def _not_held(found: Sums, noise: str, step: tuple[int, float, int]) -> str:
    if not surely_below(found["held"], found["stepped"], HELD):
        return ""
    return f"{noise}, {_step_name(step)}: {percent_of(found['held'] / found['stepped'])}"


def _range_cell(one: Sums) -> str:
    if not one["stepped"]:
        return "-"
    held, width = (one[name] / one["stepped"] for name in ("held", "width"))
    return f"{percent_of(held)} ({width:.1f})"


HISTORY = (
    Study(
        header=("40 points", "said", *(f"correlation {one:g}" for one in CORRELATIONS)),
        tables={
            "": {
                (name, shape.kind or "nothing"): [(name, one) for one in CORRELATIONS]
                for name, shape in SHAPES.items()
            }
        },
        draw=draw_shape,
        cells=lambda found: [share_of(one, "said") for one in found],
        judge=all_kept(
            "history: what happens in a series is said as often as required",
            _unsaid,
            "in all rows",
        ),
        part=4,
    ),
    Study(
        header=(
            "a step · red · two states named · correlation named, per cent",
            *map(str, POINTS),
        ),
        tables={
            "": {
                (_with_runs(noise, runs),): [(noise, points, runs) for points in POINTS]
                for noise in NOISES
                for runs in (RUNS if "correlated" not in noise else RUNS[:1])
            }
        },
        draw=draw_noise,
        cells=lambda found: [
            " · ".join(
                f"{100 * one[name] / one['draws']:.1f}"
                for name in ("stepped", "red", "states", "correlated")
            )
            for one in found
        ],
        judge=all_kept(
            f"history: at most {100 * RED:g} % of series of noise are red", _red, "in all rows"
        ),
        part=4,
    ),
    Study(
        header=("found", *NOISES),
        tables={"": {(_step_name(s),): [(noise, s) for noise in NOISES] for s in STEPS}},
        draw=draw_step,
        cells=lambda found: [share_of(one, "near") for one in found],
        judge=all_kept(
            "history: steps are found under normal noise as often as stated", _not_found, "yes"
        ),
        part=4,
    ),
    Study(
        header=("held, mean number of points in the range", *NOISES),
        tables={"": {(_step_name(s),): [(noise, s) for noise in NOISES] for s in PLACES}},
        draw=draw_step,
        cells=lambda found: map(_range_cell, found),
        judge=all_kept(
            f"history: ranges hold at least {100 * HELD:g} % of the places",
            _not_held,
            "in all cells",
        ),
        part=4,
    ),
)
"""Studies of shapes of series, of false level changes, of true level changes, and of ranges."""
