"""Declaration of flags: one dataclass field per flag.

`flag` makes the field, and `specs_of` returns the declarations of a dataclass as `FlagSpec`. The
parser, the checks, ``--help`` and docs/flags.md use only `FlagSpec`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cnnbench.base import urls
from cnnbench.base.lock import claim
from cnnbench.base.text.numbers import parse_integer, parse_number, truth
from cnnbench.errors import FlagError
from cnnbench.flags.roles import Role, RunPart
from cnnbench.records.files import refusing

T = TypeVar("T")

_METADATA = "cnnbench.flag"

_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True)
class _Kind:
    """A kind of single values; `largest`: what TensorFlow accepts, for flags without a maximum."""

    type: Any
    wording: str
    read: Callable[[str], Any]
    largest: float = math.inf


_SINGLE = {
    "boolean": _Kind(bool, "true or false", lambda text: _BOOLEANS[text.lower()]),
    "integer": _Kind(int, "an integer", parse_integer, 2**31 - 1),
    "number": _Kind(float, "a finite number", parse_number, 3.4028235e38),
    "string": _Kind(str, "a string", str),
}
# An empty string in a script, with quotes that the shell does not remove.
_EMPTY = ("''", '""')
_LISTS = {"integers": "integer", "numbers": "number"}
_KINDS: dict[Any, str] = {
    **{kind.type: name for name, kind in _SINGLE.items()},
    tuple[int, ...]: "integers",
    tuple[float, ...]: "numbers",
}
_RANGE: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", operator.ge, "at least"),
    ("above", operator.gt, "greater than"),
    ("maximum", operator.le, "at most"),
    ("below", operator.lt, "less than"),
)


def flag(default: Any, help: str, **limits: Any) -> Any:
    """Declares one flag as a dataclass field; name and type come from the annotation.

    None as the default needs an optional type; the limits are attributes of `FlagSpec`.
    """
    return dataclasses.field(default=default, metadata={_METADATA: {"help": help, **limits}})


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """A declared flag.

    Attributes:
      kind: boolean, integer, number, string, integers or numbers.
      type: type of the values that `parser` returns.
      optional: whether None ("not given") is a value.
      help: effect of the flag, with its unit, in one or two sentences.
      parser: converts text to a value of the annotated type, whose `source` is that text; raises
        FlagError.
      choices: the allowed strings.
      checked_late: the parser leaves the check to `validate`: plug-ins may add choices, or what is
        valid depends on the task.
      minimum, maximum: inclusive bounds of the value, or of every item of a list.
      above, below: exclusive bounds.
      lower: the value is stored in lower case.
      path: "file" or "folder" if the value is a path or a list of paths, with " or URL" if it may
        be a URL of a file system of TensorFlow; "" for other values. Shells complete it.
      empty_is_none: an empty value on the command line means None instead of being refused.
      known: values, or items of a list, for shell completion where there are no choices.
      alone: value of a flag with choices that is given without one.
      repeated: the value is the tuple of all given ones; not only the last counts.
      short: a letter that may be written for the name, as in -o FILE.
      role: its role in the identity of a run.
      part: the parts of a run that it feeds.
    """

    name: str
    kind: str
    type: Any
    optional: bool
    default: Any
    help: str
    parser: Callable[[str], Any] | None = None
    choices: Collection[str] = ()
    checked_late: bool = False
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    lower: bool = False
    path: str = ""
    empty_is_none: bool = False
    known: Callable[[], Iterable[str]] | None = None
    alone: str = ""
    repeated: bool = False
    short: str = ""
    role: Role = Role.IDENTITY
    part: RunPart = RunPart.NONE

    @property
    def _single(self) -> _Kind:
        return _SINGLE[_LISTS.get(self.kind, self.kind)]

    @property
    def takes_urls(self) -> bool:
        """Whether the value may be a URL."""
        return "URL" in self.path

    @property
    def _kind_text(self) -> str:
        is_list = self.kind in _LISTS
        return f"a comma-separated list of {self.kind}" if is_list else self._single.wording

    def parse(self, text: str) -> Any:
        """Converts the text of a command line; does not check the range.

        Empty text for an optional flag (an unset shell variable) is refused unless `empty_is_none`.
        """
        if self.kind in _LISTS:
            parts = text.split(",") if text.strip() else []
            return tuple(self._read(part.strip(), text) for part in parts)
        if "\0" in text:  # from a flag file; file names cannot have it
            raise FlagError(self.name, text.replace("\0", "\\0"), "must have no null character")
        if self.kind == "string" and text in _EMPTY:
            return None if self.optional and not self.repeated else ""
        if self.kind == "string" and self.optional and not text.strip():
            if self.empty_is_none:
                return None
            raise FlagError(self.name, text, "is empty; give a value or leave the flag out")
        value = self.normalise(self._read(text, text))
        return value if self.parser is None or value is None else self.parser(value)

    def read(self, value: Any) -> Any:
        """Normalises a value given from Python, which may be text as on the command line."""
        if isinstance(value, str) and (self.parser is not None or self.kind != "string"):
            value = self.parse(value)
        return self.normalise(value)

    def normalise(self, value: Any) -> Any:
        """Converts a value to the form it is stored in; leaves values of a wrong type alone."""
        if self.kind in _LISTS and isinstance(value, list | tuple):
            return tuple(self._as_float(item) for item in value)
        if isinstance(value, str) and self.kind == "string":
            if value == "" and self.optional:
                return None
            value = urls.without_file_scheme(value) if self.path else value
            return value.lower() if self.lower else value
        return self._as_float(value)

    def check(self, value: Any) -> None:
        """Checks type, choices and range of a normalised value; FlagError states the valid ones."""
        if value is None and self.optional:
            return
        if self.parser is not None:
            if not isinstance(value, self.type):
                raise FlagError(self.name, value, f"must be of the type {self.type.__name__}")
            return
        items = value if self.kind in _LISTS or self.repeated else (value,)
        if not isinstance(items, tuple):
            raise FlagError(self.name, value, f"must be a list of {self.kind}")
        for item in items:
            if reason := self._fault(item):
                raise FlagError(self.name, self.text(value), reason)
        if self.choices and value not in self.choices:
            raise FlagError(self.name, value, f"must be {_one_of(self.choices)}")
        if self.path and value:
            with refusing(self.name, value, "used"):
                claim(value)

    def plain(self, value: Any) -> Any:
        """The value as stored in records: parsed values as their original text."""
        return value.source if self.parser and isinstance(value, self.type) else value

    def text(self, value: Any) -> str:
        """The value as written on the command line."""
        value = self.plain(value)
        if isinstance(value, bool):
            return truth(value)
        if isinstance(value, tuple | list):
            return ",".join(self.text(item) for item in value)
        return str(value).removesuffix(".0") if isinstance(value, float) else str(value)

    @property
    def range_text(self) -> str:
        """The allowed values in words, or ""."""
        if self.choices:
            return _one_of(self.choices)
        if self.takes_urls:
            return "a path or a URL"
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:.10g} to {self.maximum:.10g}"
        bounds = ((getattr(self, name), words) for name, _, words in _RANGE)
        return " and ".join(f"{words} {bound:.10g}" for bound, words in bounds if bound is not None)

    def _read(self, text: str, whole: str) -> Any:
        """Parses a value or item; errors show `whole`."""
        try:
            return self._single.read(text)
        except (LookupError, ValueError):
            raise FlagError(self.name, whole, f"must be {self._kind_text}") from None

    def _fault(self, item: Any) -> str:
        """The reason why a value or item is refused, or ""."""
        is_finite = type(item) is not float or math.isfinite(item)
        if type(item) is not self._single.type or not is_finite:
            return f"must be {self._kind_text}"
        if self.path and (reason := urls.fault(item, self.takes_urls)):
            return reason
        if (
            self.maximum is None
            and isinstance(item, int | float)
            and abs(item) > self._single.largest
        ):
            return f"must not be larger than {self._single.largest:.10g}"
        bounds = ((getattr(self, name), holds) for name, holds, _ in _RANGE)
        fits = all(bound is None or holds(item, bound) for bound, holds in bounds)
        return "" if fits else f"must be {self.range_text}"

    def _as_float(self, value: Any) -> Any:
        return float(value) if self._single.type is float and type(value) is int else value


def flag_of(group: type, name: str, **changes: Any) -> Any:
    """Declares a flag of another dataclass again, with changes of default, limits or help."""
    (field,) = (field for field in dataclasses.fields(group) if field.name == name)
    default = changes.pop("default", field.default)
    return flag(default, **{**field.metadata[_METADATA], **changes})


def words(text: str) -> tuple[str, ...]:
    """The distinct words of a comma-separated list."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def specs_of(group: type) -> tuple[FlagSpec, ...]:
    """The flags that a dataclass declares, in order, inherited ones first."""
    hints = typing.get_type_hints(group)
    return tuple(_spec(field, hints[field.name]) for field in dataclasses.fields(group))


