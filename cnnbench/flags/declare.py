"""How a flag is declared: one dataclass field holds everything about it.

``flag()`` makes the field, ``specs_of()`` reads the declarations of a dataclass
back as ``FlagSpec``. The parser, the checks, ``--help`` and docs/flags.md see
nothing but ``FlagSpec``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cnnbench.errors import FlagError

_METADATA = "cnnbench.flag"

_TRUE = ("true", "t", "1")
_FALSE = ("false", "f", "0")

_KINDS: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    tuple[int, ...]: "integers",
    tuple[float, ...]: "numbers",
}
_ITEM_KIND = {"integers": "integer", "numbers": "number"}
_ARTICLE = {"integer": "an integer", "number": "a number", "string": "a string"}
_FINITE = "must be a finite number"


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What a field's metadata holds beside its name, type and default."""

    help: str
    parser: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    lower: bool = False


def flag(
    default: Any,
    help: str,
    *,
    parser: Callable[[str], Any] | None = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    lower: bool = False,
) -> Any:
    """Declares one flag as a dataclass field; name and type come from the annotation.

    Args:
      default: value when the flag is not given; None needs an optional type.
      help: what the flag does, with its unit, as one sentence or two.
      parser: makes the value from text, once; the annotation is the type of what it makes,
        whose `source` is that text. It raises FlagError.
      choices: the only values allowed (strings).
      minimum: smallest value allowed, for every item of a list.
      maximum: largest value allowed.
      above: the value must be greater than this.
      below: the value must be less than this.
      lower: upper-case spellings mean the same and are stored in lower case.

    Returns:
      A ``dataclasses.field``.
    """
    limits = _Limits(
        help=help,
        parser=parser,
        choices=choices,
        minimum=minimum,
        maximum=maximum,
        above=above,
        below=below,
        lower=lower,
    )
    return dataclasses.field(default=default, metadata={_METADATA: limits})


@dataclass(frozen=True, kw_only=True)
class FlagSpec(_Limits):
    """A declared flag.

    Attributes:
      name: without dashes.
      kind: boolean, integer, number, string, integers or numbers.
      type: of a value that a parser made.
      optional: whether None ("not given") is a value.
      default: value when the flag is not given.
    """

    name: str
    kind: str
    type: Any
    optional: bool
    default: Any

    def parse(self, text: str) -> Any:
        """Turns the text of a command line into a value of the right type.

        Raises:
          FlagError: the text does not spell such a value; its range is not checked here.
        """
        if self.kind in _ITEM_KIND:
            parts = [part.strip() for part in text.split(",")] if text.strip() else []
            return tuple(self._parse_item(part, _ITEM_KIND[self.kind], text) for part in parts)
        return self.normalise(self._parse_item(text, self.kind, text))

    def normalise(self, value: Any) -> Any:
        """Brings a value into the form it is stored in; leaves values of a wrong type alone.

        Raises:
          FlagError: the flag's parser refuses the text.
        """
        if self.kind == "number" and _is_integer(value):
            return float(value)
        if self.kind in _ITEM_KIND and isinstance(value, list | tuple):
            to_float = self.kind == "numbers"
            return tuple(float(v) if to_float and _is_integer(v) else v for v in value)
        if self.kind == "string" and isinstance(value, str):
            if value == "" and self.optional:
                return None
            value = value.lower() if self.lower else value
            return self.parser(value) if self.parser else value
        return value

    def check(self, value: Any, offer: tuple[str, ...] | None = None) -> None:
        """Checks type, choices and range.

        Args:
          value: a normalised value.
          offer: the choices to name in an error; all of them if None.

        Raises:
          FlagError: says what would be valid.
        """
        if (value is None and self.optional) or (self.parser and isinstance(value, self.type)):
            return
        if self.kind in _ITEM_KIND:
            if not isinstance(value, tuple):
                raise FlagError(self.name, value, f"must be a list of {self.kind}")
            for item in value:
                self._check_item(item, _ITEM_KIND[self.kind], value)
            return
        self._check_item(value, self.kind, value)
        if self.choices and value not in self.choices:
            raise FlagError(self.name, value, f"must be {_one_of(offer or self.choices)}")

    def plain(self, value: Any) -> Any:
        """A value as records hold it: what a parser made is the text it was made from."""
        return value.source if self.parser and isinstance(value, self.type) else value

    def text(self, value: Any) -> str:
        """A value as it is written on the command line."""
        value = self.plain(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple | list):
            return ",".join(self.text(item) for item in value)
        return str(value).removesuffix(".0") if isinstance(value, float) else str(value)

    @property
    def range_text(self) -> str:
        """The allowed values in words, or ''."""
        if self.choices:
            return _one_of(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:.10g} to {self.maximum:.10g}"
        parts = []
        if self.minimum is not None:
            parts.append(f"at least {self.minimum:.10g}")
        if self.above is not None:
            parts.append(f"greater than {self.above:.10g}")
        if self.maximum is not None:
            parts.append(f"at most {self.maximum:.10g}")
        if self.below is not None:
            parts.append(f"less than {self.below:.10g}")
        return " and ".join(parts)

    def _parse_item(self, text: str, kind: str, whole: str) -> Any:
        try:
            if kind == "boolean":
                return _parse_boolean(text)
            if kind == "integer":
                return int(text, 16) if text[:2].lower() == "0x" else int(text)
            number = float(text) if kind == "number" else None
        except ValueError:
            raise FlagError(self.name, whole, f"must be {self._kind_text()}") from None
        if number is None:
            return text
        if not math.isfinite(number):
            raise FlagError(self.name, whole, _FINITE)
        return number

    def _check_item(self, value: Any, kind: str, whole: Any) -> None:
        if not _has_kind(value, kind):
            raise FlagError(self.name, self.text(whole), f"must be {self._kind_text()}")
        if kind == "number" and not math.isfinite(value):
            raise FlagError(self.name, self.text(whole), _FINITE)
        if kind in ("integer", "number") and not self._in_range(value):
            raise FlagError(self.name, self.text(whole), f"must be {self.range_text}")

    def _in_range(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def _kind_text(self) -> str:
        if self.kind == "boolean":
            return "true or false"
        if self.kind in _ITEM_KIND:
            return f"a comma-separated list of {self.kind}"
        return _ARTICLE[self.kind]


def flag_of(group: type, name: str) -> Any:
    """Declares the flag `name` of another dataclass here too: same default, limits and help."""
    (field,) = (field for field in dataclasses.fields(group) if field.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list, none twice."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def specs_of(group: type) -> tuple[FlagSpec, ...]:
    """The flags a dataclass declares itself, in order, without those it inherits."""
    hints = typing.get_type_hints(group)
    own = vars(group).get("__annotations__", {})
    return tuple(
        _spec(field, hints[field.name]) for field in dataclasses.fields(group) if field.name in own
    )


def _spec(field: dataclasses.Field[Any], annotation: Any) -> FlagSpec:
    limits: _Limits = field.metadata[_METADATA]
    optional = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        optional = type(None) in typing.get_args(annotation)
        (annotation,) = (a for a in typing.get_args(annotation) if a is not type(None))
    return FlagSpec(
        name=field.name,
        kind="string" if limits.parser else _KINDS[annotation],
        type=annotation,
        optional=optional,
        default=field.default,
        **{f.name: getattr(limits, f.name) for f in dataclasses.fields(_Limits)},
    )


def _one_of(choices: tuple[str, ...]) -> str:
    return "one of " + ", ".join(choice or "''" for choice in choices)


def _parse_boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _has_kind(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return _is_integer(value)
    if kind == "number":
        return isinstance(value, float)
    return isinstance(value, str)
