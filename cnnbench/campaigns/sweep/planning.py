"""Plan of a suite: expanded entries, repeats and order; all flags are checked beforehand."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.numbers import first_few
from cnnbench.campaigns.launch.tasks import resolve_run
from cnnbench.campaigns.processes.commands import (
    Resolved,
    digest_key,
    environment_identity,
    flags_of,
    refuse_in_sweep,
    resolve_all_reduce,
    source_digest,
)
from cnnbench.campaigns.processes.question import Question, plan_of
from cnnbench.campaigns.sweep.document import Node
from cnnbench.campaigns.sweep.schema import (
    BatchSizeSearch,
    FlagNodes,
    Suite,
    SuiteEntry,
    unknown_key,
)
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import args_of, values_of
from cnnbench.judge.compare.judgement import processes_to_decide
from cnnbench.records.subject import Subject

MAX_CONFIGURATIONS = 10_000

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class SweepCase:
    """One configuration of an entry, named by it and the flags that vary: "resnet50 num_gpus=2".

    Attributes:
      flags: texts by name, a list flag's with commas.
      nodes: places of the flags in the file.
      varied: names of the flags that vary.
      resolved, key: known for the cases of a plan; keys are equal for equal configurations in equal
        environments.
      repeats: number of processes; where the entry has none, it follows from the number of cases.
    """

    entry: SuiteEntry
    name: str
    flags: Mapping[str, str]
    nodes: FlagNodes
    varied: tuple[str, ...]
    resolved: Resolved = field(default_factory=Resolved)
    key: str = ""
    repeats: int = 1


class _MissingVariable(UsageError):
    """A flag names an environment variable without a value; `lack` omits file and line."""

    def __init__(self, node: Node, name: str, lack: str) -> None:
        self.lack = f"{name} {lack}"
        super().__init__(str(node.error(f"${{{name}}}: the environment variable {self.lack}")))


def expand(entry: SuiteEntry) -> tuple[tuple[SweepCase, ...], str | None]:
    """The configurations of an entry: the matrix in order, less exclusions, then inclusions.

    Also returns the missing variable of an optional entry, as in "DATA is not set". UsageError for
    an exclusion that excludes nothing, equal or far too many configurations, or a missing variable.
    """
    try:
        return _expand(entry), None
    except _MissingVariable as missing:
        if entry.optional:
            return (), missing.lack
        raise


def _expand(entry: SuiteEntry) -> tuple[SweepCase, ...]:
    count = math.prod(len(axis) for axis in entry.axes) + len(entry.include)
    if count > MAX_CONFIGURATIONS:
        raise entry.node.error(
            f"{entry.name}: its matrix has {count} configurations; {MAX_CONFIGURATIONS} is the most"
        )
    only_included = bool(entry.include) and not entry.axes
    products = [] if only_included else list(itertools.product(*entry.axes))
    made = _exclude(entry, [_configuration(entry, sets) for sets in products])
    made += [_configuration(entry, (flags,)) for flags in entry.include]
    seen: dict[str, SweepCase] = {}
    for configuration in made:
        if configuration.name in seen:
            line = max(node.line for node in (entry.node, *configuration.nodes.values()))
            raise entry.node.error(f"{configuration.name}: is there twice", line)
        seen[configuration.name] = configuration
    if not made:
        raise entry.node.error(f"{entry.name}: everything is excluded")
    return tuple(made)


def _configuration(entry: SuiteEntry, sets: tuple[FlagNodes, ...]) -> SweepCase:
    own = {name: node for flags in sets for name, node in flags.items()}
    nodes = {**entry.flags, **own}
    values = {name: _value(entry, name, node) for name, node in nodes.items()}
    texts = {name: text for name, text in values.items() if text is not None}
    label = " ".join([entry.name, *(f"{name}={_short(texts.get(name, ''))}" for name in own)])
    return SweepCase(entry=entry, name=label, flags=texts, nodes=nodes, varied=tuple(own))


def _exclude(entry: SuiteEntry, made: list[SweepCase]) -> list[SweepCase]:
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
    spec = flags_of(entry.command).get(name)
    if node.kind == "boolean" and spec is not None and spec.kind.name == "boolean":
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


@dataclass(frozen=True)
class SweepPlan:
    """The cases of a sweep, in the order of the file, and notices for before the first run."""

    suite: str
    cases: tuple[SweepCase, ...]
    notices: tuple[str, ...]
    subject: Subject = field(default_factory=Subject)


def make_plan(
    suite: Suite,
    facts: Mapping[str, Any],
    for_all: Mapping[str, str] | None = None,
    pattern: str | None = None,
    subject: Subject | None = None,
) -> SweepPlan:
    """Expands all entries and checks all flags; UsageError names file, line and valid values.

    Args:
      facts: about this machine; part of the cases' keys, as is the revision of the subject.
      for_all: texts of flags, by name, that all configurations get whose command has them.
      pattern: a regular expression that the names match; other configurations are not even checked,
        because flags for this machine may not suit them.
    """
    for_all = for_all or {}
    subject = (subject or Subject()).labelled(labels_of(for_all)) or Subject()
    state = {"revision": subject.revision, "changes": subject.changes, "sources": source_digest()}
    known = {name: value for name, value in state.items() if value is not None}
    environment = {**environment_identity(facts), **known}
    configurations: list[SweepCase] = []
    notices: list[str] = []
    for entry in suite.entries:
        expanded, unset = expand(entry)
        if unset is not None:
            notices.append(f"{entry.name}: left out, because {unset}")
        configurations += expanded
    if not configurations:
        raise UsageError(f"{suite.file}: no entry is left to run; {'; '.join(notices)}")
    cases: dict[str, SweepCase] = {}
    for configuration in _chosen(configurations, pattern):
        case = _case(configuration, environment, for_all, notices)
        if case.key in cases:
            raise configuration.entry.node.error(
                f'"{case.name}" runs the same as "{cases[case.key].name}"; '
                "their records could not be distinguished"
            )
        cases[case.key] = case
    listed = tuple(dict.fromkeys(notices))
    return SweepPlan(suite.name, _repeated(cases.values()), listed, subject)


def question_of(plan: SweepPlan, facts: Mapping[str, Any], seed: int) -> Question:
    """The question of a sweep, which may have more configurations and repeats when it goes on."""
    return Question(
        plans={
            one.name: plan_of(one.resolved, search=_facts_of(one.entry.search))
            for one in plan.cases
        },
        facts=facts,
        policy={"name": "rounds", "suite": plan.suite, "seed": seed},
    )


def _chosen(configurations: Sequence[SweepCase], pattern: str | None) -> list[SweepCase]:
    try:
        expression = re.compile(pattern or "")
    except re.error as error:
        raise FlagError("filter", pattern, f"is not a regular expression: {error}") from None
    chosen = [one for one in configurations if expression.search(one.name)]
    if not chosen:
        names = [f'"{one.name}"' for one in configurations]
        raise FlagError("filter", pattern, f"matches none of {first_few(names, 5, ', ')}")
    return chosen


def family(cases: Iterable[SweepCase], command: str) -> int:
    """Number of configurations of a command, which `cnnbench compare` judges together."""
    return sum(case.resolved.rows for case in cases if case.entry.command == command)


def _repeated(cases: Collection[SweepCase]) -> tuple[SweepCase, ...]:
    """The cases with their repeats; automatic ones are the number that verdicts need."""
    commands = {case.entry.command for case in cases}
    needed = {name: processes_to_decide(family(cases, name)) for name in commands}
    return tuple(
        replace(case, repeats=case.entry.repeats or needed[case.entry.command]) for case in cases
    )


@dataclass(frozen=True)
class Item:
    """One process, counted from 1, or, with repeat 0, the search for the batch size of a case."""

    case: SweepCase
    repeat: int

    @property
    def label(self) -> str:
        """Label in progress lines."""
        if self.repeat == 0:
            return f"{self.case.name}: largest batch"
        if self.case.repeats == 1:
            return self.case.name
        return f"{self.case.name} #{self.repeat}"

    @property
    def duration_key(self) -> tuple[str, bool]:
        """Key of items of equal duration: the case, and whether it is the search."""
        return self.case.key, self.repeat == 0


def ordered(cases: Sequence[SweepCase], seed: int) -> tuple[Item, ...]:
    """Searches first, then round r of all cases before round r + 1, each shuffled by the seed."""
    generator = random.Random(seed)
    rounds = max((case.repeats for case in cases), default=0)
    items = []
    for repeat in range(rounds + 1):
        due = [
            Item(case, repeat)
            for case in cases
            if (repeat <= case.repeats if repeat else case.entry.search is not None)
        ]
        generator.shuffle(due)
        items += due
    return tuple(items)


def _case(
    configuration: SweepCase,
    environment: Mapping[str, Any],
    for_all: Mapping[str, str],
    notices: list[str],
) -> SweepCase:
    """A configuration with its resolved flags, to whose notices its own are added."""
    entry = configuration.entry
    known = flags_of(entry.command)
    for name, node in configuration.nodes.items():
        if name not in known:
            raise node.error(unknown_key(name, known))
    for name, text in for_all.items():
        if name in configuration.varied:
            reason = f'is what "{entry.name}" varies; choose with --filter'
            raise FlagError(name, text, reason)
    own = {name: text for name, text in for_all.items() if name in known}
    flags = {**configuration.flags, **own}
    only_of_runs = {
        "bounds": entry.bounds,
        "max_batch_search": entry.search,
        "launch": entry.launch,
    }
    if entry.command != "run" and any(only_of_runs.values()):
        name = next(name for name, value in only_of_runs.items() if value)
        raise entry.node.error(f"{entry.name}: {name} needs command: run")
    resolved = _resolve(configuration, flags)
    notices += [f"{configuration.name}: {notice}" for notice in resolved.notices]
    search = entry.search
    if search is not None and resolved.batch_size > search.limit:
        raise entry.node.error(
            f"{configuration.name}: max_batch_search ends at {search.limit}, below the "
            f"batch size it starts with, {resolved.batch_size}"
        )
    parts = {
        "command": entry.command,
        "config": resolved.identity,
        "search": _facts_of(search),
        "environment": environment,
    }
    return replace(configuration, flags=flags, resolved=resolved, key=digest_key(parts))


def _facts_of(search: BatchSizeSearch | None) -> dict[str, int] | None:
    return None if search is None else vars(search)


def _resolve(configuration: SweepCase, flags: Mapping[str, str]) -> Resolved:
    """The resolved flags; errors name the line of the flag."""
    entry = configuration.entry
    try:
        given = values_of(flags, flags_of(entry.command))
        refuse_in_sweep(given)
        if entry.command == "allreduce":
            return resolve_all_reduce(given)
        return resolve_run(args_of(given), entry.launch)
    except FlagError as error:
        node = configuration.nodes.get(error.flag, entry.node)
        raise node.error(f"{configuration.name}: {error}") from None
    except (UsageError, DataError) as error:
        raise entry.node.error(f"{configuration.name}: {error}") from None
