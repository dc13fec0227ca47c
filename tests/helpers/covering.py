"""Few cases in place of a full product of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any


def covering_pairs(
    *dimensions: Iterable[Any], allowed: Callable[..., bool] = lambda *case: True
) -> list[tuple[Any, ...]]:
    """Cases in which every two values of different dimensions meet at least once.

    Greedy and deterministic: the next case is the first one of the product that has the most
    pairs not met yet. Put the values that are cheap to test first in their dimension.

    Args:
      *dimensions: the values of each parameter; they need not be hashable.
      allowed: whether a case makes sense; pairs that occur in no such case are left out.

    Returns:
      Cases as tuples with one value per dimension, in the order of the product.
    """
    values = [list(dimension) for dimension in dimensions]
    left = {
        case: set(itertools.combinations(enumerate(case), 2))
        for case in itertools.product(*(range(len(own)) for own in values))
        if allowed(*(own[i] for own, i in zip(values, case, strict=True)))
    }
    chosen = []
    while left:
        best = max(left, key=lambda case: len(left[case]))
        met = left.pop(best)
        chosen.append(best)
        left = {case: pairs - met for case, pairs in left.items() if pairs - met}
    return [tuple(own[i] for own, i in zip(values, case, strict=True)) for case in sorted(chosen)]
