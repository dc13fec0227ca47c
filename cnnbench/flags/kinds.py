"""Kinds of values of flags: how text is read, which values are accepted, and what the help says."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cnnbench.base import urls
from cnnbench.base.text.numbers import Duration, exact, parse_integer, parse_number, truth

_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_HOLDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "greater than"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "less than"),
}


@dataclass(frozen=True, kw_only=True)
class FlagKind:
    """A kind of values.

    Attributes:
      name, form: type and value in the help, such as "integer" and "N".
      wording: what a value is, for refusals: "an integer".
      has: whether a value is one of the kind; within which limits is up to `fault`.
      read: the value of a text; raises LookupError or ValueError if it is none.
      stored: a value in the form that is stored; values of other kinds unchanged.
      text: a value as on the command line.
      fault: the reason why a value of the kind is refused, or "".
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


def boolean() -> FlagKind:
    """Switches."""
    return FlagKind(
        name="boolean",
        form="",
        wording="true or false",
        has=lambda value: type(value) is bool,
        read=lambda text: _BOOLEANS[text.lower()],
        text=truth,
    )


def numeric(of: type[int] | type[float], **bounds: float) -> FlagKind:
    """Integers or finite numbers within bounds; without a maximum within those of TensorFlow."""
    whole = of is int
    return FlagKind(
        name="integer" if whole else "number",
        form="N" if whole else "X",
        wording="an integer" if whole else "a finite number",
        has=lambda value: type(value) is of and (whole or math.isfinite(value)),
        read=parse_integer if whole else parse_number,
        stored=lambda value: of(value) if type(value) is int else value,
        text=exact,
        fault=lambda value: _excess(value, bounds, 2**31 - 1 if whole else 3.4028235e38),
        accepted=lambda: _range(bounds),
    )


def string(choices: Collection[str] = (), lower: bool = False, path: str = "") -> FlagKind:
    """Text, one of some names, or paths with commas between them."""

    def stored(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = urls.without_file_scheme(value) if path else value
        return value.lower() if lower else value

    def fault(value: Any) -> str:
        if choices and value not in choices:
            return f"must be {_one_of(choices)}"
        return urls.fault(value, "URL" in path) if path else ""

    return FlagKind(
        name="string",
        form="TEXT",
        wording="a string",
        has=lambda value: type(value) is str,
        read=str,
        stored=stored,
        fault=fault,
        accepted=lambda: _one_of(choices) if choices else "a path or a URL" * ("URL" in path),
    )


def parsed(type: type, parser: Callable[[str], Any]) -> FlagKind:
    """Values of a type with the attribute `source`, the text that a parser has made them of."""
    return FlagKind(
        name="string",
        form="TEXT",
        wording=f"of the type {type.__name__}",
        has=lambda value: isinstance(value, type),
        read=parser,
        text=lambda value: str(value.source),
    )


def items(of: FlagKind, separator: str = ",") -> FlagKind:
    """Tuples of values; in text with a separator, or without one a single value."""

    def has(value: Any) -> bool:
        return isinstance(value, tuple) and all(map(of.has, value))

    def read(text: str) -> Any:
        if not separator:
            return (of.read(text),)
        return tuple(of.read(part.strip()) for part in text.split(separator) if text.strip())

    def stored(value: Any) -> Any:
        return tuple(map(of.stored, value)) if isinstance(value, list | tuple) else value

    return FlagKind(
        name=f"{of.name}s",
        form=f"{of.form},{of.form},...",
        wording=f"a comma-separated list of {of.name}s",
        has=has,
        read=read,
        stored=stored,
        text=lambda value: separator.join(map(of.text, value)),
        fault=lambda value: next(filter(None, map(of.fault, value)), ""),
        accepted=of.accepted,
    )


def either(*kinds: FlagKind) -> FlagKind:
    """Values of any of some kinds; a text is of the first one that can read it."""

    def read(text: str) -> Any:
        for kind in kinds[:-1]:
            try:
                return kind.read(text)
            except (LookupError, ValueError):
                continue
        return kinds[-1].read(text)

    def of(value: Any) -> FlagKind:
        return next(kind for kind in kinds if kind.has(value))

    return FlagKind(
        name=" or ".join(kind.name for kind in kinds),
        form="|".join(kind.form for kind in kinds),
        wording=" or ".join(kind.wording for kind in kinds),
        has=lambda value: any(kind.has(value) for kind in kinds),
        read=read,
        stored=lambda value: next((v for k in kinds if k.has(v := k.stored(value))), value),
        text=lambda value: of(value).text(value),
        fault=lambda value: of(value).fault(value),
        accepted=lambda: ", or ".join(filter(None, (kind.accepted() for kind in kinds))),
    )


def duration() -> FlagKind:
    """Times, written with a unit."""
    words = "a duration such as 500ms, 10s or 2m"
    kind = parsed(Duration, Duration.parse)
    return replace(kind, name="duration", form="TIME", wording=words, accepted=lambda: words)


def _excess(value: float, bounds: Mapping[str, float], largest: float) -> str:
    if "maximum" not in bounds and abs(value) > largest:
        return f"must not be larger than {exact(largest)}"
    fits = all(_HOLDS[name][0](value, bound) for name, bound in bounds.items())
    return "" if fits else f"must be {_range(bounds)}"


def _range(bounds: Mapping[str, float]) -> str:
    if {"minimum", "maximum"} <= bounds.keys():
        return f"from {exact(bounds['minimum'])} to {exact(bounds['maximum'])}"
    ordered = ((words, bounds[name]) for name, (_, words) in _HOLDS.items() if name in bounds)
    return " and ".join(f"{words} {exact(bound)}" for words, bound in ordered)


def _one_of(choices: Collection[str]) -> str:
    return "one of " + ", ".join(choice or "''" for choice in choices)
