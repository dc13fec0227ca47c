"""The entries of suite files: their keys, and the configurations that they describe.

Each key is a field of a dataclass, which declares how the key is read. `parse_suite` checks the
keys, and merges the defaults into the entries. `expand_entry` combines the values of an entry's
axes. `cnnbench.campaigns.sweep.plan` checks the values of flags.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.base.text import exact_number, unknown_key_message
from cnnbench.base.values import parse_integer, parse_number
from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes import ResolvedRun, flag_specs_of
from cnnbench.campaigns.suite.nodes import YamlNode
from cnnbench.errors import UsageError
from cnnbench.records.metric import BOUNDS, load_missing_metrics

COMMANDS = ("run", "allreduce")
DEFAULT_TIMEOUT = 3600.0
MAX_REPEATS = 1000
AUTO = "auto"
"""The value of repeats that means as many as a verdict needs."""

MAX_PROCESSES = 256
MAX_CONFIGURATIONS = 10_000

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_NAME = re.compile(r"[\w][\w.+-]*")

Reader = Callable[[YamlNode, str], Any]
"""A function that converts the value of a key. Its second argument is the name of the key for
messages. It raises UsageError.
"""

FlagNodes = Mapping[str, YamlNode]
"""Flags by name. A value is a scalar, a list (for a list flag), or null for "not given".

