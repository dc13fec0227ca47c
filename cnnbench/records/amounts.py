"""Times, sizes and rates that records accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from cnnbench.records.codec import json_key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AMOUNTS = (1e-40, 1e40)
"""Smallest and largest accepted time, size or rate. Statistics of values in this range, including
squared ratios of two of them, neither overflow nor underflow."""


def check_amounts(section: str, of: DataclassInstance, but: Sequence[str] = ()) -> None:
    """Raises a ValueError for a number of a section that is neither 0 nor within `AMOUNTS`.

    Fields named in `but` may hold any number.
    """
    for one in fields(of):
        value = getattr(of, one.name)
        if isinstance(value, (int, float)) and value != 0 and one.name not in but:
            check_amount(f"{section}.{json_key(one)}", value)


def check_amount(name: str, value: float) -> None:
    """Raises a ValueError for a number that is not within `AMOUNTS`."""
    if not is_amount(value):
        raise ValueError(f"{name}: {value} is not an amount")


def is_amount(value: float) -> bool:
    """Whether a number is within `AMOUNTS`."""
    return AMOUNTS[0] <= value <= AMOUNTS[1]


def wrong_amount(values: Sequence[float], or_zero: bool = False) -> int | None:
    """Index of the first number that is not within `AMOUNTS`; None if all are."""
    given = [value for value in values if value] if or_zero else values
    # Together they are compared fast; a sum with a NaN equals nothing.
    if not given or (
        AMOUNTS[0] <= min(given) and max(given) <= AMOUNTS[1] and sum(given) == sum(given)
    ):
        return None
    return next(i for i, one in enumerate(values) if (one or not or_zero) and not is_amount(one))
