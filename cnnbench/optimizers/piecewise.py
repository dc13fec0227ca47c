"""Learning rates that change at given epochs (--piecewise_learning_rate_schedule)."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from cnnbench.base.values import parse_number
from cnnbench.errors import FlagError


@dataclass(frozen=True)
class PiecewiseSchedule:
    """A parsed --piecewise_learning_rate_schedule: rates, and the epochs at which they change."""

    rates: tuple[float, ...]
    boundaries: tuple[int, ...]
    source: str = field(default="", compare=False)


def parse_piecewise(text: str) -> PiecewiseSchedule:
    """Parses ``LR0;E1;LR1;...;En;LRn``: rates, and epochs. FlagError for an invalid value."""
    name = "piecewise_learning_rate_schedule"
    pieces = [piece.strip() for piece in text.split(";")]
    if len(pieces) % 2 == 0:
        reason = f"has {len(pieces)} parts, but needs an odd number of parts, as in 0.3;10;0.2"
        raise FlagError(name, text, reason)
    rates: list[float] = []
    boundaries: list[int] = []
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            rates.append(_parse_rate(name, text, piece))
        else:
            if not re.fullmatch("[0-9]{1,9}", piece):
                reason = f"{piece!r} is not an epoch (a whole number of at least 0)"
                raise FlagError(name, text, reason)
            boundaries.append(int(piece))
    if any(later <= earlier for earlier, later in itertools.pairwise(boundaries)):
        raise FlagError(name, text, "the epochs must increase from left to right")
    return PiecewiseSchedule(tuple(rates), tuple(boundaries), text)


def _parse_rate(name: str, text: str, piece: str) -> float:
    try:
        rate = parse_number(piece)
    except ValueError:
        rate = -1.0
    if rate < 0:
        raise FlagError(name, text, f"{piece!r} is not a learning rate (a number of at least 0)")
    return rate
