"""Text for people: escaping for each output format, labels, messages, and formats of numbers.

Names of models, hosts, flags and files, commands and error messages are read from records. Records
may contain any text, so it is escaped.

cnnbench: TEXT              a notice, the progress of a command included
    cnnbench: warning: TEXT     what may distort results, or is skipped or left out as defective
    cnnbench: error: TEXT       why the command fails

Lines of native libraries are printed as notices, too. docs/migrating.md lists the other output on
standard error.

For people, numbers have four significant digits and commas between thousands, shares are
percentages with one decimal, and sizes use powers of 1024. In JSON and CSV, numbers are not
rounded.
"""

from __future__ import annotations

import difflib
import math
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Functions that escape untrusted text for each output format.

# Matches characters that have a special meaning in Markdown, in HTML, or on GitHub.
# Underscores within a word, and colons before a space or a digit, have no special meaning.
_SPECIAL = re.compile(r"""[\\`*{}\[\]<>#|!~$&@^]|(?<![^\W_])_|_(?![^\W_])|:(?=[^\s\d])""")
# GitHub turns matching text into links, even if it is written with HTML entities.
_REFERENCE = re.compile(r"@\w|#\d|GH-\d|://|:[a-z_+-][\w+-]*:|www\.", re.IGNORECASE)

# Matches all characters except letters, digits, and characters without a meaning in Markdown.
_UNSAFE = re.compile(r"[^\w ,;=+\-./()]|_")
# GitHub turns text that contains "www." into a link, even if it is within a word.
_LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)

# CI services interpret these prefixes in a log as commands.
# Azure Pipelines and TeamCity find "##vso[...]" and "##[...]" anywhere in a line.
# GitHub finds "::error::" at the beginning of a line.
_COMMAND = re.compile(r"#(?=#[\w.-]*\[)|^\s*:(?=:[\w-]+( .*)?::)")

# A formula in a spreadsheet begins with one of these characters, including full-width forms.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?|-Infinity", re.IGNORECASE)


def to_plain_line(text: str) -> str:
    """Converts a text to one line without control characters and invisible characters. Also
    disables commands for CI services in the text.
    """
    return disable_ci_commands("".join(c if c.isprintable() else " " for c in text).strip())


def disable_ci_commands(line: str) -> str:
    """Disables commands for CI services in a line by inserting a space into each command prefix."""
    return _COMMAND.sub(r"\g<0> ", line)


def to_terminal_line(text: str) -> str:
    """Converts a text to one line for a terminal or a log. Undecodable bytes become escapes."""
    return to_plain_line(text.encode("utf-8", "backslashreplace").decode())


def escape_markdown(text: str) -> str:
    """Escapes a text for Markdown. Special characters become HTML entities. A text with links is
    formatted as code, because entities do not disable links.
    """
    shown = to_plain_line(text)
    escaped = _SPECIAL.sub(_numeric_entity, shown)
    if not _REFERENCE.search(shown):
        return escaped
    return f"<code>{_LINK.sub('&#46;', escaped)}</code>"


def markdown_code(text: str) -> str:
    """Formats a text as code in Markdown. Special characters become numeric HTML entities.

    In CommonMark, an entity is always text. It never ends a table cell, for example.
    """
    return f"<code>{_LINK.sub('&#46;', _UNSAFE.sub(_numeric_entity, to_plain_line(text)))}</code>"


def _numeric_entity(match: re.Match[str]) -> str:
    return f"&#{ord(match.group())};"


def escape_formula(text: str) -> str:
    """Escapes a text for a cell in a CSV file, so that spreadsheets do not interpret it as a
    formula.

    A number, even a negative one, is not a formula.
    """
    shown = to_plain_line(text)
    is_formula = shown.startswith(_FORMULA) and not _NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown


# Functions for the width of texts in terminals and charts.


def text_width(text: str) -> int:
    """Number of columns that a text takes in a terminal. Wide characters, such as those of East
    Asian scripts, take two columns (Unicode Standard Annex 11), and combining characters none.
    """
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut_to_width(text: str, width: int) -> str:
    """Returns the beginning of a text that takes at most `width` columns."""
    if text.isascii():
        return text[: max(0, width)]
    for place in range(len(text)):
        width -= _character_width(text[place])
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
    doubled = (c + _SECOND_COLUMN * (_character_width(c) - 1) for c in text)
    lines = textwrap.wrap("".join(doubled), width, **options)
    return [line.replace(_SECOND_COLUMN, "") for line in lines]


# Functions for the value of --result_label: labels of a run, such as the measured commit.

