"""Declarations of flags: kinds of values, roles, and checks.

Declarations carry both, and lists of flags that are treated alike follow from them.

`flag` makes the field, and `specs_of` returns the declarations of a dataclass as `FlagSpec`. The
parser, the checks, ``--help`` and docs/flags.md use only `FlagSpec`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cnnbench.base import files
from cnnbench.base.files import claim
from cnnbench.base.text import Duration, exact, parse_integer, parse_number, truth
from cnnbench.errors import FlagError
from cnnbench.records.files import refusing

# What a flag is for: its role in the identity of a run, and the parts of a run that it feeds.


class Counted(enum.Enum):
    """How much of a flag's value belongs to the identity of a run."""

    VALUE = "the value"
    PRESENCE = "whether it is given"
    NUMBER = "the number of items"
    NOTHING = "nothing"


class Role(enum.Enum):
    """The role of a flag, with the reason why its value is compared only in part or not at all."""

    IDENTITY = "decides what is computed, or how"
    PLUGIN = "a file with code of the user; sizes of networks are compared instead"
    PLACE = "a path or machine; the path differs between machines"
    PROFILE = "a file about the step; that it is written costs time, its name does not"
    ITEMS = "addresses, or which of like devices; how many there are counts"
    OUTPUT = "a path that is written outside of the timed steps"
    DISPLAY = "what is shown outside of the timed steps"
    NOTE = "a note of the user"
    JOB = "how the processes of a job find each other, and how long they wait"
    UNTIMED = "changes only what happens outside of the timed steps"
    SEED = "time does not depend on it, and accuracy should be compared over seeds"

    @property
    def counted(self) -> Counted:
        """How much of the value belongs to the identity of a run."""
        return _COUNTED.get(self, Counted.NOTHING)


_COUNTED = {
    Role.IDENTITY: Counted.VALUE,
    Role.ITEMS: Counted.NUMBER,
    **dict.fromkeys((Role.PLUGIN, Role.PLACE, Role.PROFILE), Counted.PRESENCE),
}


class RunPart(enum.Flag):
    """Parts of a run; a flag may feed several, and most feed none that is treated apart."""

    NONE = 0
    WORK = enum.auto()
    """What to run instead of a training."""
    LENGTH = enum.auto()
    """Steps of the timed loop, and its early end."""
    BATCH = enum.auto()
    """The number of images of a training step, of each device or of all."""
    WARM_UP = enum.auto()
    """Steps before the timed ones."""
    EVALUATIONS = enum.auto()
    """When a training pauses for an evaluation."""
    CHECKPOINTS = enum.auto()
    """When checkpoints are saved, and how many are kept."""
    LOSS_SCALE = enum.auto()
    """The loss scale of fp16."""
    LEARNING_RATE = enum.auto()
    """The learning rate and its schedule."""
    UPDATE = enum.auto()
    """The update of weights; without effect where none are updated."""
    CLIPPING = enum.auto()
    """Bounds of gradients."""
    AGGREGATION = enum.auto()
    """How gradients are joined and reduced; without effect for a single device."""
    ALGORITHM = enum.auto()
    """Which algorithm reduces gradients."""
    CROSS_DEVICE = enum.auto()
    """Reductions of the strategies of tf.distribute."""
    DISTRIBUTION = enum.auto()
    """Input that a strategy of tf.distribute distributes."""
    READING = enum.auto()
    """How the examples of a data set are read and prepared."""
    GPU = enum.auto()
    """Effective on GPUs only."""
    THREADS = enum.auto()
    """Sizes of pools of threads."""
    TASK = enum.auto()
    """Which process of a job this is, and the addresses of all."""
    DISCOVERY = enum.auto()
    """Where a process learns its task and the addresses."""
    ROWS = enum.auto()
    """What the rows of ``cnnbench allreduce`` measure; each has a value of its own."""
    TUNABLE = enum.auto()
    """Changes the speed, not what is trained."""


# Kinds of values of flags: how text is read, which values are accepted, and what the help says.

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
    """Integers or finite numbers within bounds. The default maximum is TensorFlow's."""
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
        value = files.without_file_scheme(value) if path else value
        return value.lower() if lower else value

    def fault(value: Any) -> str:
        if choices and value not in choices:
            return f"must be {_one_of(choices)}"
        return files.fault(value, "URL" in path) if path else ""

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


# Declaration of flags: one dataclass field per flag.

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
      before: the value of runs whose records lack the flag, if that is not the default: it changes
        what all runs compute.
      role: its role in the identity of a run.
      part: the parts of a run that it feeds.
      only_with: the conditions, in order, without which it has no effect, which a notice then says.
        A condition is a flag that must be on, a ``flag=value``, or a comma-separated list of these
        of which one must hold. Behind "not " it must not hold. ": " and more words for the notice
        may follow, as in "not eval: it has no warm-up".
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
    before: Any = None
    role: Role = Role.IDENTITY
    part: RunPart = RunPart.NONE
    only_with: str | tuple[str, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """`only_with` as a tuple."""
        return (self.only_with,) if isinstance(self.only_with, str) else self.only_with

    @property
    def takes_urls(self) -> bool:
        """Whether the value may be a URL."""
        return "URL" in self.path

    def parse(self, text: str) -> Any:
        """Converts the text of a command line; does not check the range.

        Empty text for an optional flag (an unset shell variable) is refused unless `empty_is_none`.
        """
        if "\0" in text:  # marks words of a flag file; file names cannot contain it
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


def parted(options: type[T], values: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """The options of a command, and the values of the other flags, those of runs."""
    own = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return (
        options(**{name: value for name, value in values.items() if name in own}),
        {name: value for name, value in values.items() if name not in own},
    )


def texts_of(values: Mapping[str, Any], specs: Mapping[str, FlagSpec]) -> dict[str, str]:
    """Values of flags by name, as written on the command line."""
    return {name: specs[name].text(value) for name, value in values.items()}


def sections_of(group: type, titles: Mapping[str, str]) -> dict[str, tuple[FlagSpec, ...]]:
    """The flags by section, in the order of `titles`, by the flags with which they begin."""
    title, by_section = "", dict.fromkeys(titles.values(), tuple[FlagSpec, ...]())
    for spec in specs_of(group):
        title = titles.get(spec.name, title)
        by_section[title] += (spec,)
    return by_section


def _spec(field: dataclasses.Field[Any], annotation: Any) -> FlagSpec:
    limits = field.metadata[_METADATA]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    of = typing.get_args(annotation) if is_union else (annotation,)
    values = [_kind(argument, limits) for argument in of if argument is not type(None)]
    return FlagSpec(
        name=field.name,
        kind=values[0] if len(values) == 1 else either(*values),
        optional=type(None) in of,
        default=field.default,
        **limits,
    )


def _kind(of: Any, limits: Mapping[str, Any]) -> FlagKind:
    """The kind of an annotated type, within those of the limits that it has."""
    if typing.get_origin(of) is tuple:
        return items(_kind(typing.get_args(of)[0], limits), limits.get("separator", ","))
    if of in (int, float):
        bounds = {name: limits[name] for name in _BOUNDS if limits.get(name) is not None}
        return numeric(of, **bounds)
    if of is str:
        return string(*(limits.get(name, "") for name in ("choices", "lower", "path")))
    if of is Duration:
        return duration()
    return boolean() if of is bool else parsed(of, limits["parser"])
