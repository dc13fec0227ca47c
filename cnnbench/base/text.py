"""Text for people: formats of numbers, lists, suggestions of names, and the width of texts.

Numbers have four significant digits and commas between thousands, shares are percentages with one
decimal, and sizes use powers of 1024. In JSON and CSV, numbers are not rounded.
"""

from __future__ import annotations

import difflib
import math
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from typing import Any

NONE = "-"
"""Text for a missing value."""

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """Formats a number with four significant digits, such as 1,235 or 123.5 or 0.1235 or 1.235e-04.

    From 10,000, all digits before the decimal point are written. Below 0.001 and from ten million,
    powers of ten are used. None becomes `NONE`.
    """
    if value is None:
        return NONE
    size = abs(float(value))
    if size and (size >= 1e7 or size < 1e-3):
        return f"{value:.3e}"
    if math.isnan(value):
        return "nan"
    # Rounds before the digits are counted: 0.99999 has the text 1.000, not 1.0000.
    rounded = float(f"{size:.3e}")
    digits = max(0, 3 - math.floor(math.log10(rounded))) if size else 0
    return f"{value:,.{digits}f}"


def compact_number(value: float, digits: int = 4) -> str:
    """Formats a number with at most `digits` significant digits and without zeros at its end, such
    as 96 or 98.4.

    Below 0.0001 and from ten million, the number has at most three significant digits.
    """
    if value and (abs(value) >= 1e7 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{digits}g}"


def exact_number(value: float) -> str:
    """Formats a number with all its digits, as for the value of a flag: 0.5 or 86400."""
    return str(value).removesuffix(".0")


def boolean_text(value: bool) -> str:
    """Formats a Boolean as "true" or "false"."""
    return "true" if value else "false"


def integer(value: float) -> str:
    """Formats a number as a whole number with commas, such as 1,235."""
    return f"{value:,.0f}"


