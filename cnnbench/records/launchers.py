"""Removes the prefixes that launchers and log collectors write before each line of a process.

No list of launchers is needed. A reader knows how some lines of its program begin, so the text
before such a line is a prefix. The prefixes of all other lines have the same shape: only times and
numbers, such as the rank, differ. Lines belong to the same process if their prefixes are equal
except for times, for spaces that align columns, and for the name of the stream.

All patterns are bounded in length, so the time is linear in the size of the log.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TypeAlias

Line: TypeAlias = "tuple[int, str]"
"""Line number (from 1), and text without the line end."""

_LONGEST, _MOST_SHAPES = 200, 50
_BEFORE = rf'^[^{{"\n]{{0,{_LONGEST}}}?'
# The lookahead prevents that the digits after a fraction can be matched in several ways, which
# would be slow.
_FRACTION = r"\d{1,9}(?!\d)"
_CLOCK = rf"\d\d:\d\d:\d\d(?:[.,]{_FRACTION})?"
_ISO = rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAY = "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
_NAMED_DAY = rf"{_WEEKDAY}(?:{'|'.join(_MONTHS)}) [ \d]\d {_CLOCK}(?: \d{{4}})?"
_SECONDS = rf"\d{{10}}\.{_FRACTION}"
_TIME = rf"{_ISO}|{_NAMED_DAY}|{_CLOCK}|{_SECONDS}"
_TIMES = re.compile(_TIME)
_STREAM = "<std(?:out|err)>"
_OFFSET = re.compile(r"(?:Z|[+-]\d\d:?\d\d)$")
_END = re.compile(rf"(?:[\]>:|]|{_TIME})\s{{0,2}}$|\t$")
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")

# Lines that are not results: lines that TensorFlow, absl, glog and Python's warnings log, and
# cnnbench's messages on standard error.
_LOGGED = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[\d.,]{0,10}: [IWEF] |[IWEF]\d{4,8} \d\d:\d\d:\d\d|"
    r"(?:DEBUG|INFO|WARNING|ERROR)(?::tensorflow)?:|[^:]{1,400}\.py:\d{1,6}: \w{0,40}Warning: |"
    r"Instructions for updating:|(?:\[[a-z]{1,20}:\d{1,6}\] )?cnnbench: "
)


def prefixed_pattern(known: str) -> bytes:
    """Returns a regular expression for lines that begin with `known`, or with text that a launcher
    writes before each line of output and then `known`. `known` is a regular expression of bounded
    length.
    """
    return rf"{_BEFORE}(?:{known})".encode()


def lines_of_processes(text: str, known: str) -> list[tuple[list[Line], str]]:
    """Splits a log into the lines of its processes, in the order of their first lines.

    Args:
      text: the whole log. ANSI colours are removed.
      known: regular expression of bounded length for the beginning of lines that the program
        prints, from which the prefixes are learned.

    Returns:
      For each process, its lines and its time. The lines have no prefixes; log lines of libraries
      and empty lines are left out. The time is the date and time of the first line that has them,
      ISO 8601, without an offset from UTC if the line has none; "" if no prefix and no message of
      TensorFlow has a date.
    """
    text = _COLOURS.sub("", text.replace("\r\n", "\n")) if "\x1b" in text or "\r" in text else text
    shapes = _learn_shapes(text, known)
    found: dict[str, list[Line]] = {}
    times: dict[str, str] = {}
    is_logged: dict[str, bool] = {}
    for number, whole in enumerate(text.split("\n"), start=1):
        prefix = next((m[0] for shape in shapes if (m := shape.match(whole))), "")
        name = _process_key(prefix) if prefix else ""
        line = whole[len(prefix) :].rstrip()
        lines = found.setdefault(name, [])
        is_message = bool(_LOGGED.match(line))
        dated = prefix + (line.partition(": ")[0] if is_message else "")
        if dated and not times.get(name):
            times[name] = _first_time(dated)
        if is_message:
            is_logged[name] = True
        # An indented line continues the log line before it.
        elif line and not (is_logged.get(name) and line[:2] == "  "):
            is_logged[name] = False
            lines.append((number, line))
    return [(lines, times.get(name, "")) for name, lines in found.items()]


def _learn_shapes(text: str, known: str) -> list[re.Pattern[str]]:
    """Returns a pattern for each shape of the prefixes in the log, the longest first."""
    lines = re.compile(f"({_BEFORE})(?:{known})", re.MULTILINE)
    before = {match[1] for match in lines.finditer(text)}
    prefixes = {p for p in before if p.strip() and _END.search(p) and not _LOGGED.match(p)}
    shapes = {_shape(prefix, r"\d+") for prefix in prefixes}
    if len(shapes) > _MOST_SHAPES:  # Hundreds of pods differ in letters, too.
        shapes = {_shape(prefix, r"[\w.-]+") for prefix in prefixes}
    longest_first = sorted(shapes, key=lambda shape: (-len(shape), shape))
    return [re.compile(shape) for shape in longest_first[:_MOST_SHAPES]]


def _shape(prefix: str, word: str) -> str:
    """Returns a pattern that a prefix with other times, and other words in the places of its words,
    matches. `word` is a regular expression.
    """
    end = len(prefix.rstrip())
    parts = [r"\s{0,20}"]
    for part in re.finditer(rf"({_TIME})|({_STREAM})|({word})|(\s+)|.", prefix):
        time, stream, name, spaces = part.groups()
        if time:
            parts.append(f"(?:{_TIME})")
        elif stream:
            parts.append(_STREAM)
        elif name:
            parts.append(word.replace("+", "{1,80}"))
        elif not spaces:
            parts.append(re.escape(part[0]))
        # Spaces within a prefix align columns, so their number may vary. Spaces at its end may
        # belong to the line.
        elif 0 < part.start() < end:
            parts.append(r"\s{1,20}")
        elif part.start():
            parts.append(re.escape(spaces))
    return "".join(parts)


def _process_key(prefix: str) -> str:
    without_times = _TIMES.sub("", prefix)
    return " ".join(without_times.replace("<stderr>", "<stdout>").split())


def _first_time(text: str) -> str:
    """Returns the first date with a time in a text, as ISO 8601, and preferably one with an offset
    from UTC. "" if there is none.
    """
    dates = [*filter(None, map(_iso_text, _TIMES.findall(text)))]
    return next(filter(_OFFSET.search, dates), next(iter(dates), ""))


def _iso_text(time: str) -> str:
    """Converts a time in a prefix to ISO 8601; "" if it has no year."""
    words = time.replace(",", ".").split()
    if re.match(_ISO, time):
        return "T".join(words)
    if re.fullmatch(_SECONDS, time):
        return datetime.fromtimestamp(float(time), timezone.utc).isoformat()
    if len(words) < 4 or not words[-1].isdecimal():
        return ""
    month, day, clock, year = words[-4:]
    return f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{clock}"
