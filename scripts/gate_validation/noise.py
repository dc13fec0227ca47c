"""Speeds of simulated processes, in the order of time, under noise of every kind.

A series is a list of positive numbers, one per process in the order in which they ran; what
they would be without noise is 1. It says nothing about sides: which process belongs to which
side is drawn afterwards, as `cnnbench ab` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
Generator = np.random.Generator

QUIET = 0.013
"""Standard deviation of like processes on a quiet machine, as a share."""

BUSY = 0.03
"""The same with neighbours."""

# What the slow state of a machine multiplies speeds by: 19.5 ms and 33 ms were measured.
_SLOW_STATE = 0.59
_SWITCH = 0.1
_CORRELATION = 0.9
_GRID = 0.02


def _normal(generator: Generator, count: int, scatter: float = QUIET) -> Series:
    return np.exp(generator.normal(0.0, scatter, count))


def _quiet(generator: Generator, count: int) -> Series:
    return _normal(generator, count)


def _busy(generator: Generator, count: int) -> Series:
    return _normal(generator, count, BUSY)


def _autoregressive(generator: Generator, count: int) -> Series:
    shocks = generator.normal(0.0, BUSY, count)
    values = [shocks[0]]
    for shock in shocks[1:]:
        values.append(_CORRELATION * values[-1] + np.sqrt(1 - _CORRELATION**2) * shock)
    found: Series = np.exp(np.asarray(values))
    return found


def _regimes(generator: Generator, count: int) -> Series:
    switches = generator.random(count) < _SWITCH
    states = (np.cumsum(switches) + generator.integers(2)) % 2
    return _normal(generator, count) * np.where(states == 1, _SLOW_STATE, 1.0)


def _outliers(generator: Generator, count: int) -> Series:
    hit = generator.random(count) < 0.1
    return _normal(generator, count) * np.where(hit, generator.uniform(0.4, 0.9, count), 1.0)


def _heavy_tails(generator: Generator, count: int) -> Series:
    return np.exp(QUIET * generator.standard_t(1.5, count))


def _drift(generator: Generator, count: int) -> Series:
    return _normal(generator, count) * np.linspace(1.0, 0.8, count)


def _second_is_slower(generator: Generator, count: int) -> Series:
    return _normal(generator, count) * np.where(np.arange(count) % 2 == 1, 0.9, 1.0)


def _ties(generator: Generator, count: int) -> Series:
    return 1.0 + _GRID * np.round((_normal(generator, count, BUSY) - 1.0) / _GRID)


def _constant(generator: Generator, count: int) -> Series:
    del generator
    return np.ones(count)


NOISES: dict[str, Callable[[Generator, int], Series]] = {
    "normal, 1.3 %": _quiet,
    "normal, 3 %": _busy,
    "AR(1), 0.9, 3 %": _autoregressive,
    "two regimes, x 0.59": _regimes,
    "one in ten an outlier": _outliers,
    "heavy tails, t(1.5)": _heavy_tails,
    "drift of 20 %": _drift,
    "second of a pair 10 % slower": _second_is_slower,
    "ties, grid of 2 %": _ties,
    "constant": _constant,
}
"""Kinds of noise by what the tables call them."""