Where flags vary, the keys of `launch` may be among them.
"""

Limits = tuple[float | None, float | None]
"""Minimum and maximum of a metric; None for no limit."""


def _scalar_reader(
    kind: str,
    parse: Callable[[str], Any],
    valid: Callable[[Any], object] = lambda value: True,
    limits: str = "",
    kinds: tuple[str, ...] = ("integer", "number", "string"),
) -> Reader:
    """Returns a function that reads a scalar in a suite file, and checks its YAML type and value.

    `kinds` are the allowed types. The function calls `parse` and `valid`. `kind` and `limits` are
    words for error messages.
    """

    def read(node: YamlNode, what: str) -> Any:
        try:
            value = parse(node.text) if node.kind in kinds else None
        except ValueError:
            value = None
        if value is None:
            raise node.error(f"{what} must be {kind}, not {node.shown}")
        if not valid(value):
            raise node.error(f"{what}: {node.text!r} must be {limits}")
        return value

    return read


def _number_reader(most: int) -> Reader:
    return _scalar_reader(
        "a whole number", parse_integer, lambda n: 1 <= n <= most, f"from 1 to {most}"
    )


def _text_reader(valid: Callable[[str], object] = lambda text: True, limits: str = "") -> Reader:
    kinds = ("string", "integer", "number", "boolean", "null")
    return _scalar_reader("text", lambda text: " ".join(text.split()), valid, limits, kinds)


def _read_repeats(node: YamlNode, what: str) -> int | None:
    if node.kind == "string" and node.text == AUTO:
        return None
    kind = f"a whole number or {AUTO}"
    limits = f"from 1 to {MAX_REPEATS}, or {AUTO}"
    read = _scalar_reader(kind, parse_integer, lambda n: 1 <= n <= MAX_REPEATS, limits)
    return int(read(node, what))


_number = _scalar_reader("a finite number", parse_number)
_seconds = _scalar_reader(
    "a finite number", parse_number, lambda s: s > 0, "greater than 0 (seconds)"
)
_text = _text_reader()
_name = _text_reader(_NAME.fullmatch, "letters, digits and any of . _ + -")
_command = _text_reader(COMMANDS.__contains__, f"one of {', '.join(COMMANDS)}")


def _read_boolean(node: YamlNode, what: str) -> bool:
    if node.kind != "boolean":
        raise node.error(f"{what} must be true or false, not {node.shown}")
    return node.is_true


def _read_list(node: YamlNode, what: str, least: int = 0) -> tuple[YamlNode, ...]:
    if node.kind != "list":
        raise node.error(f"{what} must be a list, not {node.shown}")
    if len(node.items) < least:
        raise node.error(f"{what}: at least one item is needed")
    return node.items


def _read_mapping(
    node: YamlNode, what: str, known: Iterable[str] | None = None
) -> dict[str, YamlNode]:
    """Reads the values of a mapping by key. Raises UsageError for keys that are not in `known`."""
    if node.kind != "mapping":
        raise node.error(f"{what} must be a mapping (key: value), not {node.shown}")
    names = None if known is None else tuple(known)
    for key, line, _ in node.fields:
        if names is not None and key not in names:
            raise node.error(unknown_key_message(key, names), line)
    return {key: value for key, _, value in node.fields}


def _read_flags(node: YamlNode, what: str) -> FlagNodes:
    flags = _read_mapping(node, what)
    for name, value in flags.items():
        if value.kind == "mapping":
            raise value.error(f"{name}: must be one value, or a list")
        if value.kind == "list" and any(item.kind in ("mapping", "list") for item in value.items):
            raise value.error(f"{name}: items of a list flag must be single values")
    return flags


def _read_includes(node: YamlNode, what: str) -> tuple[FlagNodes, ...]:
    return tuple(_read_flags(item, f"an item of {what}") for item in _read_list(node, what))


def _read_excludes(node: YamlNode, what: str) -> tuple[YamlNode, ...]:
    for item in _read_list(node, what):
        if not _read_mapping(item, f"an item of {what}"):
            raise item.error(f"an item of {what} must name a flag")
    return node.items


def _read_axes(node: YamlNode, what: str) -> tuple[tuple[FlagNodes, ...], ...]:
    axes = []
    owners: dict[str, tuple[str, int]] = {}
    for axis, values in _read_mapping(node, what).items():
        sets = _read_axis(axis, values, f"{what}.{axis}")
        for name, value in ((name, flags[name]) for flags in sets for name in flags):
            owner, line = owners.setdefault(name, (axis, value.line))
            if owner != axis:
                raise value.error(
                    f"{what}.{axis}: sets {name}, which {what}.{owner} sets in line {line}; "
                    "one of the two values would have no effect"
                )
        axes.append(sets)
    return tuple(axes)


def _read_axis(name: str, node: YamlNode, what: str) -> tuple[FlagNodes, ...]:
    items = _read_list(node, what, least=1)
    sets = [item for item in items if item.kind == "mapping"]
    if not sets:
        return tuple({name: item} for item in items)
    if len(sets) < len(items):
        raise sets[0].error(f"{what}: values and mappings of flags cannot be mixed")
    return _read_includes(node, what)


LAUNCH: Mapping[str, Reader] = {
    "workers": _number_reader(MAX_PROCESSES),
    "ps": _number_reader(MAX_PROCESSES),
    "controller": _read_boolean,
}
"""The keys of `launch` in suite files, which are fields of `JobLayout`."""


def _read_bounds(node: YamlNode, what: str) -> dict[str, Limits]:
    bounds: dict[str, Limits] = {}
    load_missing_metrics(_read_mapping(node, what), BOUNDS)
    for metric, limits in _read_mapping(node, what, BOUNDS).items():
        of = f"{what}.{metric}"
        ends = _read_mapping(limits, of, ("min", "max"))
        low, high = (_number(ends[key], key) if key in ends else None for key in ("min", "max"))
        if low is None and high is None:
            raise limits.error(f"{of}: needs min, max or both")
        if low is not None and high is not None and low > high:
            raise limits.error(f"{of}: min {exact_number(low)} is above max {exact_number(high)}")
        bounds[metric] = low, high
    return bounds


def _read_launch(node: YamlNode, what: str) -> JobLayout:
    return _vary_layout(JobLayout(), _read_mapping(node, what, LAUNCH), node, what)


def _vary_layout(layout: JobLayout, nodes: FlagNodes, node: YamlNode, what: str) -> JobLayout:
    """A copy of a job's layout with the values in `nodes`, of keys of `launch`.

    Raises UsageError for wrong values and, with the line of `node`, for too many processes.
    """
    layout = layout._replace(**{key: LAUNCH[key](value, key) for key, value in nodes.items()})
    if layout.workers + layout.ps > MAX_PROCESSES:
        raise node.error(f"{what}: more than {MAX_PROCESSES} processes")
    return layout


def _key_field(read: Reader, default: Any = None, name: str = "") -> Any:
    """Declares that a dataclass field is a key in suite files. `name` is the key, if the key
    differs from the name of the field.
    """
    return field(default=default, metadata={"read": read, "name": name})


@dataclass(frozen=True, kw_only=True)
class CpuVariant:
    """Additional flags and a filter with which a suite for GPUs can run on CPUs."""

    flags: FlagNodes = _key_field(_read_flags)  # noqa: RUF009
    filter: str = _key_field(_text, "")


@dataclass(frozen=True, kw_only=True)
class EntrySettings:
    """Settings that the defaults and the entries of a suite file have in common.

    `timeout` is in seconds per process. `repeats` is None for as many processes as a verdict needs.
    `launch` is None for a run in one process.
    """

    command: str = _key_field(_command, "run")
    flags: FlagNodes = _key_field(_read_flags)  # noqa: RUF009
    repeats: int | None = _key_field(_read_repeats)
    timeout: float = _key_field(_seconds, DEFAULT_TIMEOUT)
    launch: JobLayout | None = _key_field(_read_launch)  # noqa: RUF009
    bounds: Mapping[str, Limits] = _key_field(_read_bounds)


@dataclass(frozen=True, kw_only=True)
class SuiteEntry(EntrySettings):
    """One entry of a suite, with the suite's defaults for the settings that the entry omits.

    Each item on an axis of the matrix is a set of flags, and so is each item of `include`; the keys
    of `launch` are flags here. An item of `exclude` is a set of flags, each with one or several
    values; configurations with this combination are removed. An optional entry is skipped if its
    flags contain environment variables that are not set. The configurations of an entry with
    `alternatives` are ways to do the same work: those that are refused are left out, and the
    summary compares their speeds.
    """

    node: YamlNode
    name: str = _key_field(_name, "")
    axes: tuple[tuple[FlagNodes, ...], ...] = _key_field(_read_axes, (), "matrix")
    include: tuple[FlagNodes, ...] = _key_field(_read_includes, ())
    exclude: tuple[YamlNode, ...] = _key_field(_read_excludes, ())
    optional: bool = _key_field(_read_boolean, False)
    alternatives: bool = _key_field(_read_boolean, False)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The checked content of a suite file. `on_cpu` is only set if the suite is meant for GPUs."""

    file: str
    name: str = _key_field(_name)
    description: str = _key_field(_text, "")
    on_cpu: CpuVariant | None = _key_field(  # noqa: RUF009
        lambda node, what: CpuVariant(**_read_fields(CpuVariant, node, what))
    )
    defaults: Mapping[str, Any] = _key_field(
        lambda node, what: _read_fields(EntrySettings, node, what)
    )
    entries: tuple[SuiteEntry, ...] = _key_field(partial(_read_list, least=1))

    def with_settings(self, repeats: int | None, timeout: float | None) -> Suite:
        """Returns a copy of the suite with these settings in all entries. A setting that is None
        remains unchanged.
        """
        entries = (
            replace(entry, repeats=repeats or entry.repeats, timeout=timeout or entry.timeout)
            for entry in self.entries
        )
        return replace(self, entries=tuple(entries))


