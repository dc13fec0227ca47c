"""From the entries of a suite to configurations: sets of flags, each with a name."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cnnbench.sweep.document import Node
from cnnbench.sweep.schema import Entry, FlagNodes

MAX_CONFIGURATIONS = 10_000

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Configuration:
    """One set of flags.

    Attributes:
      entry: it comes from.
      name: of the entry, then what tells it from the entry's others, as in
        "resnet50 num_gpus=2 precision=bf16".
      flags: texts by flag name; a list flag's with commas.
      nodes: where each of them is written.
      varied: names of those that the matrix or an inclusion sets.
    """

    entry: Entry
    name: str
    flags: Mapping[str, str]
    nodes: FlagNodes
    varied: tuple[str, ...]


class UnsetVariable(Exception):
    """A flag names an environment variable that is not set."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(name)
        self.node = node
        self.name = name


def expand(
    entry: Entry, environ: Mapping[str, str] | None = None
) -> tuple[tuple[Configuration, ...], str | None]:
    """The configurations of an entry.

    Args:
      entry: of a checked suite.
      environ: for ${NAME} and ${NAME:-otherwise} in values; of this process if None.

    Returns:
      The matrix in order, less what is excluded, then the included ones; and the name of the
      environment variable for want of which an optional entry has none.

    Raises:
      UsageError: an exclusion that excludes nothing, two equal configurations, far too
        many, or an environment variable that is not set.
    """
    variables = os.environ if environ is None else environ
    try:
        found = _expand(entry, variables)
    except UnsetVariable as unset:
        if entry.optional:
            return (), unset.name
        raise unset.node.error(
            f"${{{unset.name}}}: the environment variable {unset.name} is not set"
        ) from None
    return found, None


def _expand(entry: Entry, environ: Mapping[str, str]) -> tuple[Configuration, ...]:
    count = math.prod(len(axis) for axis in entry.axes) + len(entry.include)
    if count > MAX_CONFIGURATIONS:
        raise entry.node.error(
            f"{entry.name}: its matrix has {count} configurations; {MAX_CONFIGURATIONS} is the most"
        )
    only_included = bool(entry.include) and not entry.axes
    products = [] if only_included else list(itertools.product(*entry.axes))
    made = [_configuration(entry, sets, environ) for sets in products]
    made = _exclude(entry, made)
    made += [_configuration(entry, (flags,), environ) for flags in entry.include]
    seen: dict[str, Configuration] = {}
    for configuration in made:
        if configuration.name in seen:
            line = max(node.line for node in (entry.node, *configuration.nodes.values()))
            raise entry.node.error(f"{configuration.name}: is there twice", line)
        seen[configuration.name] = configuration
    if not made:
        raise entry.node.error(f"{entry.name}: everything is excluded")
    return tuple(made)


def _configuration(
    entry: Entry, sets: tuple[FlagNodes, ...], environ: Mapping[str, str]
) -> Configuration:
    nodes = dict(entry.flags)
    own: dict[str, str] = {}
    for flags in sets:
        for name, node in flags.items():
            nodes[name] = node
            own[name] = "" if node.kind == "null" else _text(node, environ)
    texts = {
        name: own[name] if name in own else _text(node, environ)
        for name, node in nodes.items()
        if node.kind != "null"
    }
    label = " ".join([entry.name, *(f"{name}={_short(text)}" for name, text in own.items())])
    return Configuration(entry, label, texts, nodes, tuple(own))


def _exclude(entry: Entry, made: list[Configuration]) -> list[Configuration]:
    kept = made
    for rule in entry.exclude:
        rest = [c for c in kept if not _matches(rule, c)]
        if len(rest) == len(kept):
            raise rule.error("excludes nothing: no configuration has these flags together")
        kept = rest
    return kept


def _matches(rule: Node, configuration: Configuration) -> bool:
    return all(
        configuration.flags.get(name) in tuple(item.text for item in (node.items or (node,)))
        for name, _, node in rule.fields
    )


def _text(node: Node, environ: Mapping[str, str]) -> str:
    """The value as a command line has it."""
    if node.kind == "list":
        return ",".join(_text(item, environ) for item in node.items)
    return "".join(_substituted(node, environ))


def _substituted(node: Node, environ: Mapping[str, str]) -> Iterator[str]:
    end = 0
    for match in _VARIABLE.finditer(node.text):
        yield node.text[end : match.start()]
        end = match.end()
        name, otherwise = match.groups()
        value = environ.get(name) or otherwise
        if value is None:
            raise UnsetVariable(node, name)
        yield value
    yield node.text[end:]


def _short(text: str) -> str:
    """A value in a name: of a path its last part. (nccl/xring is no path.)"""
    if text.startswith(("/", "./", "../", "~")):
        text = os.path.basename(text.rstrip("/"))
    return " ".join(text.split())