FLAG = "result_label"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def parse_labels(text: str) -> dict[str, str]:
    """Parses the value of --result_label, ``key=value,key=value``. ValueError names the invalid
    part.

    Keys consist of letters, digits, ``_``, ``.`` and ``-`` and begin with a letter; values may
    contain anything except commas. Undecodable bytes in earlier records become escape sequences.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    values: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or not _KEY.fullmatch(key):
            raise ValueError(f"{part.strip()!r} is not a label; write key=value,key=value")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = value
    return values


def result_label_fault(text: str) -> str:
    """Returns why a text is not a valid value of --result_label for a new run, or "" if it is
    valid.
    """
    try:
        text.encode()
        parse_labels(text)
    except UnicodeEncodeError:
        return "must be text in UTF-8"
    except ValueError as error:
        return str(error)
    return ""


def labels_from_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Reads the labels (--result_label) from the configuration in a record. Empty if the labels are
    missing or invalid.
    """
    text = config.get(FLAG)
    try:
        return parse_labels(text) if isinstance(text, str) else {}
    except ValueError:
        return {}


# Formats of lines on standard error: cnnbench's lines, and fatal messages of TensorFlow.

_PREFIX = "cnnbench: "

_OF_OPENBLAS = "OpenBLAS error: "

# TensorFlow writes fatal messages in one of these two formats:
# F0000 00:00:1795490572.139305    7847 device_event_mgr.cc:228] TEXT
# 2026-11-24 03:20:00.139305: F tensorflow/core/framework/tensor.cc:844] TEXT
_FATAL = re.compile(
    rf"^(?:{_PREFIX})?(?:(?:F\d{{4}} |\d{{4}}-\d\d-\d\d [\d:.]+: F )[^\]\n]*:\d+\] *|"
    rf"{_OF_OPENBLAS})(.*)",
    re.MULTILINE,
)

_FAULTY = "Unexpected Event status"
"""TensorFlow's message if a kernel or a copy fails on a GPU, for any reason."""


def notice_line(text: str) -> str:
    """Formats a notice as a line for standard error, which begins with "cnnbench: "."""
    return _PREFIX + to_terminal_line(text)


def error_line(text: str) -> str:
    """Formats the reason why a command fails as a line, which begins with "cnnbench: error: "."""
    return notice_line(f"error: {text}")


def library_output_notices(log: str, *, hides_openblas: bool = False) -> str:
    """Formats the output of native libraries as cnnbench's notices. Lines that are already notices
    are not changed.

    `hides_openblas` omits the message with which OpenBLAS ends the process; use it if
    `fatal_message` is reported anyway.
    """
    lines = [line.removeprefix(_PREFIX) for line in log.split("\n") if line.strip()]
    lines = [line for line in lines if not (hides_openblas and line.startswith(_OF_OPENBLAS))]
    return "".join(f"{notice_line(line)}\n" for line in lines)


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


def fatal_message(log: str) -> str:
    """Finds the last fatal message of TensorFlow or OpenBLAS in a log, as one line; "" if there is
    none.
    """
    messages = _FATAL.findall(log)
    message = to_terminal_line(messages[-1]) if messages else ""
    return f"a GPU failed: {message}" if message.startswith(_FAULTY) else message


# Functions that format numbers for people.

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
    # Without rounding first, 0.99999 would become 1.0000 instead of 1.000.
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
    # Without rounding first, the share -0.0004 would become -0.0 % instead of 0.0 %.
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


def item_count(items: int | Sized) -> int:
    """The number of items in a collection. If `items` is itself a number, it is returned."""
    return items if isinstance(items, int) else len(items)


def count_text(items: int | Sized, singular: str, plural: str) -> str:
    """Formats a number with a noun in singular or plural: "1 run" or "2 runs". If `items` is a
    collection, the number is its length.
    """
    number = item_count(items)
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


def parse_integer(text: str) -> int:
    """Parses decimal ASCII digits, or hexadecimal digits after 0x. ValueError for other text."""
    # Python's int() also accepts underscores, and digits that are not ASCII.
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return int(text, 16) if text[:2].lower() == "0x" else int(text)


def parse_number(text: str) -> float:
    """Parses a finite number that is written in ASCII characters. ValueError for other text."""
    value = float(text)
    if "_" in text or not text.isascii() or not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_bytes(text: str) -> int | None:
    """Parses a size such as "4096" or "64K" (units are powers of 1024) to bytes; None if it is
    malformed.
    """
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.upper())
    if match is None:
        return None
    size: int = int(match.group(1)) * 1024 ** " KMGT".index(match.group(2) or " ")
    return size


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Duration:
    """A positive duration in seconds. `source` is the text from which it was parsed, such as
    "500ms", "10s", "2m" or "1.5h".
    """

    seconds: float
    source: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parses a duration with a unit, such as "500ms". ValueError if the text is malformed."""
        match = re.fullmatch("([0-9.]{1,12})(ms|s|m|h)", text.strip())
        seconds = parse_number(match[1]) * _SECONDS[match[2]] if match else 0.0
        if not seconds:
            raise ValueError(text)
        return cls(seconds, text)


class StopAt(NamedTuple):
    """The metric value at which a run ends. `source` is the text from which it was parsed, such as
    "top_1:0.759".
    """

    metric: str
    value: float
    source: str


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
