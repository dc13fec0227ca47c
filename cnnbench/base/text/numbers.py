"""Formats of numbers, except in the lines that runs print like tf_cnn_benchmarks.

For people: four significant digits, thousands separated by commas; shares in per cent with one
decimal; bytes in powers of 1024. JSON and CSV get numbers unrounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field

NONE = "-"
"""Stands for a missing value."""

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """A number with four significant digits: 1,235 / 123.5 / 12.35 / 0.1235 / 1.235e-04.

    From 10,000 on all digits before the point are written; from ten million on and below 0.001
    powers of ten are used. None is `NONE`.
    """
    if value is None:
        return NONE
    size = abs(float(value))
    if size and (size >= 1e7 or size < 1e-3):
        return f"{value:.3e}"
    if math.isnan(value):
        return "nan"
    rounded = float(f"{size:.3e}")  # 0.99999 is 1.000, not 1.0000
    digits = max(0, 3 - math.floor(math.log10(rounded))) if size else 0
    return f"{value:,.{digits}f}"


def exact(value: float) -> str:
    """A number with all its digits, as in a limit that a flag may be set to: 0.5, 86400."""
    return str(value).removesuffix(".0")


def truth(value: bool) -> str:
    """A truth value: true or false."""
    return "true" if value else "false"


def integer(value: float) -> str:
    """A whole number, such as a count: 1,235."""
    return f"{value:,.0f}"


def percent(share: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """A share in per cent: 0.1235 is "12.3 %"; None is `NONE`. With `signed`, +12.3 %."""
    return NONE if share is None else f"{hundredths(share, digits, signed=signed)} %"


def percents(low: float, high: float, digits: int = 1) -> str:
    """A range of shares: "1.0 to 2.5 %"."""
    return f"{hundredths(low, digits)} to {percent(high, digits)}"


def hundredths(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """The number of `percent` without its sign %."""
    # Rounded first: -0.0004 is 0.0 %, not -0.0 %.
    return f"{round(100 * share, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def binary(size: float | None) -> str:
    """Bytes in the unit that keeps the number below 1024, such as "1.5 MiB"; `NONE` for None."""
    if size is None:
        return NONE
    value, units = size, iter(_BINARY_UNITS)
    unit = next(units)
    while abs(value) >= 1023.5 and unit != _BINARY_UNITS[-1]:
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"


def number_of(items: int | Sized) -> int:
    """The number of some items, for a text; a number is one already."""
    return items if isinstance(items, int) else len(items)


def count(items: int | Sized, one: str, many: str) -> str:
    """A number, or that of some items, with its noun in singular or plural: "1 run", "2 runs"."""
    number = number_of(items)
    return f"{number} {one if number == 1 else many}"


def selected(shown: int, of: str, total: int, one: str, many: str) -> str:
    """A selection from some things: "2 runs" if it has all, "the 2 fastest of 3 runs"."""
    text = count(total, one, many)
    return text if shown == total else f"the {shown} {of} of {text}"


def duration(seconds: float) -> str:
    """A duration in whole units: "42 s", "5 min", "2 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def parse_integer(text: str) -> int:
    """An integer in decimal ASCII digits, or hexadecimal behind 0x; raises ValueError."""
    if "_" in text or not text.isascii():  # int() accepts both
        raise ValueError(text)
    return int(text, 16) if text[:2].lower() == "0x" else int(text)


def parse_number(text: str) -> float:
    """A finite number in ASCII digits; raises ValueError."""
    value = float(text)
    if "_" in text or not text.isascii() or not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_bytes(text: str) -> int | None:
    """Bytes of a size such as "4096" or "64K", in powers of 1024; None if it is malformed."""
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.upper())
    if match is None:
        return None
    size: int = int(match.group(1)) * 1024 ** " KMGT".index(match.group(2) or " ")
    return size


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Duration:
    """A positive time; `source` is its text, such as "500ms", "10s", "2m" or "1.5h"."""

    seconds: float
    source: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Reads a number with its unit; raises ValueError."""
        match = re.fullmatch("([0-9.]{1,12})(ms|s|m|h)", text.strip())
        seconds = parse_number(match[1]) * _SECONDS[match[2]] if match else 0.0
        if not seconds:
            raise ValueError(text)
        return cls(seconds, text)


def counted(names: Iterable[object]) -> str:
    """A list of names with duplicates counted: "8 x NVIDIA H100"."""
    counts = Counter(map(str, names))
    return ", ".join(f"{times} x {name}" if times > 1 else name for name, times in counts.items())


def first_few(names: Sequence[str], most: int, separator: str = "; ") -> str:
    """The first names of a list, and the number of the others: "a; b and 3 more"."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")
