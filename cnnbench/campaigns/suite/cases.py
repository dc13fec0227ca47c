"""The configurations of an entry of a suite: all combinations of the values of its axes."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cnnbench.campaigns.processes.resolved import ResolvedRun, flag_specs_of
from cnnbench.campaigns.suite.keys import FlagNodes, SuiteEntry
from cnnbench.campaigns.suite.nodes import YamlNode
from cnnbench.errors import UsageError

MAX_CONFIGURATIONS = 10_000

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class SweepCase:
    """One configuration of an entry of a suite: the flags with which a process runs.

    Attributes:
      name: name of the entry and the flags that vary, such as "resnet50 num_gpus=2".
      flags: texts of flags by name; the values of a list flag are separated by commas.
      nodes: positions of the flags in the suite file.
      varied: names of the flags that vary.
      resolved, key: set for cases in a plan. Equal configurations in equal environments have equal
        keys.
      repeats: number of processes. If the entry sets none, it depends on the number of cases.
    """

    entry: SuiteEntry
    name: str
    flags: Mapping[str, str]
    nodes: FlagNodes
    varied: tuple[str, ...]
    resolved: ResolvedRun = field(default_factory=ResolvedRun)
    key: str = ""
    repeats: int = 1


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
    made += [_make_sweep_case(entry, (flags,)) for flags in entry.include]
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
    texts = {name: text for name, text in values.items() if text is not None}
    label = " ".join(
        [entry.name, *(f"{name}={_shorten_value(texts.get(name, ''))}" for name in own)]
    )
    return SweepCase(entry=entry, name=label, flags=texts, nodes=nodes, varied=tuple(own))


def _remove_excluded(entry: SuiteEntry, made: list[SweepCase]) -> list[SweepCase]:
    remaining = made
    named = {name for configuration in made for name in configuration.nodes}
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
            or any(configuration.flags.get(name) not in texts for name, texts in values.items())
        ]
        if len(rest) == len(remaining):
            raise rule.error("excludes nothing: no configuration has these flags together")
        remaining = rest
    return remaining


def _flag_text(entry: SuiteEntry, name: str, node: YamlNode) -> str | None:
    """A flag's value in a suite file as text of a command line; None if the flag is not given."""
    if node.kind == "null":
        return None
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
    """Shortens a flag's value for the name of a configuration. Of a path, only the last component
    remains.

    (nccl/xring is not a path.)
    """
    if text.startswith(("/", "./", "../", "~")):
        text = os.path.basename(text.rstrip("/"))
    return " ".join(text.split())
