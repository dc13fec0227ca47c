"""Student's t distribution, and confidence intervals of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def student_tail(t: float, freedom: int) -> float:
    """P(T >= t) of Student's t distribution, for t >= 0 and `freedom`, at least 1 degree of
    freedom.

    Uses the finite series 26.7.3 and 26.7.4 of Abramowitz and Stegun.
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
    """The t that Student's t distribution exceeds with probability `tail`, which is in (0, 0.5]."""
    return quantile_by_bisection(lambda t: student_tail(t, freedom), tail)


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Confidence interval of the mean by Student's t distribution, for independent values of about
    normal distribution. None for fewer than three values.
    """
    count = len(values)
    if count < 3:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    error = student_quantile((1 - confidence) / 2, count - 1) * math.sqrt(variance / count)
    return mean - error, mean + error


def quantile_by_bisection(tail_of: Callable[[float], float], tail: float) -> float:
    """Finds the t >= 0 at which a decreasing function has the value `tail`, by bisection."""
    low, high = 0.0, 1.0
    while tail_of(high) > tail and high < 1e9:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of(middle) > tail else (low, middle)
    return high