def parse_suite(root: YamlNode) -> Suite:
    """Checks the YAML document of a suite file, and returns the suite.

    Raises UsageError with file, line, key and the valid values.
    """
    values = {"name": Path(root.file).stem, "defaults": {}, **_read_fields(Suite, root, "a suite")}
    if "entries" not in values:
        raise root.error('a suite needs the key "entries", a list')
    entries: dict[str, SuiteEntry] = {}
    for node in values.pop("entries"):
        entry = _read_entry(values["defaults"], node)
        if entry.name in entries:
            first = entries[entry.name].node.line
            raise node.error(f'duplicate entry "{entry.name}"; the first is in line {first}')
        entries[entry.name] = entry
    return Suite(file=root.file, entries=tuple(entries.values()), **values)


def _read_entry(defaults: Mapping[str, Any], node: YamlNode) -> SuiteEntry:
    values = _read_fields(SuiteEntry, node, "an entry")
    if "name" not in values:
        raise node.error('an entry needs the key "name"')
    base = dict(defaults)
    if values.get("command", base.get("command", "run")) != base.get("command", "run"):
        # Flags and bounds are specific to a command: another command has no defaults.
        for name in ("flags", "bounds", "launch"):
            base.pop(name, None)
    for name in ("flags", "bounds"):
        # Flags and bounds are merged by name: if an entry omits a name, the default is used.
        values[name] = {**base.get(name, {}), **values.get(name, {})}
    return SuiteEntry(node=node, **{**base, **values})


