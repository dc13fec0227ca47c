"""From a suite to the cases to run: every flag checked before the first process starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.processes.commands import Resolved, flag_kinds, resolve
from cnnbench.sweep import identity
from cnnbench.sweep.expansion import Configuration, expand
from cnnbench.sweep.schema import Bound, Search, Suite, unknown_key


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in every entry.

    Attributes:
      flags: texts by name, in place of those of every configuration whose command knows
        the flag.
      repeats, timeout: replace the entries' own unless None.
      search: looks for the largest batch in every configuration.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    repeats: int | None = None
    timeout: float | None = None
    search: bool = False


@dataclass(frozen=True)
class Case:
    """One configuration, ready to run.

    Attributes:
      name: for people; unique in the suite.
      command: sub-command of cnnbench.
      flags: its arguments.
      resolved: what they come to.
      key: equal for equal configurations in equal environments.
      repeats: processes.
      timeout: seconds per process.
      search: how to find the batch size; None to take the flags' own.
    """

    name: str
    command: str
    flags: tuple[str, ...]
    resolved: Resolved
    key: str
    repeats: int
    timeout: float
    bounds: tuple[Bound, ...]
    search: Search | None


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do.

    Attributes:
      suite: name.
      cases: in the order of the file.
      notices: lines worth showing before the first run.
      environment: what of machine and software is part of the cases' keys.
    """

    suite: str
    cases: tuple[Case, ...]
    notices: tuple[str, ...]
    environment: Mapping[str, Any]


def make_plan(suite: Suite, facts: Mapping[str, Any], overrides: Overrides | None = None) -> Plan:
    """Expands all entries and checks every flag of every configuration.

    Args:
      suite: checked.
      facts: about this machine; part of the cases' keys.
      overrides: from the command line.

    Raises:
      UsageError: names file, line, flag and what would be valid.
    """
    overrides = overrides or Overrides()
    environment = identity.environment_identity(facts)
    cases: dict[str, Case] = {}
    notices: list[str] = []
    for entry in suite.entries:
        configurations, unset = expand(entry)
        if unset is not None:
            notices.append(f"{entry.name}: left out, because {unset}")
        for configuration in configurations:
            case = _case(configuration, environment, overrides, notices)
            if case.key in cases:
                raise entry.node.error(
                    f'"{case.name}" runs the same as "{cases[case.key].name}"; '
                    "records of the two could not be told apart"
                )
            cases[case.key] = case
    if not cases:
        raise UsageError(f"{suite.file}: no entry is left to run; {'; '.join(notices)}")
    return Plan(suite.name, tuple(cases.values()), tuple(dict.fromkeys(notices)), environment)


def select(plan: Plan, pattern: str) -> Plan:
    """The plan with only those cases whose name contains a match.

    Args:
      pattern: a regular expression.

    Raises:
      FlagError: it is none, or nothing matches.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise FlagError("filter", pattern, f"is not a regular expression: {error}") from None
    cases = tuple(case for case in plan.cases if expression.search(case.name))
    if not cases:
        names = ", ".join(f'"{case.name}"' for case in plan.cases[:5])
        more = f" and {len(plan.cases) - 5} more" if len(plan.cases) > 5 else ""
        raise FlagError("filter", pattern, f"matches none of {names}{more}")
    return replace(plan, cases=cases)


def _case(
    configuration: Configuration,
    environment: Mapping[str, Any],
    overrides: Overrides,
    notices: list[str],
) -> Case:
    entry = configuration.entry
    _check_names(configuration)
    for name, text in overrides.flags.items():
        if name in configuration.varied:
            reason = f'is what "{entry.name}" varies; choose with --filter'
            raise FlagError(name, text, reason)
    known = flag_kinds(entry.command)
    for_all = {name: text for name, text in overrides.flags.items() if name in known}
    texts = {**configuration.flags, **for_all}
    flags = tuple(f"--{name}={text}" for name, text in texts.items())
    resolved = _resolve(configuration, flags)
    notices += [f"{configuration.name}: {notice}" for notice in resolved.notices]
    search = entry.search
    if overrides.search and search is None and entry.command == "run":
        search = Search()
    if entry.command != "run" and (entry.search is not None or entry.bounds):
        name = "bounds" if entry.bounds else "max_batch_search"
        raise entry.node.error(f"{entry.name}: {name} needs command: run")
    if search is not None and resolved.batch_size > search.limit:
        raise entry.node.error(
            f"{configuration.name}: max_batch_search ends at {search.limit}, below the "
            f"batch size it starts with, {resolved.batch_size}"
        )
    parts = {
        "command": entry.command,
        "config": resolved.identity,
        "search": None if search is None else vars(search),
        "environment": environment,
    }
    return Case(
        name=configuration.name,
        command=entry.command,
        flags=flags,
        resolved=resolved,
        key=identity.key(parts),
        repeats=overrides.repeats or entry.repeats,
        timeout=overrides.timeout or entry.timeout,
        bounds=tuple(entry.bounds.values()),
        search=search,
    )


def _check_names(configuration: Configuration) -> None:
    known = flag_kinds(configuration.entry.command)
    for name, node in configuration.nodes.items():
        if name not in known:
            raise node.error(unknown_key(name, known))


def _resolve(configuration: Configuration, flags: Sequence[str]) -> Resolved:
    """What the flags come to; an error points at the line of the flag it names."""
    entry = configuration.entry
    try:
        return resolve(entry.command, flags)
    except FlagError as error:
        node = configuration.nodes.get(error.flag, entry.node)
        raise node.error(f"{configuration.name}: {error}") from None
    except (UsageError, DataError) as error:
        raise entry.node.error(f"{configuration.name}: {error}") from None
