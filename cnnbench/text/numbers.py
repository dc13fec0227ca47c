"""How numbers are written, everywhere but in what runs print as tf_cnn_benchmarks did.

The rule, for people: four significant digits, thousands separated by commas, no digit that was
not measured; shares in per cent with one decimal; bytes in powers of 1024. Programs get numbers
unrounded (JSON, CSV).
"""

from __future__ import annotations

NONE = "-"
"""In place of a value that there is not."""

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """A number in four significant digits: 1,235 / 123.5 / 12.35 / 1.235 / 1.235e-04.

    Args:
      value: None for `NONE`. From 10,000 on all digits before the point are written, from
        ten million on and below 0.001 powers of ten are.
    """
    if value is None:
        return NONE
    size = abs(value)
    if size and (size >= 1e7 or size < 1e-3):
        return f"{value:.3e}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}" if size else "0"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent: 0.1235 is "12.3 %"; `NONE` for None."""
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def binary(size: float | None) -> str:
    """Bytes in the unit that keeps the number below 1024: 1.5 MiB; `NONE` for None."""
    if size is None:
        return NONE
    value, units = float(size), iter(_BINARY_UNITS)
    unit = next(units)
    while abs(value) >= 1023.5 and unit != _BINARY_UNITS[-1]:
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"


def count(number: int, one: str, many: str) -> str:
    """A number with its noun: "1 run", "2 runs"."""
    return f"{number} {one if number == 1 else many}"


def duration(seconds: float) -> str:
    """A time for people who wait: "42 s", "5 min", "2 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
