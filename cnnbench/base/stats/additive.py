"""Effects of candidates measured in rounds: an additive model fitted by least squares.

A value is the effect of its candidate plus that of its round plus noise. Disturbances of a whole
round don't change differences between candidates, candidates may be missing in rounds, and the
noise is estimated from all candidates together, so that few rounds of many candidates determine it
as well as many rounds of two (two-way layout without interaction; Scheffe, The Analysis of
Variance, 1959, chapter 4).

One candidate may be noisier than the others. The distribution of a difference is therefore a mean
over hypotheses, weighted by their posterior probabilities: both candidates have the noise of the
others, or that of one of them is larger by a factor (`_FACTORS`). With the variance integrated out,
the likelihood of a hypothesis is a power of the weighted sum of squares, which follows from the sum
of all candidates and that without the candidate (exactly, where none is missing in a round). Two
candidates have one noise, that of their differences: all hypotheses give the paired t test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FACTORS = {1: 0.8, 2: 0.05, 4: 0.05, 8: 0.05, 16: 0.05}
"""Prior probabilities that the noise of a candidate is so many times that of the others."""

_LEAST = 1e-12  # of a share: keeps its logarithm finite


@dataclass(frozen=True)
class Additive:
    """A fitted model.

    Attributes:
      effects: effect of each candidate, relative to the mean of all.
      covariance: covariance of the effects in units of the noise's variance, [candidates,
        candidates].
      scatter: standard deviation of the noise; None without degrees of freedom.
      freedom: degrees of freedom of `scatter`.
      own: for each candidate, the share of the residual sum of squares and the degrees of freedom
        by which they are smaller without it; empty without degrees of freedom.
      is_connected: whether the rounds determine all differences; not where two groups of candidates
        never ran in one round.
    """

    names: tuple[str, ...]
    effects: NDArray[np.float64]
    covariance: NDArray[np.float64]
    scatter: float | None
    freedom: int
    own: tuple[tuple[float, int], ...] = ()
    is_connected: bool = True

    def effect(self, name: str) -> float:
        """The effect of a candidate."""
        return float(self.effects[self.names.index(name)])

    def difference(self, name: str, other: str) -> float:
        """The effect of a candidate minus that of another one."""
        return self.effect(name) - self.effect(other)

    def deviation(self, name: str, other: str) -> float | None:
        """Standard error of `difference` if all have one noise; None where it is not known."""
        if self.scatter is None:
            return None
        a, b = self.names.index(name), self.names.index(other)
        square = self.covariance[a, a] + self.covariance[b, b] - 2 * self.covariance[a, b]
        return self.scatter * math.sqrt(max(0.0, float(square)))

    def p_above(self, name: str, other: str, below: float = 0.0) -> float:
        """One-sided p of "the candidate is not above the other one less `below`"; 1 if unknown."""
        error, difference = self.deviation(name, other), self.difference(name, other) + below
        if error is None or difference <= 0:
            return 1.0
        return self._tail(difference / error, name, other) if error else 0.0

    def reach(self, name: str, other: str, tail: float) -> float | None:
        """Length that the error of `difference` exceeds with probability `tail`, in (0, 0.5].

        None where the noise is not known.
        """
        error = self.deviation(name, other)
        return error and error * _quantile(lambda t: self._tail(t, name, other), tail)

    def _tail(self, t: float, name: str, other: str) -> float:
        """The probability that the error of a difference exceeds `t` of its `deviation`."""
        count, chances, logs = len(self.names), [], []
        for place in (self.names.index(name), self.names.index(other)):
            share, freedom = self.own[place]
            for factor, prior in _FACTORS.items():
                wider = ((count - 1) * factor**2 + 1) / count
                squares = max(1 - share + share / wider, _LEAST)
                logs.append(
                    math.log(prior)
                    - freedom * math.log(wider) / 2
                    - self.freedom * math.log(squares) / 2
                )
                scaled = t / math.sqrt((1 + factor**2) / 2 * squares)
                chances.append(student_tail(scaled, self.freedom))
        likelihoods = [math.exp(one - max(logs)) for one in logs]
        total = sum(p * chance for p, chance in zip(likelihoods, chances, strict=True))
        return total / sum(likelihoods)


def fit(rounds: Sequence[Mapping[str, float]]) -> Additive:
    """Fits the model to the values of each round by candidate; at least one value in all."""
    names = tuple(dict.fromkeys(name for one in rounds for name in one))
    observed = [(names.index(name), at) for at, one in enumerate(rounds) for name in one]
    values = np.asarray([value for one in rounds for value in one.values()])
    design: NDArray[Any] = np.zeros((len(values), len(names) + len(rounds)))
    for row, (name, at) in enumerate(observed):
        design[row, name] = design[row, len(names) + at] = 1.0
    # The mean of all effects is free: the solution of least norm, which differences do not show.
    solved, squares, freedom = _solve(design, values)
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    effects = solved[: len(names)]
    own = []
    for name in range(len(names) if freedom else 0):
        others = design[:, name] == 0.0
        _, without, fewer = _solve(design[others], values[others])
        own.append((1 - without / squares if squares else 0.0, freedom - fewer))
    return Additive(
        names=names,
        effects=effects - effects.mean(),
        covariance=inverse[: len(names), : len(names)],
        scatter=math.sqrt(squares / freedom) if freedom else None,
        freedom=freedom,
        own=tuple(own),
        is_connected=len(values) - freedom == len(names) + sum(map(bool, rounds)) - 1,
    )


def _solve(design: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], float, int]:
    """The least-squares solution, its residual sum of squares and their degrees of freedom."""
    solved, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    squares = float(np.sum((values - design @ solved) ** 2))
    return solved, squares, len(values) - int(rank)


def fit_blocks(blocks: Sequence[Sequence[Mapping[str, float]]]) -> Additive:
    """Fits the model to rounds of several blocks that may be disturbed independently.

    Where blocks don't determine all differences, rounds are treated as wholes.
    """
    fitted = fit([block for one in blocks for block in one])
    if fitted.is_connected:
        return fitted
    return fit([{name: value for block in one for name, value in block.items()} for one in blocks])


def student_tail(t: float, freedom: int) -> float:
    """P(T >= t) of Student's distribution, for t >= 0 and a whole `freedom` of at least 1.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for order in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (order + 1) / (order + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, (1.0 - inside) / 2)


def student_quantile(tail: float, freedom: int) -> float:
    """The t that is exceeded with probability `tail`, in (0, 0.5]; `freedom` is at least 1."""
    return _quantile(lambda t: student_tail(t, freedom), tail)


def _quantile(tail_of: Callable[[float], float], tail: float) -> float:
    """Where a falling function of t >= 0 has a value, by bisection."""
    low, high = 0.0, 1.0
    while tail_of(high) > tail and high < 1e9:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of(middle) > tail else (low, middle)
    return high
