"""Declares flags as dataclass fields. A declaration contains the type of the values, their limits,
the help, what the flag affects, and how it is compared.

`flag` makes the field, and `specs_of` returns the declarations of a dataclass as `FlagSpec`. The
parser, the checks, ``--help`` and docs/flags.md use only `FlagSpec`. Declarations also contain the
parts of a run that use the flag, so that no other module needs to list flags that are treated
alike.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

from cnnbench.base.locks import keep_temporary_folders
from cnnbench.base.values import Duration
from cnnbench.errors import FlagError
from cnnbench.flags.kinds import (
    BOOLEAN,
    BOUNDS,
    FlagKind,
    numeric_kind,
    parsed_kind,
    text_kind,
    tuple_kind,
    union_kind,
)
from cnnbench.records.files import raising_flag_errors

T = TypeVar("T")
V = TypeVar("V")
G = TypeVar("G")

# Types of flags whose values Python code may also give in another form, for example as text. For
# type checkers, each is a descriptor, because the type that is read differs from the type that may
# be given to `Params`. At run time, each is the type that is read.
if TYPE_CHECKING:

    class _ReadAndGiven(Generic[V, G]):
        def __get__(self, instance: object, owner: type | None = None) -> V: ...

        def __set__(self, instance: object, value: G) -> None: ...

    OrText: TypeAlias = _ReadAndGiven[V, V | str]
    Items: TypeAlias = _ReadAndGiven[tuple[V, ...], tuple[V, ...] | list[V] | str]
else:
    OrText = Annotated[V, "or text that a parser reads"]
    Items = Annotated[tuple[V, ...], "or a list, or comma-separated text"]

_METADATA = "cnnbench.flag"

# If the quoting in a script is wrong, a flag gets two quote characters instead of an empty value.
_EMPTY = ("''", '""')


class Affects(enum.Enum):
    """What a flag changes."""

    RESULT = "what is computed, or how fast, so that other values are other measurements"
    NOTHING = "only what is shown, written or awaited outside of the timed steps"


class ComparedBy(enum.Enum):
    """What must be equal in two runs, so that one run is a repetition of the other."""

    VALUE = "the value"
    NUMBER = "the number of items: addresses and numbers of devices differ between machines"
    PRESENCE = "whether the flag is given: paths differ between machines"
    SEED = "nothing: times do not depend on a seed, and accuracy is compared over seeds"
    NOTHING = "nothing"


class RunPart(enum.Flag):
    """Parts of a run that use a flag, such as the update of weights. A flag may have several parts
    or none.
    """

    NONE = 0
    WORK = enum.auto()
    """Selects a different task than training."""
    NO_TIMED_STEPS = enum.auto()
    """Selects a task without timed steps of a network."""
    LENGTH = enum.auto()
    """Number of steps in the timed loop, and conditions that end it early."""
    BATCH = enum.auto()
    """Number of images per training step, on each device or on all devices."""
    WARM_UP = enum.auto()
    """Warm-up steps, which precede the timed steps."""
    EVALUATIONS = enum.auto()
    """When training pauses for an evaluation."""
    LEARNING_RATE = enum.auto()
    """The learning rate and its schedule."""
    UPDATE = enum.auto()
    """The update of weights. Has no effect in runs that update none."""
    AGGREGATION = enum.auto()
    """How gradients are packed and reduced. Has no effect on a single device."""
    ALGORITHM = enum.auto()
    """The algorithm that reduces gradients."""
    MIXING = enum.auto()
    """Mixing of training images in pairs, with their labels."""
    PROFILE = enum.auto()
    """A file about a step of the warm-up. Writing the file costs time."""
    THREADS = enum.auto()
    """Sizes of thread pools."""
    TASK = enum.auto()
    """The task of this process in its job, and the addresses of all tasks."""
    DISCOVERY = enum.auto()
    """Where a process reads its task and the addresses."""
    ROWS = enum.auto()
    """What the rows of ``cnnbench allreduce`` measure. Each row has its own value."""
    PER_PROCESS = enum.auto()
    """A file or folder that a campaign chooses for each of its processes."""
    STEP_WORK = enum.auto()
    """Determines how much a step computes on a device. Unless it is known, runs are not
    comparable."""
    HEADER = enum.auto()
    """Needs no further line in the header of the output: a line of tf_cnn_benchmarks shows the
    value, or the value hardly affects the speed of a step."""


def flag(default: Any, help: str, **limits: Any) -> Any:
    """Declares a flag as a dataclass field. The type annotation of the field determines which
    values are valid.

    If the default is None, the type must be optional. A union such as ``int | Duration`` accepts
    values of several kinds. The limits are attributes of `FlagSpec`.
    """
    return dataclasses.field(default=default, metadata={_METADATA: {"help": help, **limits}})


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """The declaration of a flag: type of the values, default, limits, help, and use.

    Attributes:
      kind: how values are read, checked and written.
      optional: whether None ("not given") is a value.
      help: the effect of the flag in one or two sentences, with its unit.
      parser: converts text to a value of the annotated type, with the text as its `source`. Raises
        FlagError, or ValueError with the reason.
      choices: the allowed strings.
      checked_late: whether the plan checks the value instead of the parser, because plug-ins may
        add choices or the valid values depend on the task.
      minimum, maximum: inclusive bounds of the value, or of every item of a list.
      above, below: exclusive bounds.
      fault: the reason why a value within these limits is invalid; "" if it is valid.
      lower: the value is stored in lower case.
      path: "file", "folder" or "file prefix" if the value is a path or a list of paths, otherwise
        "". " or URL" is appended if it may be a URL of a TensorFlow file system, " or -" if - means
        standard output. Shells complete paths.
      unset: a value that means None ("not given"), as in tf_cnn_benchmarks: "" or 0. Without it, an
        empty text for an optional flag is refused.
      known: values (or items of a list) for shell completion, if there are no choices.
      alone: for a flag with choices, its value if the flag is given without a value.
      repeated: whether the flag may be repeated; its value is then the tuple of all values.
      short: one-letter form of the name, as in -o FILE.
      separator: text between the items of a list; "" if each item has its own flag.
      before: value of the flag for records that do not contain the flag, if this value differs from
        the default: when the flag was added, what every run computes changed.
      compared_by: what must be equal in repetitions of a run. If the flag affects nothing: NOTHING.
      part: the parts of a run that use the flag.
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
    unset: str | int | None = None
    known: Callable[[], Iterable[str]] | None = None
    alone: str = ""
    repeated: bool = False
    short: str = ""
    separator: str = ","
    before: Any = None
    affects: Affects = Affects.RESULT
    compared_by: ComparedBy = ComparedBy.VALUE
    part: RunPart = RunPart.NONE

    def __post_init__(self) -> None:
        if self.affects is Affects.NOTHING:
            object.__setattr__(self, "compared_by", ComparedBy.NOTHING)

    @property
    def takes_urls(self) -> bool:
        """Whether the value of the flag may be a URL of a TensorFlow file system."""
        return "URL" in self.path

    def parse(self, text: str) -> Any:
        """Converts the text of a command line to a value of the flag. Does not check the range.

        Empty text for an optional flag (an unset shell variable) is refused unless it is `unset`.
        """
        # No file name can contain a null character, and no error message can show it.
        if "\0" in text:
            raise FlagError(
                self.name, text.replace("\0", "\\0"), "must not contain a null character"
            )
        of_text = self.kind.form.startswith("TEXT")
        if of_text and text in _EMPTY:
            return None if self.optional and not self.repeated else self.kind.read("")
        if of_text and self.optional and not text.strip():
            if self.unset == "":
                return None
            raise FlagError(self.name, text, "is empty; give a value or leave the flag out")
        try:
            return self.stored_form(self.kind.read(text))
        except FlagError:
            raise
        except (LookupError, ValueError):
            raise FlagError(self.name, text, f"must be {self.kind.wording}") from None

    def normalise_or_parse(self, value: Any) -> Any:
        """Normalises a value that Python code has set. A text for a flag of another type is parsed
        as on the command line.
        """
        if isinstance(value, str) and not self.kind.has(value):
            value = self.parse(value)
        return self.stored_form(value)

    def stored_form(self, value: Any) -> Any:
        """Converts a value to its stored form. Values of a wrong type remain unchanged."""
        is_unset = self.optional and (value == "" or (value == 0 and self.unset == 0))
        return None if is_unset else self.kind.stored(value)

    def check(self, value: Any) -> None:
        """Checks the type, choices and range of a normalised value. If the value is invalid, raises
        FlagError with the valid values.
        """
        if value is None and self.optional:
            return
        if not self.kind.has(value):
            raise FlagError(self.name, self.text(value), f"must be {self.kind.wording}")
        if reason := self.kind.fault(value) or self.fault(value):
            raise FlagError(self.name, self.text(value), reason)
        paths = value if isinstance(value, tuple) else (value,)
        for path in paths:
            if self.path and path:
                with raising_flag_errors(self.name, path, "used"):
                    keep_temporary_folders(path)

    def text(self, value: Any) -> str:
        """Formats a value as on the command line. None is the value that means None (`unset`), or
        "".
        """
        if value is None:
            return str("" if self.unset is None else self.unset)
        value = self.kind.stored(value)
        return self.kind.text(value) if self.kind.has(value) else str(value)


