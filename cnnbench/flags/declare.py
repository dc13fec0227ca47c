"""Declaration of flags: one dataclass field per flag.

`flag` makes the field, and `specs_of` returns the declarations of a dataclass as `FlagSpec`. The
parser, the checks, ``--help`` and docs/flags.md use only `FlagSpec`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cnnbench.base.lock import claim
from cnnbench.base.text.numbers import Duration
from cnnbench.errors import FlagError
from cnnbench.flags import kinds
from cnnbench.flags.kinds import FlagKind
from cnnbench.flags.roles import Role, RunPart
from cnnbench.records.files import refusing

T = TypeVar("T")

_METADATA = "cnnbench.flag"

# An empty string in a script, with quotes that the shell does not remove.
_EMPTY = ("''", '""')
_BOUNDS = ("minimum", "maximum", "above", "below")


def flag(default: Any, help: str, **limits: Any) -> Any:
    """Declares one flag as a dataclass field; name and kind come from the annotation.

    None as the default needs an optional type. A union such as ``int | Duration`` takes values of
    several kinds. The limits are attributes of `FlagSpec`.
    """
    return dataclasses.field(default=default, metadata={_METADATA: {"help": help, **limits}})


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """A declared flag.

    Attributes:
      kind: how values are read, checked and written.
      optional: whether None ("not given") is a value.
      help: effect of the flag, with its unit, in one or two sentences.
      parser: converts text to a value of the annotated type, whose `source` is that text; raises
        FlagError, or ValueError with the reason.
      choices: the allowed strings.
      checked_late: the parser leaves the check to `validate`: plug-ins may add choices, or what is
        valid depends on the task.
      minimum, maximum: inclusive bounds of the value, or of every item of a list.
      above, below: exclusive bounds.
      fault: the reason why a value within these limits is refused, or "".
      lower: the value is stored in lower case.
      path: "file" or "folder" if the value is a path or a list of paths, with " or URL" if it may
        be a URL of a file system of TensorFlow; "" for other values. Shells complete it.
      empty_is_none: an empty value on the command line means None instead of being refused.
      known: values, or items of a list, for shell completion where there are no choices.
      alone: value of a flag with choices that is given without one.
      repeated: the value is the tuple of all given ones; not only the last counts.
      short: a letter that may be written for the name, as in -o FILE.
      separator: between the items of a list; "" for lists with a flag per item.
      role: its role in the identity of a run.
      part: the parts of a run that it feeds.
    """

    name: str
    kind: FlagKind = dataclasses.field(compare=False)
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
    fault: Callable[[Any], str] = lambda value: ""
    lower: bool = False
    path: str = ""
    empty_is_none: bool = False
    known: Callable[[], Iterable[str]] | None = None
    alone: str = ""
    repeated: bool = False
    short: str = ""
    separator: str = ","
    role: Role = Role.IDENTITY
    part: RunPart = RunPart.NONE

    @property
    def takes_urls(self) -> bool:
        """Whether the value may be a URL."""
        return "URL" in self.path

    def parse(self, text: str) -> Any:
        """Converts the text of a command line; does not check the range.

        Empty text for an optional flag (an unset shell variable) is refused unless `empty_is_none`.
        """
        if "\0" in text:  # from a flag file; file names cannot have it
            raise FlagError(self.name, text.replace("\0", "\\0"), "must have no null character")
        of_text = self.kind.form.startswith("TEXT")
        if of_text and text in _EMPTY:
            return None if self.optional and not self.repeated else self.kind.read("")
        if of_text and self.optional and not text.strip():
            if self.empty_is_none:
                return None
            raise FlagError(self.name, text, "is empty; give a value or leave the flag out")
        try:
            return self.normalise(self.kind.read(text))
        except FlagError:
            raise
        except (LookupError, ValueError):
            raise FlagError(self.name, text, f"must be {self.kind.wording}") from None

    def read(self, value: Any) -> Any:
        """Normalises a value given from Python, which may be text as on the command line."""
        if isinstance(value, str) and not self.kind.has(value):
            value = self.parse(value)
        return self.normalise(value)

    def normalise(self, value: Any) -> Any:
        """Converts a value to the form it is stored in; leaves values of a wrong type alone."""
        return None if value == "" and self.optional else self.kind.stored(value)

    def check(self, value: Any) -> None:
        """Checks type, choices and range of a normalised value; FlagError states the valid ones."""
        if value is None and self.optional:
            return
        if not self.kind.has(value):
            raise FlagError(self.name, self.text(value), f"must be {self.kind.wording}")
        if reason := self.kind.fault(value) or self.fault(value):
            raise FlagError(self.name, self.text(value), reason)
        for path in (value if isinstance(value, tuple) else (value,)) if self.path else ():
            if path:
                with refusing(self.name, path, "used"):
                    claim(path)

    def plain(self, value: Any) -> Any:
        """The value as stored in records: parsed values as their original text."""
        return getattr(value, "source", value)

    def text(self, value: Any) -> str:
        """The value as written on the command line; "" for None."""
        value = "" if value is None else self.kind.stored(value)
        return self.kind.text(value) if self.kind.has(value) else str(value)


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
    return {name: specs[name].text(value) for name, value in given.items()}


def sections_of(group: type, titles: Mapping[str, str]) -> dict[str, tuple[FlagSpec, ...]]:
    """The flags by section, in the order of `titles`, by the flags with which they begin."""
    title, found = "", dict.fromkeys(titles.values(), tuple[FlagSpec, ...]())
    for spec in specs_of(group):
        title = titles.get(spec.name, title)
        found[title] += (spec,)
    return found


def _spec(field: dataclasses.Field[Any], annotation: Any) -> FlagSpec:
    limits = field.metadata[_METADATA]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    of = typing.get_args(annotation) if is_union else (annotation,)
    values = [_kind(one, limits) for one in of if one is not type(None)]
    return FlagSpec(
        name=field.name,
        kind=values[0] if len(values) == 1 else kinds.either(*values),
        optional=type(None) in of,
        default=field.default,
        **limits,
    )


def _kind(of: Any, limits: Mapping[str, Any]) -> FlagKind:
    """The kind of an annotated type, within those of the limits that it has."""
    if typing.get_origin(of) is tuple:
        return kinds.items(_kind(typing.get_args(of)[0], limits), limits.get("separator", ","))
    if of in (int, float):
        bounds = {name: limits[name] for name in _BOUNDS if limits.get(name) is not None}
        return kinds.numeric(of, **bounds)
    if of is str:
        return kinds.string(*(limits.get(name, "") for name in ("choices", "lower", "path")))
    if of is Duration:
        return kinds.duration()
    return kinds.boolean() if of is bool else kinds.parsed(of, limits["parser"])
