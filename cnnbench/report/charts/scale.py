"""From values to places on paper, and the values worth a tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_FEW = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale.

    Attributes:
      low, high: the values at its ends; low < high, and low > 0 if logarithmic.
      start, end: their places.
      log: whether it is logarithmic.
      base: of the logarithm's ticks.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    base: int = 10

    def __call__(self, value: float) -> float:
        """The place of a value; beyond the ends if the value is."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5, unit: float = 1.0) -> list[float]:
        """Round multiples of a unit between the ends."""
        if self.log:
            found = _powers(self.low, self.high, self.base, about)
            # Less than two powers within reach: a linear scale's values say more.
            if len(found) > 1:
                return found
        ticks = _linear_ticks(self.low / unit, self.high / unit, about)
        return [tick * unit for tick in ticks]


def scale_for(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    base: int = 10,
    zero: bool = False,
    room: float = 0.05,
) -> Scale:
    """A scale that shows all values.

    Args:
      values: to be shown; finite, and positive if logarithmic.
      start, end: places of its ends.
      log: whether it is logarithmic.
      base: of the logarithm's ticks.
      zero: a linear scale begins at 0.
      room: share left free beyond the outermost values.
    """
    known = list(values) or [1.0]
    low, high = min(known), max(known)
    if log:
        span = math.log(high / low) or math.log(2.0)
        return Scale(
            low * math.exp(-room * span), high * math.exp(room * span), start, end, True, base
        )
    if zero:
        low = min(0.0, low)
    span = high - low or abs(high) * 0.1 or 1.0
    bottom = low if zero and low == 0.0 else low - room * span
    return Scale(bottom, high + room * span, start, end)


def number_text(value: float) -> str:
    """A value of a tick."""
    if value and (abs(value) >= 1e7 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.6g}"


def bytes_text(value: float) -> str:
    """An amount of memory in binary units."""
    power = _power_of_1024(value)
    return f"{value / 1024**power:.4g} {_UNITS[power]}"


def tick_unit(format: str, high: float) -> float:
    """What ticks should be round multiples of: bytes are counted in powers of 1024."""
    return float(1024 ** _power_of_1024(high)) if format == "bytes" else 1.0


def _power_of_1024(value: float) -> int:
    return min(len(_UNITS) - 1, max(0, math.floor(math.log(max(value, 1.0), 1024))))


def percent_text(value: float) -> str:
    """A share."""
    return f"{100 * value:.4g} %"


FORMATS: dict[str, Callable[[float], str]] = {
    "number": number_text,
    "bytes": bytes_text,
    "percent": percent_text,
}
"""How ticks are written, by name."""


def _linear_ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / max(1, about)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(s * magnitude for s in _STEPS if s * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _powers(low: float, high: float, base: int, about: int) -> list[float]:
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    if base == 10 and last - first < _FEW:
        # Powers alone would leave most of the axis without a figure.
        found = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
        return [value for value in found if low <= value <= high]
    every = max(1, math.ceil((last - first + 1) / (about + 1)))
    return [float(base) ** power for power in range(first, last + 1, every)]
