"""What a suite may say, and the check of what it says.

Defaults are merged into the entries here, so that everything behind sees entries only.
Values of flags are checked later, by the flags' own declarations (see planning.py).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cnnbench.metrics.registry import BOUNDS
from cnnbench.sweep.document import Node

COMMANDS = ("run", "allreduce")
DEFAULT_TIMEOUT = 3600.0
MAX_REPEATS = 1000

_SUITE_KEYS = ("name", "description", "defaults", "entries")
_DEFAULT_KEYS = ("command", "flags", "repeats", "timeout", "bounds", "max_batch_search")
_ENTRY_KEYS = ("name", *_DEFAULT_KEYS, "matrix", "include", "exclude", "optional")
_SEARCH_KEYS = ("limit", "multiple_of", "num_batches")
_BOUND_KEYS = ("min", "max")

_NAME = re.compile(r"[\w][\w.+-]*")


@dataclass(frozen=True)
class Bound:
    """What a metric of a configuration must be, and the line that says so."""

    metric: str
    minimum: float | None
    maximum: float | None
    line: int


@dataclass(frozen=True)
class Search:
    """How the largest batch size per device is looked for.

    Attributes:
      limit: largest to try.
      multiple_of: only multiples of this are tried.
      num_batches: steps of a trial, after one warm-up step.
    """

    limit: int = 65536
    multiple_of: int = 1
    num_batches: int = 10


FlagNodes = Mapping[str, Node]
"""Flags by name: a scalar, a list (of a list flag), or null for "not given"."""


@dataclass(frozen=True)
class Entry:
    """One entry of a suite, defaults merged in.

    Attributes:
      node: where it stands.
      flags: of every configuration of the entry.
      axes: of the matrix; every item of an axis is a set of flags.
      include: sets of flags that make a configuration each, beside the matrix.
      exclude: flags and the texts (one or several) that a configuration must not have together.
      repeats: processes per configuration.
      timeout: seconds that a process may take.
      optional: skipped when its flags name environment variables that are not set.
    """

    name: str
    node: Node
    command: str = "run"
    flags: FlagNodes = field(default_factory=dict)
    axes: tuple[tuple[FlagNodes, ...], ...] = ()
    include: tuple[FlagNodes, ...] = ()
    exclude: tuple[Node, ...] = ()
    repeats: int = 1
    timeout: float = DEFAULT_TIMEOUT
    bounds: tuple[Bound, ...] = ()
    search: Search | None = None
    optional: bool = False


@dataclass(frozen=True)
class Suite:
    """A checked suite."""

    name: str
    description: str
    file: str
    entries: tuple[Entry, ...]


def check(root: Node) -> Suite:
    """The suite in a document.

    Raises:
      UsageError: names file and line, and the nearest word that is known.
    """
    keys = _mapping(root, "a suite", _SUITE_KEYS)
    name = _name(keys["name"]) if "name" in keys else Path(root.file).stem
    description = _string(keys["description"]) if "description" in keys else ""
    base = Entry(name="", node=root)
    if "defaults" in keys:
        base = _settings(base, _mapping(keys["defaults"], "defaults", _DEFAULT_KEYS))
    if "entries" not in keys:
        raise root.error('a suite needs "entries", a list')
    nodes = _list(keys["entries"], "entries")
    if not nodes:
        raise keys["entries"].error("entries: there must be one at least")
    entries: dict[str, Entry] = {}
    for node in nodes:
        entry = _entry(base, node)
        if entry.name in entries:
            raise node.error(
                f'a second entry "{entry.name}"; the first is in line '
                f"{entries[entry.name].node.line}"
            )
        entries[entry.name] = entry
    return Suite(name, description, root.file, tuple(entries.values()))


def _entry(base: Entry, node: Node) -> Entry:
    keys = _mapping(node, "an entry", _ENTRY_KEYS)
    if "name" not in keys:
        raise node.error('an entry needs a "name"')
    entry = replace(_settings(base, keys), name=_name(keys["name"]), node=node)
    changes: dict[str, object] = {}
    if "matrix" in keys:
        changes["axes"] = _axes(keys["matrix"])
    if "include" in keys:
        items = _list(keys["include"], "include")
        changes["include"] = tuple(_flags(item, "an item of include") for item in items)
    if "exclude" in keys:
        changes["exclude"] = _list(keys["exclude"], "exclude")
        for item in _list(keys["exclude"], "exclude"):
            if not _mapping(item, "an item of exclude", None):
                raise item.error("an item of exclude must name a flag")
    if "optional" in keys:
        changes["optional"] = _boolean(keys["optional"], "optional")
    return replace(entry, **changes)  # type: ignore[arg-type]


def _settings(base: Entry, keys: Mapping[str, Node]) -> Entry:
    """The entry with the settings that defaults and entries share."""
    changes: dict[str, object] = {}
    if "command" in keys:
        changes["command"] = _choice(keys["command"], "command", COMMANDS)
        if changes["command"] != base.command:
            # Flags, metrics and searches of one command mean nothing to another.
            base = replace(base, flags={}, bounds=(), search=None)
    if "flags" in keys:
        changes["flags"] = {**base.flags, **_flags(keys["flags"], "flags")}
    if "repeats" in keys:
        changes["repeats"] = _integer(keys["repeats"], "repeats", 1, MAX_REPEATS)
    if "timeout" in keys:
        changes["timeout"] = _positive(keys["timeout"], "timeout")
    if "bounds" in keys:
        # A bound of the entry replaces the default of the same metric; the others stay.
        merged = {bound.metric: bound for bound in base.bounds}
        merged.update({bound.metric: bound for bound in _bounds(keys["bounds"])})
        changes["bounds"] = tuple(merged.values())
    if "max_batch_search" in keys:
        changes["search"] = _search(keys["max_batch_search"])
    return replace(base, **changes)  # type: ignore[arg-type]


def _axes(node: Node) -> tuple[tuple[FlagNodes, ...], ...]:
    axes = []
    owners: dict[str, tuple[str, int]] = {}
    for axis, values in _mapping(node, "matrix", None).items():
        sets = _axis(axis, values)
        for name, value in ((name, flags[name]) for flags in sets for name in flags):
            owner, line = owners.setdefault(name, (axis, value.line))
            if owner != axis:
                raise value.error(
                    f"matrix.{axis}: sets {name}, which matrix.{owner} sets in line {line}; "
                    "one of them would have no effect"
                )
        axes.append(sets)
    return tuple(axes)


def _axis(name: str, node: Node) -> tuple[FlagNodes, ...]:
    items = _list(node, f"matrix.{name}")
    if not items:
        raise node.error(f"matrix.{name}: there must be one value at least")
    if all(item.kind == "mapping" for item in items):
        return tuple(_flags(item, f"an item of matrix.{name}") for item in items)
    for item in items:
        if item.kind == "mapping":
            raise item.error(f"matrix.{name}: values and sets of flags cannot be mixed")
    return tuple({name: item} for item in items)


def _flags(node: Node, what: str) -> FlagNodes:
    keys = _mapping(node, what, None)
    for name, value in keys.items():
        if value.kind == "mapping":
            raise value.error(f"{name}: must be one value, or a list")
        if value.kind == "list" and any(item.kind in ("mapping", "list") for item in value.items):
            raise value.error(f"{name}: a list of lists is no flag")
    return keys


def _bounds(node: Node) -> tuple[Bound, ...]:
    bounds = []
    for metric, limits in _mapping(node, "bounds", BOUNDS).items():
        keys = _mapping(limits, f"bounds.{metric}", _BOUND_KEYS)
        minimum = _number(keys["min"], f"{metric}.min") if "min" in keys else None
        maximum = _number(keys["max"], f"{metric}.max") if "max" in keys else None
        if minimum is None and maximum is None:
            raise limits.error(f"bounds.{metric}: needs min, max or both")
        if minimum is not None and maximum is not None and minimum > maximum:
            raise limits.error(f"bounds.{metric}: min {minimum:g} is above max {maximum:g}")
        bounds.append(Bound(metric, minimum, maximum, limits.line))
    return tuple(bounds)


def _search(node: Node) -> Search | None:
    if node.kind != "mapping":
        return Search() if _boolean(node, "max_batch_search") else None
    keys = _mapping(node, "max_batch_search", _SEARCH_KEYS)
    values = {key: _integer(keys[key], key, 1, 2**31 - 1) for key in _SEARCH_KEYS if key in keys}
    search = Search(**values)
    if search.limit < search.multiple_of:
        raise node.error(
            f"max_batch_search: limit {search.limit} is below multiple_of {search.multiple_of}"
        )
    return search


def _mapping(node: Node, what: str, known: Iterable[str] | None) -> dict[str, Node]:
    """The fields of a mapping; only the known ones unless known is None."""
    if node.kind != "mapping":
        raise node.error(f"{what} must be a mapping (key: value), not {_article(node)}")
    if known is not None:
        names = tuple(known)
        for key, line, _ in node.fields:
            if key not in names:
                raise node.error(unknown_key(key, names), line)
    return {key: value for key, _, value in node.fields}


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that is not among the known ones."""
    names = tuple(known)
    close = difflib.get_close_matches(key, names, n=1)
    if close:
        return f'unknown key "{key}"; did you mean "{close[0]}"?'
    few = f"; there are {', '.join(names)}" if len(names) <= 20 else ""
    return f'unknown key "{key}"{few}'