def number_flag(
    name: str,
    help: str,
    part: RunPart,
    default: float | None = None,
    *,
    optional: bool = False,
    **bounds: float,
) -> FlagSpec:
    """Creates a flag for a number that is not declared as a field of a dataclass. If the flag is
    optional, it may be unset.
    """
    return FlagSpec(
        name=name,
        kind=numeric_kind(float, **bounds),
        optional=optional,
        default=default,
        help=help,
        part=part,
        **dict[str, Any](bounds),
    )


def redeclare_flag(group: type, name: str, **changes: Any) -> Any:
    """Declares a flag of another dataclass again, with changes to its default, limits or help."""
    (field,) = (field for field in dataclasses.fields(group) if field.name == name)
    default = changes.pop("default", field.default)
    return flag(default, **{**field.metadata[_METADATA], **changes})


def split_comma_separated(text: str) -> tuple[str, ...]:
    """Splits a comma-separated list into its words, without duplicates and empty words."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


@functools.cache
def specs_of(group: type) -> tuple[FlagSpec, ...]:
    """Returns the declarations of all flags in a dataclass, in order, inherited flags first."""
    hints = typing.get_type_hints(group)
    return tuple(_make_spec(field, hints[field.name]) for field in dataclasses.fields(group))


def names_of_flags(
    specs: Iterable[FlagSpec], which: Affects | ComparedBy | RunPart
) -> tuple[str, ...]:
    """Returns the names of the flags that affect `which`, are compared by it, or are used by one of
    these parts of a run, in the order of declaration.
    """
    if isinstance(which, RunPart):
        return tuple(spec.name for spec in specs if spec.part & which)
    return tuple(spec.name for spec in specs if which in (spec.affects, spec.compared_by))


def split_options(options: type[T], values: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Splits flag values into the options of a command, and the values of flags of runs."""
    own = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return (
        options(**{name: value for name, value in values.items() if name in own}),
        {name: value for name, value in values.items() if name not in own},
    )