def _read_fields(declared: type, node: YamlNode, what: str) -> dict[str, Any]:
    """Reads a mapping of a suite file. The fields of the dataclass `declared` are its keys."""
    by_key = declared_keys(declared)
    return {
        by_key[key].name: by_key[key].metadata["read"](value, key)
        for key, value in _read_mapping(node, what, by_key).items()
    }


def declared_keys(declared: type) -> dict[str, Field[Any]]:
    """Maps the keys of suite files to the dataclass fields that declare the keys (see
    `_key_field`).
    """
    return {f.metadata["name"] or f.name: f for f in fields(declared) if f.metadata}


@dataclass(frozen=True, kw_only=True)
class SweepCase:
    """One configuration of an entry of a suite: the flags with which a process runs.

    Attributes:
      name: name of the entry and the flags that vary, such as "resnet50 num_gpus=2".
      flags: texts of flags by name; the values of a list flag are separated by commas.
      nodes: positions of the flags in the suite file.
      varied: names of the flags that vary, which may be keys of `launch`.
      included: whether the configuration is an item of `include`, whose flags have priority over
        flags for all runs.
      launch: the processes of the run's job; None for a run in one process.
      resolved, key: set for cases in a plan. Equal configurations in equal environments have equal
        keys.
      repeats: number of processes. If the entry sets none, it depends on the number of cases.
    """

    entry: SuiteEntry
    name: str
    flags: Mapping[str, str]
    nodes: FlagNodes
    varied: tuple[str, ...]
    included: bool = False
    launch: JobLayout | None = None
    resolved: ResolvedRun = field(default_factory=ResolvedRun)
    key: str = ""
    repeats: int = 1

    @property
    def settings(self) -> dict[str, str]:
        """Texts of the given flags and keys of `launch`, by name."""
        layout = {} if self.launch is None else self.launch._asdict()
        given = {name: value for name, value in layout.items() if value or value is False}
        return {**self.flags, **{name: str(value).lower() for name, value in given.items()}}


class _MissingVariable(UsageError):
    """A flag in a suite file contains an environment variable that is not set.

    `lack` is the message without file and line.
    """

    def __init__(self, node: YamlNode, name: str, state: str) -> None:
        self.lack = f"{name} is {state}"
        super().__init__(str(node.error(f"${{{name}}}: the environment variable {self.lack}")))


def expand_entry(entry: SuiteEntry) -> tuple[tuple[SweepCase, ...], str | None]:
    """Expands a suite's entry to configurations: all combinations of the matrix except the excluded
    ones, then the included ones.

    Also returns why an optional entry is skipped, such as "DATA is not set", or None. Raises
    UsageError for an exclusion without effect, equal configurations, far too many configurations,
    or a missing variable.
    """
    try:
        return _expand_matrix(entry), None
    except _MissingVariable as missing:
        if entry.optional:
            return (), missing.lack
        raise