def named(specs: Iterable[FlagSpec], of: Role | RunPart) -> tuple[str, ...]:
    """Names of the flags that have a role, or feed one of the parts, in order of declaration."""
    if isinstance(of, Role):
        return tuple(spec.name for spec in specs if spec.role is of)
    return tuple(spec.name for spec in specs if spec.part & of)


def parted(options: type[T], given: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """The options of a command, and the values of the other flags, those of runs."""
    own = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return (
        options(**{name: value for name, value in given.items() if name in own}),
        {name: value for name, value in given.items() if name not in own},
    )


def texts_of(given: Mapping[str, Any], specs: Mapping[str, FlagSpec]) -> dict[str, str]:
    """Values of flags by name, as written on the command line."""
    return {name: "" if value is None else specs[name].text(value) for name, value in given.items()}


def sections_of(group: type, titles: Mapping[str, str]) -> dict[str, tuple[FlagSpec, ...]]:
    """The flags by section, in the order of `titles`, by the flags with which they begin."""
    title, found = "", dict.fromkeys(titles.values(), tuple[FlagSpec, ...]())
    for spec in specs_of(group):
        title = titles.get(spec.name, title)
        found[title] += (spec,)
    return found


def _spec(field: dataclasses.Field[Any], annotation: Any) -> FlagSpec:
    limits = field.metadata[_METADATA]
    optional = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        optional = type(None) in typing.get_args(annotation)
        (annotation,) = (a for a in typing.get_args(annotation) if a is not type(None))
    return FlagSpec(
        name=field.name,
        kind="string" if {"parser", "repeated"} & limits.keys() else _KINDS[annotation],
        type=annotation,
        optional=optional,
        default=field.default,
        **limits,
    )


def _one_of(choices: Collection[str]) -> str:
    return "one of " + ", ".join(choice or "''" for choice in choices)
