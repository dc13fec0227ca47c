"""Steps of `cnnbench history` in simulated series: false ones, true ones, and their places.

A series has a point per commit, with one run each where not said otherwise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import binom

from cnnbench.judge.history import METRICS, SeriesPoint, TimeSeries, Trend, trend
from validation.rules import Generator, Series
from validation.simulation import surely_above
from validation.tables import Requirement, percent_of, table

SCATTER = 0.05
"""Standard deviation of the logarithms, besides two states."""

_SLOW_STATE, _SLOW_SHARE, _WITHIN = 0.7, 0.3, 0.01

RED = 0.05
"""Stated share of series of noise with a step for the worse that stands, at most."""

HELD = 0.95
"""Stated share of found steps whose range holds their place, at least."""

_SURE = 0.001

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
"""Kinds of noise of runs; the median of a point's runs is judged."""

POINTS = (6, 8, 12, 30, 60, 120)
RUNS = (1, 3)
"""Runs of each point; with correlated noise, of neighbouring points, only one."""

STEPS = (
    *((6, 5, 3), (6, 8, 3), (12, 5, 6), (30, 3, 15), (30, 5, 3)),
    *((60, 3, 5), (60, 3, 10), (60, 5, 3), (60, 5, 5), (60, 8, 2)),
)
"""True steps: points, size in standard deviations, points from the step on."""

POWER = {(60, 3, 10): 0.75, (60, 5, 5): 0.80, (60, 8, 2): 0.65}
"""Least shares of steps that are found under normal noise, within two points of their place."""

PLACES = ((12, 3, 6), (20, 2, 10), (40, 2, 20), (40, 3, 20), (60, 3, 6), (100, 2, 20))


def trend_of(logs: Series, hosts: Sequence[str] = ()) -> Trend:
    """Levels and steps of throughputs with these logarithms, [points, runs].

    `hosts` has the name of a host for each point.
    """
    points = tuple(
        SeriesPoint(
            name=str(index),
            runs=(),
            values=tuple(np.exp(runs).tolist()),
            hosts=tuple(hosts[index : index + 1]),
        )
        for index, runs in enumerate(logs)
    )
    series = TimeSeries(configuration="", key="", machine="", points=points, empty=())
    return trend(series, METRICS["throughput"])


def _generator(seed: int, *case: object) -> Generator:
    return np.random.default_rng([seed, zlib.crc32(" ".join(map(str, case)).encode())])


@dataclass(frozen=True)
class FalseSteps:
    """Series of noise alone: how many have steps, are red, and have a kind of noise named."""

    draws: int
    stepped: int
    red: int
    states: int
    correlated: int


def false_steps(noise: str, points: int, runs: int, draws: int, seed: int) -> FalseSteps:
    """Draws series without a step."""
    generator = _generator(seed, noise, points, runs)
    found = [
        trend_of(NOISES[noise](generator, points * runs).reshape(points, runs))
        for _ in range(draws)
    ]
    return FalseSteps(
        draws,
        sum(bool(one.steps) for one in found),
        sum(bool(one.setbacks) for one in found),
        sum(one.noise.states is not None for one in found),
        sum(one.noise.correlation is not None for one in found),
    )


@dataclass(frozen=True)
class TrueSteps:
    """Series with a step: how many have a change near it, and how many a step with it in the range.

    Trends have no range: their ends are those of the trend.

    Attributes:
      stepped: number of series whose change nearest to the step is a step.
      near: number of series whose nearest change is within two points of the step.
      held: number of series of `stepped` whose range contains the place of the step.
      width: mean number of points in the range.
    """

    draws: int
    stepped: int
    near: int
    held: int
    width: float


def true_steps(noise: str, step: tuple[int, float, int], draws: int, seed: int) -> TrueSteps:
    """Draws series with one step for the worse."""
    points, size, after = step
    generator = _generator(seed, noise, step)
    place = points - after
    widths = []
    near = held = 0
    for _ in range(draws):
        logs = NOISES[noise](generator, points)
        logs[place:] -= size * SCATTER
        steps = trend_of(logs.reshape(points, 1)).steps
        if not steps:
            continue
        nearest = min(steps, key=lambda one: abs(one.index - place))
        near += abs(nearest.index - place) <= 2
        if nearest.is_trend:
            continue
        low, high = (int(one.name) for one in (nearest.earliest, nearest.latest))
        held += low <= place <= high
        widths.append(high - low + 1)
    return TrueSteps(draws, len(widths), near, held, float(np.mean(widths or [0])))


@dataclass(frozen=True)
class Shape:
    """What happens in a series of 40 points, and what is required of its history.

    Attributes:
      name: description.
      logs: logarithms of the levels of all points.
      kind: kind that is named; "" if nothing may be said; "red" if only that counts.
      ends: indices of the points at which the kind begins and ends, of steps their places.
      least: least share of series in which this is said, under white noise; None without one.
    """

    name: str
    logs: Series
    kind: str
    ends: tuple[int, ...] = ()
    least: float | None = 0.90

    def is_said(self, found: Trend) -> bool:
        """Whether a history says this, and nothing else; ends may be off by three points."""
        states = found.noise.states
        if self.kind in ("two_states", "two_machines"):
            return not found.steps and states is not None and states.kind == self.kind
        if self.kind == "red":
            return bool(found.setbacks)
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