def percent(share: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """Formats a share as a percentage: 0.1235 becomes "12.3 %", or "+12.3 %" if `signed`.

    None becomes `NONE`.
    """
    return NONE if share is None else f"{percent_number(share, digits, signed=signed)} %"


def percent_range(low: float, high: float, digits: int = 1) -> str:
    """Formats a range of shares as percentages, such as "1.0 to 2.5 %"."""
    return f"{percent_number(low, digits)} to {percent(high, digits)}"


def percent_number(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """Formats a share as `percent` does, but without the percent sign."""
    # Rounds before 0.0 is added: the share -0.0004 has the text 0.0, not -0.0.
    return f"{round(100 * share, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def format_bytes(size: float | None) -> str:
    """Formats a number of bytes with a unit, such as "1.5 MiB". Returns "-" for None.

    The unit is chosen so that the number is below 1024.
    """
    if size is None:
        return NONE
    value, units = size, iter(_BINARY_UNITS)
    unit = next(units)
    while abs(value) >= 1023.5 and unit != _BINARY_UNITS[-1]:
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"


def count_text(items: int | Sized, singular: str, plural: str) -> str:
    """Formats a number with a noun in singular or plural: "1 run" or "2 runs". If `items` is a
    collection, the number is its length.
    """
    number = items if isinstance(items, int) else len(items)
    return f"{number} {singular if number == 1 else plural}"


def selection_text(shown: int, of: str, total: int, singular: str, plural: str) -> str:
    """Describes how many of several things are shown: "2 runs" if all are shown, otherwise "the 2
    fastest of 3 runs".
    """
    text = count_text(total, singular, plural)
    return text if shown == total else f"the {shown} {of} of {text}"


def format_interval(low: float, high: float, text: Callable[[float], str] = number) -> str:
    """Formats an interval, such as "1.235 to 2.500". `text` formats its ends."""
    return f"{text(low)} to {text(high)}"


def p_value(p: float | None) -> str:
    """Formats a p-value with two significant digits, such as 0.012. None becomes `NONE`."""
    return NONE if p is None else f"{p:.2g}"


def milliseconds(seconds: float | None) -> str:
    """Formats a time in milliseconds, without the unit. None becomes `NONE`."""
    return number(None if seconds is None else 1e3 * seconds)


def billions(value: float | None) -> str:
    """Formats a rate in GFLOP/s or GB/s, without the unit. None becomes `NONE`."""
    return number(None if value is None else value / 1e9)


def is_share(unit: str) -> bool:
    """Whether values of a unit are shares from 0 to 1, which are shown in per cent."""
    return unit.startswith("share") or unit == "top-1"


def shown_unit(unit: str) -> tuple[str, float]:
    """Returns the unit in which values of a unit are shown, and the factor of the conversion: MiB
    for bytes, and per cent for shares.
    """
    if unit == "bytes":
        return "MiB", 2.0**-20
    return ("%", 100.0) if is_share(unit) else (unit, 1.0)


def quantity(value: float | None, unit: str, *, with_unit: bool = True) -> str:
    """Formats a value of a unit, such as "123.4 MiB" for bytes or "75.90 %" for a share. None
    becomes `NONE`.
    """
    if value is None:
        return NONE
    shown, factor = shown_unit(unit)
    text = f"{factor * value:.2f}" if is_share(unit) else number(factor * value)
    return f"{text} {shown}" if with_unit else text


def format_duration(seconds: float) -> str:
    """Formats a duration in whole units, such as "42 s", "5 min" or "2 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def counted_names(names: Iterable[object]) -> str:
    """Lists names, separated by commas. Equal names are counted, as in "8 x NVIDIA H100"."""
    counts = Counter(map(str, names))
    return ", ".join(f"{times} x {name}" if times > 1 else name for name, times in counts.items())


def enumeration(texts: Iterable[str], word: str = "or") -> str:
    """Lists texts: "a", "a or b", "a, b or c". `word` is put before the last text."""
    *others, last = texts
    return f"{', '.join(others)} {word} {last}" if others else last


def alternatives(texts: Sequence[str], most: int = 3) -> str:
    """Lists texts of which one applies: "a or b", or "a, b, c or 1,048 others" if there are more
    than `most`.
    """
    more = len(texts) - most
    if more <= 1:
        return " or ".join(texts)
    return f"{', '.join(texts[:most])} or {more:,} others"


def capitalized(text: str) -> str:
    """Returns a text that begins with a capital letter; the other letters are not changed."""
    return text[:1].upper() + text[1:]


def shortened(text: str, longest: int = 200) -> str:
    """Cuts a text to at most `longest` characters, of which the last are "..." if it is cut."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def first_few(names: Sequence[str], most: int, separator: str = "; ") -> str:
    """Lists the first `most` names and the number of further names, such as "a; b and 3 more"."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def first_lines(texts: Sequence[str], most: int, more: str = "and {} more") -> tuple[str, ...]:
    """Returns the first `most` texts and, if there are further texts, a line with their number."""
    further = len(texts) - most
    return (*texts[:most], *([more.format(further)] if further > 0 else []))


# Suggestions of known names for misspelled ones


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Finds the known word that is most similar to a misspelled word; "" if no word is similar.

    Upper and lower case are not distinguished. A known word is similar if it begins with the word,
    or if three quarters of both words agree (three fifths for at most three characters).
    """
    word, by_lower = word.lower(), {name.lower(): name for name in sorted(known)}
    longer = [name for name in by_lower if len(word) > 2 and name.startswith(word)]
    cutoff = 0.75 if len(word) > 3 else 0.6
    close = difflib.get_close_matches(word, by_lower, 1, cutoff) or longer
    return by_lower[close[0]] if close else ""


def suggestion(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Asks whether the most similar known word was meant: "did you mean WORD?". Returns `otherwise`
    if no word is similar.
    """
    close = nearest_word(word, known)
    return f"did you mean {close}?" if close else otherwise


def unknown_name_reason(name: str, known: Collection[str], listed: str = "must be one of") -> str:
    """Reason to refuse an unknown name. It suggests the most similar known name, and lists all
    names after the words `listed`.
    """
    names = ", ".join(other or "''" for other in known) or "none"
    return f"{suggestion(name, known)} {listed} {names}".lstrip()


def unknown_key_message(key: str, known: Iterable[str]) -> str:
    """Message for an unknown key: the most similar known key, or all keys if they are few."""
    names = tuple(known)
    close = nearest_word(key, names)
    if close:
        return f'unknown key "{key}"; did you mean "{close}"?'
    few = f"; there are {', '.join(names)}" if len(names) <= 20 else ""
    return f'unknown key "{key}"{few}'


# The width of texts in terminals and charts


def text_width(text: str) -> int:
    """Number of columns that a text takes in a terminal. Wide characters, such as those of East
    Asian scripts, take two columns (Unicode Standard Annex 11), and combining characters none.
    """
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut_to_width(text: str, width: int) -> str:
    """Returns the beginning of a text that takes at most `width` columns."""
    if text.isascii():
        return text[: max(0, width)]
    for place in range(len(text)):
        width -= _width(text[place])
        if width < 0:
            return text[:place]
    return text


_SECOND_COLUMN = "\0"
"""Stands for the second column of a wide character while a text is broken into lines."""


def wrap_words(text: str, width: int, **options: Any) -> list[str]:
    """Breaks a text into lines of at most `width` columns as `textwrap.wrap` does, which counts
    characters instead of columns. `options` are those of `textwrap.wrap`.
    """
    if text.isascii():
        return textwrap.wrap(text, width, **options)
    doubled = (c + _SECOND_COLUMN * (_width(c) - 1) for c in text)
    lines = textwrap.wrap("".join(doubled), width, **options)
    return [line.replace(_SECOND_COLUMN, "") for line in lines]
