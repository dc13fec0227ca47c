"""Types of flag values: how text is parsed, which values are valid, and what the help says."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cnnbench.base import urls
from cnnbench.base.text import boolean_text, exact_number, unknown_name_reason
from cnnbench.base.values import parse_integer, parse_number

_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "greater than"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "less than"),
}
"""Limits of numbers: how a value is compared with each, and its words in messages."""


@dataclass(frozen=True, kw_only=True)
class FlagKind:
    """A type of flag values, such as integers or paths, with functions that parse, check and format
    values.

    Attributes:
      name, form: type and value in the help, such as "integer" and "N".
      wording: description of a value in error messages, such as "an integer".
      has: whether a value is of this kind. `fault` checks its limits.
      read: converts text to a value. LookupError or ValueError if the text is invalid.
      stored: converts a value to its stored form. Values of other kinds are unchanged.
      text: converts a value to text as on the command line.
      fault: the reason why a value of this kind is invalid; "" if it is valid.
      accepted: the accepted values in words, or "".
    """

    name: str
    form: str
    wording: str
    has: Callable[[Any], bool]
    read: Callable[[str], Any]
    stored: Callable[[Any], Any] = lambda value: value
    text: Callable[[Any], str] = str
    fault: Callable[[Any], str] = lambda value: ""
    accepted: Callable[[], str] = lambda: ""


BOOLEAN = FlagKind(
    name="boolean",
    form="",
    wording="true or false",
    has=lambda value: type(value) is bool,
    read=lambda text: _BOOLEANS[text.lower()],
    text=boolean_text,
)
"""Kind of the flags that are true or false."""


def numeric_kind(number_type: type[int] | type[float], **bounds: float) -> FlagKind:
    """Creates the `FlagKind` of integers or finite numbers within the given bounds. Without a
    maximum, the largest int32 or float32 is the maximum.
    """
    whole = number_type is int
    return FlagKind(
        name="integer" if whole else "number",
        form="N" if whole else "X",
        wording="an integer" if whole else "a finite number",
        has=lambda value: type(value) is number_type and (whole or math.isfinite(value)),
        read=parse_integer if whole else parse_number,
        stored=lambda value: number_type(value) if type(value) is int else value,
        text=exact_number,
        fault=lambda value: _bounds_fault(value, bounds, 2**31 - 1 if whole else 3.4028235e38),
        accepted=lambda: _bounds_text(bounds),
    )


def text_kind(choices: Collection[str] = (), lower: bool = False, path: str = "") -> FlagKind:
    """Creates the `FlagKind` of texts: any text, one of the choices, or comma-separated paths."""

    def normalise_text(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = urls.strip_file_scheme(value) if path else value
        if value == "-" and path.endswith("or -"):
            value = "/dev/stdout"
        return value.lower() if lower else value

    def invalid_text_reason(value: Any) -> str:
        if choices and value not in choices:
            return unknown_name_reason(value, choices)
        return urls.path_fault(value, "URL" in path) if path else ""

    return FlagKind(
        name="string",
        form="TEXT",
        wording="a string",
        has=lambda value: type(value) is str,
        read=str,
        stored=normalise_text,
        fault=invalid_text_reason,
        accepted=lambda: (
            "one of " + ", ".join(choice or "''" for choice in choices)
            if choices
            else "a path or a URL" * ("URL" in path)
        ),
    )


def parsed_kind(type: type, parser: Callable[[str], Any]) -> FlagKind:
    """Creates the `FlagKind` of values that a parser returns. The attribute `source` of a value
    must be the text that was parsed.
    """
    return FlagKind(
        name="string",
        form="TEXT",
        wording=f"of the type {type.__name__}",
        has=lambda value: isinstance(value, type),
        read=parser,
        text=lambda value: str(value.source),
    )


def tuple_kind(item_kind: FlagKind, separator: str = ",") -> FlagKind:
    """Creates the `FlagKind` of tuples. A text without the separator becomes a tuple of one."""

    def parse_items(text: str) -> Any:
        if not separator:
            return (item_kind.read(text),)
        return tuple(item_kind.read(part.strip()) for part in text.split(separator) if text.strip())

    return FlagKind(
        name=f"{item_kind.name}s",
        form=f"{item_kind.form},{item_kind.form},...",
        wording=f"a comma-separated list of {item_kind.name}s",
        has=lambda value: isinstance(value, tuple) and all(map(item_kind.has, value)),
        read=parse_items,
        stored=lambda value: (
            tuple(map(item_kind.stored, value)) if isinstance(value, list | tuple) else value
        ),
        text=lambda value: separator.join(map(item_kind.text, value)),
        fault=lambda value: next(filter(None, map(item_kind.fault, value)), ""),
        accepted=item_kind.accepted,
    )


def union_kind(*kinds: FlagKind) -> FlagKind:
    """Creates a `FlagKind` of several kinds; the first that can parse a text parses it."""

    def parse_by_first_kind(text: str) -> Any:
        for kind in kinds[:-1]:
            try:
                return kind.read(text)
            except (LookupError, ValueError):
                continue
        return kinds[-1].read(text)

    def kind_of_value(value: Any) -> FlagKind:
        return next(kind for kind in kinds if kind.has(value))

    return FlagKind(
        name=" or ".join(kind.name for kind in kinds),
        form="|".join(kind.form for kind in kinds),
        wording=" or ".join(kind.wording for kind in kinds),
        has=lambda value: any(kind.has(value) for kind in kinds),
        read=parse_by_first_kind,
        stored=lambda value: next((v for k in kinds if k.has(v := k.stored(value))), value),
        text=lambda value: kind_of_value(value).text(value),
        fault=lambda value: kind_of_value(value).fault(value),
        accepted=lambda: ", or ".join(filter(None, (kind.accepted() for kind in kinds))),
    )


def _bounds_fault(value: float, bounds: Mapping[str, float], largest: float) -> str:
    if "maximum" not in bounds and abs(value) > largest:
        return f"must not be larger than {exact_number(largest)}"
    fits = all(BOUNDS[name][0](value, bound) for name, bound in bounds.items())
    return "" if fits else f"must be {_bounds_text(bounds)}"


def _bounds_text(bounds: Mapping[str, float]) -> str:
    if {"minimum", "maximum"} <= bounds.keys():
        return f"from {exact_number(bounds['minimum'])} to {exact_number(bounds['maximum'])}"
    ordered = ((words, bounds[name]) for name, (_, words) in BOUNDS.items() if name in bounds)
    return " and ".join(f"{words} {exact_number(bound)}" for words, bound in ordered)
