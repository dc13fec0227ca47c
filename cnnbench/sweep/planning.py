"""From a suite to the cases to run and their order; all flags are checked beforehand."""

from __future__ import annotations

import random
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
    """Settings of the command line that replace those of every entry.

    Attributes:
      flags: texts by name, for every configuration whose command knows the flag.
      repeats, timeout: replace the entries' own unless None.
      search: search for the largest batch size in every configuration.
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
      resolved: the resolved flags.
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
    """The cases of a sweep.

    Attributes:
      suite: name.
      cases: in the order of the file.
      notices: lines to print before the first run.
      environment: facts about machine and software that are part of the cases' keys.
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
                    "their records could not be distinguished"
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


@dataclass(frozen=True)
class Item:
    """One process, or the search for the batch size of a case.

    Attributes:
      case: of the plan.
      repeat: counted from 1; 0 for the search for its batch size.
    """

    case: Case
    repeat: int

    @property
    def label(self) -> str:
        """Shown in progress lines."""
        if self.repeat == 0:
            return f"{self.case.name}: largest batch"
        if self.case.repeats == 1:
            return self.case.name
        return f"{self.case.name} #{self.repeat}"


def ordered(cases: Sequence[Case], seed: int) -> tuple[Item, ...]:
    """Searches first, then round r of all cases before round r + 1, each shuffled.

    Args:
      cases: to run.
      seed: the same seed gives the same order of the same cases.
    """
    generator = random.Random(seed)
    rounds = max((case.repeats for case in cases), default=0)
    items = []
    for repeat in range(rounds + 1):
        due = [
            Item(case, repeat)
            for case in cases
            if (repeat and repeat <= case.repeats) or (not repeat and case.search is not None)
        ]
        generator.shuffle(due)
        items += due
    return tuple(items)


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
    """The resolved flags; an error names the line of the flag it is about."""
    entry = configuration.entry
    try:
        return resolve(entry.command, flags)
    except FlagError as error:
        node = configuration.nodes.get(error.flag, entry.node)
        raise node.error(f"{configuration.name}: {error}") from None
    except (UsageError, DataError) as error:
        raise entry.node.error(f"{configuration.name}: {error}") from None