SHAPES = (
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
"""Series of 40 points with noise of 1.5 %; two states have their own noise."""

CORRELATIONS = (0.0, 0.3, 0.6)
_FALSE_IF_CORRELATED = 0.05


def said_of(shape: Shape, correlation: float, draws: int, seed: int) -> int:
    """In how many of the series the history says what happens."""
    generator = _generator(seed, shape.name, correlation)
    said = 0
    for _ in range(draws):
        hosts: list[str] = []
        logs = shape.logs + _NOISE / SCATTER * _correlated(generator, _SHAPED, correlation)
        if shape.kind == "two_states":
            logs = _two_states(generator, _SHAPED)
        if shape.kind == "two_machines":
            is_slow = generator.random(_SHAPED) < _SLOW_SHARE
            logs = logs + math.log1p(_SLOW_HOST) * is_slow
            hosts = ["slow" if one else "fast" for one in is_slow]
        said += shape.is_said(trend_of(logs.reshape(-1, 1), hosts))
    return said


def _shapes(draws: int, seed: int) -> tuple[list[str], Requirement]:
    rows, bad = [], []
    for shape in SHAPES:
        said = [said_of(shape, correlation, draws, seed) for correlation in CORRELATIONS]
        rows.append((shape.name, shape.kind or "nothing", *(percent_of(n / draws) for n in said)))
        for correlation, count in zip(CORRELATIONS, said, strict=True):
            least = shape.least if not correlation else None
            if correlation and not shape.kind:
                least = 1 - _FALSE_IF_CORRELATED
            if least is not None and surely_above(draws - count, draws, 1 - least):
                bad.append(f"{shape.name}, {correlation}: {percent_of(count / draws)}")
    text = "history: what happens in a series is said as often as required"
    header = ("40 points", "said", *(f"correlation {one:g}" for one in CORRELATIONS))
    return table(header, rows), Requirement(text, "; ".join(bad) or "in all rows", not bad)


def history(draws: int, seed: int) -> tuple[list[str], list[Requirement]]:
    """Tables of false steps, of those that are found and of ranges, and what is stated of them.

    Draws a quarter of `draws` series of each kind.
    """
    parts = [part(-(-draws // 4), seed) for part in (_shapes, _false, _found, _ranges)]
    lines = [line for table, _ in parts for line in (*table, "")]
    return lines[:-1], [required for _, required in parts]


def _false(draws: int, seed: int) -> tuple[list[str], Requirement]:
    rows, bad = [], []
    for noise in NOISES:
        for runs in RUNS if "correlated" not in noise else RUNS[:1]:
            found = [false_steps(noise, points, runs, draws, seed) for points in POINTS]
            name = noise + (f", {runs} runs" if runs > 1 else "")
            rows.append((name, *map(_false_cell, found)))
            bad += [
                f"{name}, {points}: {percent_of(one.red / draws)}"
                for points, one in zip(POINTS, found, strict=True)
                if surely_above(one.red, draws, RED)
            ]
    text = f"history: at most {100 * RED:g} % of series of noise are red"
    header = ("a step · red · two states named · correlation named, per cent", *map(str, POINTS))
    return table(header, rows), Requirement(text, "; ".join(bad) or "in all rows", not bad)


def _false_cell(one: FalseSteps) -> str:
    counts = (one.stepped, one.red, one.states, one.correlated)
    return " · ".join(f"{100 * count / one.draws:.1f}" for count in counts)


def _found(draws: int, seed: int) -> tuple[list[str], Requirement]:
    rows, bad = [], []
    for step in STEPS:
        points, size, after = step
        found = {noise: true_steps(noise, step, draws, seed) for noise in NOISES}
        name = f"{size} sd, the last {after} of {points}"
        rows.append((name, *(percent_of(one.near / draws) for one in found.values())))
        share = found["normal"].near / draws
        least = POWER.get(step, 0.0)
        if surely_above(draws - found["normal"].near, draws, 1 - least):
            bad.append(f"{name}: {percent_of(share)}")
    text = "history: steps are found under normal noise as often as stated"
    return table(("found", *NOISES), rows), Requirement(text, "; ".join(bad) or "yes", not bad)


def _ranges(draws: int, seed: int) -> tuple[list[str], Requirement]:
    rows, bad = [], []
    for step in PLACES:
        points, size, after = step
        name = f"{size} sd, the last {after} of {points}"
        found = {noise: true_steps(noise, step, draws, seed) for noise in NOISES}
        rows.append((name, *(_range_cell(one) for one in found.values())))
        bad += [
            f"{noise}, {name}: {percent_of(one.held / one.stepped)}"
            for noise, one in found.items()
            if one.stepped and binom.cdf(one.held, one.stepped, HELD) < _SURE
        ]
    text = f"history: ranges hold at least {100 * HELD:g} % of the places"
    header = ("held, mean number of points in the range", *NOISES)
    return table(header, rows), Requirement(text, "; ".join(bad) or "in all cells", not bad)


def _range_cell(one: TrueSteps) -> str:
    if not one.stepped:
        return "-"
    return f"{percent_of(one.held / one.stepped)} ({one.width:.1f})"