def _expand_matrix(entry: SuiteEntry) -> tuple[SweepCase, ...]:
    count = math.prod(len(axis) for axis in entry.axes) + len(entry.include)
    if count > MAX_CONFIGURATIONS:
        raise entry.node.error(
            f"{entry.name}: its matrix has {count} configurations, more than {MAX_CONFIGURATIONS}"
        )
    only_included = bool(entry.include) and not entry.axes
    products = [] if only_included else list(itertools.product(*entry.axes))
    made = _remove_excluded(entry, [_make_sweep_case(entry, sets) for sets in products])
    made += [replace(_make_sweep_case(entry, (flags,)), included=True) for flags in entry.include]
    seen: dict[str, SweepCase] = {}
    for configuration in made:
        if configuration.name in seen:
            line = max(node.line for node in (entry.node, *configuration.nodes.values()))
            raise entry.node.error(f"{configuration.name}: is a duplicate", line)
        seen[configuration.name] = configuration
    if not made:
        raise entry.node.error(f"{entry.name}: everything is excluded")
    return tuple(made)


def _make_sweep_case(entry: SuiteEntry, flag_groups: tuple[FlagNodes, ...]) -> SweepCase:
    own = {name: node for flags in flag_groups for name, node in flags.items()}
    nodes = {**entry.flags, **own}
    values = {name: _flag_text(entry, name, node) for name, node in nodes.items()}
    label = " ".join(
        [entry.name, *(f"{name}={_shorten_value(values[name] or '')}" for name in own)]
    )
    layout = {name: node for name, node in own.items() if name in LAUNCH}
    launch = entry.launch
    if layout:
        launch = _vary_layout(launch or JobLayout(), layout, entry.node, label)
    return SweepCase(
        entry=entry,
        name=label,
        flags={
            name: text for name, text in values.items() if text is not None and name not in layout
        },
        nodes=nodes,
        varied=tuple(own),
        launch=launch,
    )


def _remove_excluded(entry: SuiteEntry, made: list[SweepCase]) -> list[SweepCase]:
    remaining = made
    named = {name for configuration in made for name in configuration.nodes} | LAUNCH.keys()
    for rule in entry.exclude:
        values = {
            name: [_flag_text(entry, name, item) for item in node.items or (node,)]
            for name, _, node in rule.fields
        }
        # If no configuration contains a flag, the flag is probably misspelled and excludes nothing.
        rest = [
            configuration
            for configuration in remaining
            if not values.keys() <= named
            or any(configuration.settings.get(name) not in texts for name, texts in values.items())
        ]
        if len(rest) == len(remaining):
            raise rule.error("excludes nothing: no configuration has these flags together")
        remaining = rest
    return remaining


def _flag_text(entry: SuiteEntry, name: str, node: YamlNode) -> str | None:
    """A flag's value in a suite file as text of a command line; None if the flag is not given."""
    if node.kind == "null":
        return None
    if name in LAUNCH:
        return str(LAUNCH[name](node, name)).lower()
    if node.kind == "list":
        return ",".join(map(_with_env_values, node.items))
    # Only a switch is read as a YAML boolean. For other flags, "on" and "no" are ordinary texts.
    spec = flag_specs_of(entry.command).get(name)
    if node.kind == "boolean" and spec is not None and spec.kind.name == "boolean":
        return "true" if node.is_true else "false"
    return _with_env_values(node)


def _with_env_values(node: YamlNode) -> str:
    def value(match: re.Match[str]) -> str:
        name, otherwise = match.groups()
        found = os.environ.get(name) or otherwise
        if found is None:
            raise _MissingVariable(node, name, "empty" if name in os.environ else "not set")
        return str(found)

    return _VARIABLE.sub(value, node.text)


def _shorten_value(text: str) -> str:
    """Shortens a flag's value for the name of a configuration: a path becomes its last component.

    (nccl/xring is not a path.)
    """
    if text.startswith(("/", "./", "../", "~")):
        text = os.path.basename(text.rstrip("/"))
    return " ".join(text.split())
