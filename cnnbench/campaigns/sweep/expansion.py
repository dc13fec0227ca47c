"""Expansion of an entry of a suite to sets of flags: matrix, exclusions, inclusions, variables."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cnnbench.campaigns.processes.commands import flag_kinds
from cnnbench.campaigns.sweep.document import Node
from cnnbench.campaigns.sweep.schema import FlagNodes, SuiteEntry

MAX_CONFIGURATIONS = 10_000

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class FlagSet:
    """One set of flags: texts by name, a list flag's with commas, and their places in the file.

    It is named by the entry and the flags that vary: "resnet50 num_gpus=2 precision=bf16".
    """

    entry: SuiteEntry
    name: str
    flags: Mapping[str, str]
    nodes: FlagNodes
    varied: tuple[str, ...]


class _MissingVariable(Exception):
    """A flag names an environment variable without a value."""

    def __init__(self, node: Node, name: str, lack: str) -> None:
        super().__init__(f"{name} {lack}")
        self.node = node
        self.name = name


def expand(entry: SuiteEntry) -> tuple[tuple[FlagSet, ...], str | None]:
    """The configurations of an entry: the matrix in order, less exclusions, then inclusions.

    Also the missing variable of an optional entry, as in "DATA is not set". UsageError for an
    exclusion that excludes nothing, equal or far too many configurations, or a missing variable.
    """
    try:
        return _expand(entry), None
    except _MissingVariable as missing:
        if entry.optional:
            return (), str(missing)
        raise missing.node.error(
            f"${{{missing.name}}}: the environment variable {missing}"
        ) from None


def _expand(entry: SuiteEntry) -> tuple[FlagSet, ...]:
    count = math.prod(len(axis) for axis in entry.axes) + len(entry.include)
    if count > MAX_CONFIGURATIONS:
        raise entry.node.error(
            f"{entry.name}: its matrix has {count} configurations; {MAX_CONFIGURATIONS} is the most"
        )
    only_included = bool(entry.include) and not entry.axes
    products = [] if only_included else list(itertools.product(*entry.axes))
    made = _exclude(entry, [_configuration(entry, sets) for sets in products])
    made += [_configuration(entry, (flags,)) for flags in entry.include]
    seen: dict[str, FlagSet] = {}
    for configuration in made:
        if configuration.name in seen:
            line = max(node.line for node in (entry.node, *configuration.nodes.values()))
            raise entry.node.error(f"{configuration.name}: is there twice", line)
        seen[configuration.name] = configuration
    if not made:
        raise entry.node.error(f"{entry.name}: everything is excluded")
    return tuple(made)


def _configuration(entry: SuiteEntry, sets: tuple[FlagNodes, ...]) -> FlagSet:
    own = {name: node for flags in sets for name, node in flags.items()}
    nodes = {**entry.flags, **own}
    values = {name: _value(entry, name, node) for name, node in nodes.items()}
    texts = {name: text for name, text in values.items() if text is not None}
    label = " ".join([entry.name, *(f"{name}={_short(texts.get(name, ''))}" for name in own)])
    return FlagSet(entry, label, texts, nodes, tuple(own))


def _exclude(entry: SuiteEntry, made: list[FlagSet]) -> list[FlagSet]:
    kept = made
    named = {name for configuration in made for name in configuration.nodes}
    for rule in entry.exclude:
        values = {
            name: [_value(entry, name, item) for item in node.items or (node,)]
            for name, _, node in rule.fields
        }
        # Null means "not given", but a flag that no configuration has is a typing error.
        rest = [
            one
            for one in kept
            if not values.keys() <= named
            or any(one.flags.get(name) not in texts for name, texts in values.items())
        ]
        if len(rest) == len(kept):
            raise rule.error("excludes nothing: no configuration has these flags together")
        kept = rest
    return kept


def _value(entry: SuiteEntry, name: str, node: Node) -> str | None:
    """The value of a flag as on a command line; None if it is not given."""
    if node.kind == "null":
        return None
    if node.kind == "list":
        return ",".join("".join(_substituted(item)) for item in node.items)
    # Of a switch every spelling of YAML's will do; of other flags "on" and "no" are values.
    if node.kind == "boolean" and flag_kinds(entry.command).get(name) == "boolean":
        return "true" if node.is_true else "false"
    return "".join(_substituted(node))


def _substituted(node: Node) -> Iterator[str]:
    end = 0
    for match in _VARIABLE.finditer(node.text):
        yield node.text[end : match.start()]
        end = match.end()
        name, otherwise = match.groups()
        value = os.environ.get(name) or otherwise
        if value is None:
            raise _MissingVariable(node, name, "is empty" if name in os.environ else "is not set")
        yield value
    yield node.text[end:]


def _short(text: str) -> str:
    """A value for use in a name: the last part of a path. (nccl/xring is no path.)"""
    if text.startswith(("/", "./", "../", "~")):
        text = os.path.basename(text.rstrip("/"))
    return " ".join(text.split())