def flag_texts(values: Mapping[str, Any], specs: Mapping[str, FlagSpec]) -> dict[str, str]:
    """Formats flag values, by name, as they are written on the command line."""
    return {name: specs[name].text(value) for name, value in values.items()}


def flag_sections(group: type, titles: Mapping[str, str]) -> dict[str, tuple[FlagSpec, ...]]:
    """Groups the flags of a dataclass into the sections of the help. `titles` maps the first flag
    of each section to the section's title.
    """
    title, by_section = "", dict.fromkeys(titles.values(), tuple[FlagSpec, ...]())
    for spec in specs_of(group):
        title = titles.get(spec.name, title)
        by_section[title] += (spec,)
    return by_section


def _make_spec(field: dataclasses.Field[Any], annotation: Any) -> FlagSpec:
    limits = field.metadata[_METADATA]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    of = typing.get_args(annotation) if is_union else (annotation,)
    values = [_annotated_kind(argument, limits) for argument in of if argument is not type(None)]
    return FlagSpec(
        name=field.name,
        kind=values[0] if len(values) == 1 else union_kind(*values),
        optional=type(None) in of,
        default=field.default,
        **limits,
    )


def _annotated_kind(annotation: Any, limits: Mapping[str, Any]) -> FlagKind:
    """Returns the `FlagKind` for a type annotation, with the limits of the flag."""
    if typing.get_origin(annotation) is tuple:
        return tuple_kind(
            _annotated_kind(typing.get_args(annotation)[0], limits),
            limits.get("separator", ","),
        )
    if annotation in (int, float):
        bounds = {name: limits[name] for name in BOUNDS if limits.get(name) is not None}
        return numeric_kind(annotation, **bounds)
    if annotation is str:
        return text_kind(*(limits.get(name, "") for name in ("choices", "lower", "path")))
    if annotation is Duration:
        words = "a duration such as 500ms, 10s or 2m"
        kind = parsed_kind(Duration, Duration.parse)
        return replace(kind, name="duration", form="TIME", wording=words, accepted=lambda: words)
    return BOOLEAN if annotation is bool else parsed_kind(annotation, limits["parser"])
