"""An additive model, fitted by least squares, estimates the effects of the compared candidates.

In the additive model, a value is the sum of an effect of its candidate, an effect of its round, and
noise (two-way layout without interaction; Scheffe, The Analysis of Variance, 1959, chapter 4).
Disturbances of a whole round do not change differences between candidates. Candidates may be
missing in rounds. The noise is estimated from all candidates together, so a few rounds of many
candidates determine it as well as many rounds of two candidates.

One candidate may be noisier than the other candidates. The distribution of a difference is
therefore a mean over hypotheses, weighted by their posterior probabilities. Under the first
hypothesis, all candidates have the same noise. Under each of the other hypotheses, one of the two
candidates has noise that is larger by a factor (`_FACTORS`). After integration over the variance,
the likelihood of a hypothesis is a power of a weighted sum of squares. This sum is computed from
the residual sums of squares of two fits, with and without the candidate (exactly, if no candidate
is missing in a round). With only two candidates, only the noise of their differences can be
observed, so every hypothesis results in the paired t test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.base.stats import quantile_by_bisection, student_tail

_FACTORS = {1: 0.8, 2: 0.05, 4: 0.05, 8: 0.05, 16: 0.05}
"""Prior probability of each ratio of a candidate's noise to the noise of the other candidates."""


# Minimum of a weighted sum of squares, because the logarithm of 0 does not exist.
_LEAST = 1e-12


class AdditiveModel(NamedTuple):
    """An additive model fitted to values: the effect of each candidate plus the effect of each
    round.

    Attributes:
      effects: effect of each candidate, relative to the mean of all candidates.
      covariance: covariance of the effects in units of the noise's variance, [candidates,
        candidates].
      scatter: standard deviation of the noise; None without degrees of freedom.
      freedom: degrees of freedom of `scatter`.
      own: effect of leaving out each candidate: the decrease of the residual sum of squares, as a
        share of it, and the decrease of the degrees of freedom. Empty without degrees of freedom.
      is_connected: whether the rounds determine all differences. False if two groups of candidates
        never ran in the same round.
    """

    names: tuple[str, ...]
    effects: NDArray[np.float64]
    covariance: NDArray[np.float64]
    scatter: float | None
    freedom: int
    own: tuple[tuple[float, int], ...] = ()
    is_connected: bool = True

    def effect(self, name: str) -> float:
        """The effect of the candidate `name`, relative to the mean of all candidates."""
        return float(self.effects[self.names.index(name)])

    def difference(self, name: str, other: str) -> float:
        """The effect of the candidate `name` minus the effect of the candidate `other`."""
        return self.effect(name) - self.effect(other)

    def standard_error(self, name: str, other: str) -> float | None:
        """Standard error of `difference` if all candidates have the same noise; None if the noise
        is unknown.
        """
        if self.scatter is None:
            return None
        a, b = self.names.index(name), self.names.index(other)
        square = self.covariance[a, a] + self.covariance[b, b] - 2 * self.covariance[a, b]
        return self.scatter * math.sqrt(max(0.0, float(square)))

    def p_value_above(self, name: str, other: str, margin: float = 0.0) -> float:
        """One-sided p-value of "effect of `name` <= effect of `other` - `margin`"; 1 if the noise
        is unknown.
        """
        error, difference = self.standard_error(name, other), self.difference(name, other) + margin
        if error is None or difference <= 0:
            return 1.0
        return self._error_tail(difference / error, name, other) if error else 0.0

    def error_quantile(self, name: str, other: str, probability: float) -> float | None:
        """Upper quantile of the error of `difference`: the error exceeds the returned value with
        this probability, which is in (0, 0.5].

        Returns None if the noise is unknown.
        """
        error = self.standard_error(name, other)
        return error and error * quantile_by_bisection(
            lambda t: self._error_tail(t, name, other), probability
        )

    def _error_tail(self, t: float, name: str, other: str) -> float:
        """The probability that the error of `difference` exceeds `t` times its standard error."""
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
        likelihoods = [math.exp(log_likelihood - max(logs)) for log_likelihood in logs]
        total = sum(p * chance for p, chance in zip(likelihoods, chances, strict=True))
        return total / sum(likelihoods)


def fit_additive_model(rounds: Sequence[Mapping[str, float]]) -> AdditiveModel:
    """Fits an additive model to rounds. Each round maps candidates to values; there must be at
    least one value.
    """
    names = tuple(dict.fromkeys(name for round_values in rounds for name in round_values))
    observed = [
        (names.index(name), at) for at, round_values in enumerate(rounds) for name in round_values
    ]
    values = np.asarray([value for round_values in rounds for value in round_values.values()])
    design: NDArray[Any] = np.zeros((len(values), len(names) + len(rounds)))
    for row, (name, at) in enumerate(observed):
        design[row, name] = design[row, len(names) + at] = 1.0
    # The data determine only the differences between effects, so the mean of all effects is set to
    # 0.
    solved, squares, freedom = _least_squares(design, values)
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    effects = solved[: len(names)]
    own = []
    for name in range(len(names) if freedom else 0):
        others = design[:, name] == 0.0
        _, without, fewer = _least_squares(design[others], values[others])
        own.append((1 - without / squares if squares else 0.0, freedom - fewer))
    return AdditiveModel(
        names=names,
        effects=effects - effects.mean(),
        covariance=inverse[: len(names), : len(names)],
        scatter=math.sqrt(squares / freedom) if freedom else None,
        freedom=freedom,
        own=tuple(own),
        is_connected=len(values) - freedom == len(names) + sum(map(bool, rounds)) - 1,
    )


def _least_squares(design: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], float, int]:
    """Solves a least-squares problem. Returns the solution, the residual sum of squares and the
    residual degrees of freedom.
    """
    solved, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    squares = float(np.sum((values - design @ solved) ** 2))
    return solved, squares, len(values) - int(rank)


def fit_additive_blocks(blocks: Sequence[Sequence[Mapping[str, float]]]) -> AdditiveModel:
    """Fits an additive model to rounds that consist of blocks. Each block has its own effect,
    because a disturbance may affect only one block.

    If candidates of different blocks could not be compared, each round is treated as one block.
    """
    fitted = fit_additive_model([block for block_rounds in blocks for block in block_rounds])
    if fitted.is_connected:
        return fitted
    return fit_additive_model(
        [
            {name: value for block in block_rounds for name, value in block.items()}
            for block_rounds in blocks
        ]
    )
