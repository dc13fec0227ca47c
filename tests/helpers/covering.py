"""Few cases in place of a full product of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_if(slow: Callable[[Any], bool] | Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases for `pytest.mark.parametrize`; some run in scripts/test --all only.

    Args:
      slow: those cases, or a function that tells them.
      cases: values of one parameter, tuples of several, or what `pytest.param` made of them.
    """
    is_slow = slow if callable(slow) else slow.__contains__
    marked = []
    for case in cases:
        if not is_slow(case):
            marked.append(case)
        elif hasattr(case, "marks"):
            marks = (*case.marks, pytest.mark.slow)
            marked.append(pytest.param(*case.values, marks=marks, id=case.id))
        else:
            values = case if isinstance(case, tuple) else (case,)
            marked.append(pytest.param(*values, marks=pytest.mark.slow))
    return marked


def with_each_value(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Few of the cases, in which each value of a parameter occurs at least once."""
    cases = list(cases)
    columns = [list(column) for column in zip(*cases, strict=True)]
    values = [
        {(number, columns[number].index(value)) for number, value in enumerate(case)}
        for case in cases
    ]
    left = set().union(*values)
    chosen = []
    while left:
        best = max(range(len(cases)), key=lambda at: len(left & values[at]))
        chosen.append(cases[best])
        left -= values[best]
    return chosen


def everyday_values(
    cases: Iterable[tuple[Any, ...]], among: Callable[..., bool] = lambda *case: True
) -> list[Any]:
    """Cases for `pytest.mark.parametrize`; the everyday suite meets each value of a parameter.

    Cases that only show further combinations of these values run in scripts/test --all.

    Args:
      cases: a tuple with one value for each parameter.
      among: whether a case may be in the everyday suite, which meets the values of these cases.
    """
    cases = list(cases)
    everyday = with_each_value(case for case in cases if among(*case))
    return slow_if(lambda case: case not in everyday, cases)


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
    bits: dict[tuple[Any, ...], int] = {}
    left: dict[tuple[int, ...], int] = {}
    for case in itertools.product(*(range(len(own)) for own in values)):
        if allowed(*(own[i] for own, i in zip(values, case, strict=True))):
            pairs = itertools.combinations(enumerate(case), 2)
            left[case] = sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs)
    chosen = []
    while left:
        best = max(left, key=lambda case: left[case].bit_count())
        met = left.pop(best)
        chosen.append(best)
        left = {case: rest for case, pairs in left.items() if (rest := pairs & ~met)}
    return [tuple(own[i] for own, i in zip(values, case, strict=True)) for case in sorted(chosen)]