def _list(node: Node, what: str) -> tuple[Node, ...]:
    if node.kind != "list":
        raise node.error(f"{what} must be a list, not {_article(node)}")
    return node.items


def _string(node: Node) -> str:
    if node.kind in ("mapping", "list"):
        raise node.error(f"must be text, not {_article(node)}")
    return " ".join(node.text.split())


def _name(node: Node) -> str:
    text = _string(node)
    if not _NAME.fullmatch(text):
        raise node.error(f"name {text!r}: must be letters, digits and any of . _ + -")
    return text


def _choice(node: Node, what: str, choices: tuple[str, ...]) -> str:
    text = _string(node)
    if text not in choices:
        raise node.error(f"{what} {text!r}: must be one of {', '.join(choices)}")
    return text


def _boolean(node: Node, what: str) -> bool:
    if node.kind != "boolean":
        raise node.error(f"{what} must be true or false, not {_article(node)}")
    return node.is_true


def _integer(node: Node, what: str, minimum: int, maximum: int) -> int:
    value = _parsed(node, what, int, "a whole number")
    if not minimum <= value <= maximum:
        raise node.error(f"{what}: {value} must be from {minimum} to {maximum}")
    return int(value)


def _number(node: Node, what: str) -> float:
    value = _parsed(node, what, float, "a number")
    if not math.isfinite(value):
        raise node.error(f"{what}: must be a finite number")
    return value


def _positive(node: Node, what: str) -> float:
    value = _number(node, what)
    if value <= 0:
        raise node.error(f"{what}: {value:g} must be greater than 0 (seconds)")
    return value


def _parsed(node: Node, what: str, parse: Callable[[str], float], kind: str) -> float:
    if node.kind in ("mapping", "list", "boolean", "null"):
        raise node.error(f"{what} must be {kind}, not {_article(node)}")
    try:
        return parse(node.text)
    except ValueError:
        raise node.error(f"{what} must be {kind}, not {node.text!r}") from None


def _article(node: Node) -> str:
    return {
        "mapping": "a mapping",
        "list": "a list",
        "boolean": "true" if node.is_true else "false",
        "null": "nothing",
    }.get(node.kind, repr(node.text))
