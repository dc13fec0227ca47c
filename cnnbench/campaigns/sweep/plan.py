"""Plans a suite: configurations, repeats and order. All flags are checked before the first run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cnnbench.base.plugins import load_plugins_of_flags
from cnnbench.base.text import first_few, unknown_key_message
from cnnbench.base.values import labels_from_config
from cnnbench.campaigns.launch import resolve_run
from cnnbench.campaigns.processes import (
    ResolvedRun,
    environment_identity,
    flag_specs_of,
    json_digest,
    make_rounds,
    resolve_all_reduce,
    source_digest,
)
from cnnbench.campaigns.suite.entries import LAUNCH, Suite, SweepCase, expand_entry
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import args_from_values, load_named_plugins, parse_flag_texts
from cnnbench.judge.compare.power import processes_to_decide
from cnnbench.plan import without_batch_size_search
from cnnbench.records.subject import Subject


class SweepPlan(NamedTuple):
    """The configurations of a sweep, and notices to print before the first run.

    The cases are in the order of the suite file. `refused` contains a line for each configuration
    that is left out because its flags are refused, with the reason.
    """

    suite: str
    cases: tuple[SweepCase, ...]
    notices: tuple[str, ...]
    subject: Subject = Subject()
    refused: tuple[str, ...] = ()


class _RefusedError(UsageError):
    """A configuration cannot run with its flags, although each value is valid for its flag.

    `reason` is the message without file, line and name of the configuration.
    """

    def __init__(self, message: UsageError, reason: str) -> None:
        self.reason = reason
        super().__init__(str(message))


def plan_sweep(
    suite: Suite,
    facts: Mapping[str, Any],
    flags_for_all: Mapping[str, str] | None = None,
    pattern: str | None = None,
    subject: Subject | None = None,
) -> SweepPlan:
    """Expands all entries of a suite to configurations, and checks all flags.

    Raises UsageError with file, line and valid values.

    Args:
      facts: properties of this machine, which are part of the keys (like `subject.revision`).
      flags_for_all: texts of flags by name. They are added to all configurations whose command has
        the flag. Items of `include` keep the flags that they set.
      pattern: regular expression that the names must match. Other configurations are not checked,
        because their flags may not work on this machine.
    """
    flags_for_all = flags_for_all or {}
    subject = (subject or Subject()).with_labels(labels_from_config(flags_for_all)) or Subject()
    state = {"revision": subject.revision, "changes": subject.changes, "sources": source_digest()}
    known = {name: value for name, value in state.items() if value is not None}
    environment = {**environment_identity(facts), **known}
    configurations: list[SweepCase] = []
    notices: list[str] = []
    for entry in suite.entries:
        expanded, unset = expand_entry(entry)
        if unset is not None:
            notices.append(f"{entry.name}: left out, because {unset}")
        configurations += expanded
    if not configurations:
        raise UsageError(f"{suite.file}: no entry is left to run; {'; '.join(notices)}")
    cases: dict[str, SweepCase] = {}
    refused: dict[str, _RefusedError] = {}
    for configuration in _filter(configurations, pattern):
        try:
            case = _resolve_case(configuration, environment, flags_for_all, notices)
            if case.key in cases:
                same = f'the same run as "{cases[case.key].name}"'
                message = f'"{case.name}" is {same}; their records could not be distinguished'
                raise _RefusedError(case.entry.node.error(message), same)
        except _RefusedError as error:
            if not configuration.entry.alternatives:
                raise
            refused[configuration.name] = error
        else:
            cases[case.key] = case
    if not cases:
        raise next(iter(refused.values()))
    left_out = tuple(f"{name}: left out: {error.reason}" for name, error in refused.items())
    listed = tuple(dict.fromkeys((*notices, *left_out)))
    # By default, there are as many processes of each case as a verdict needs.
    commands = {case.entry.command for case in cases.values()}
    needed = {
        name: processes_to_decide(count_configurations(cases.values(), name)) for name in commands
    }
    planned = (
        replace(case, repeats=case.entry.repeats or needed[case.entry.command])
        for case in cases.values()
    )
    return SweepPlan(suite.name, tuple(planned), listed, subject, left_out)


def _filter(configurations: Sequence[SweepCase], pattern: str | None) -> list[SweepCase]:
    try:
        expression = re.compile(pattern or "")
    except re.error as error:
        raise FlagError("filter", pattern, f"is not a regular expression: {error}") from None
    chosen = [
        configuration for configuration in configurations if expression.search(configuration.name)
    ]
    if not chosen:
        names = [f'"{configuration.name}"' for configuration in configurations]
        raise FlagError("filter", pattern, f"matches none of {first_few(names, 5, ', ')}")
    return chosen


def count_configurations(cases: Iterable[SweepCase], command: str) -> int:
    """The number of configurations of `command` (run or allreduce), which are judged together.

    `cnnbench compare` corrects p-values for this number.
    """
    return sum(case.resolved.rows for case in cases if case.entry.command == command)


class SweepItem(NamedTuple):
    """One process of a configuration in a sweep. Repeats are numbered from 1."""

    case: SweepCase
    repeat: int

    @property
    def label(self) -> str:
        """Name of the process in progress lines, such as "resnet50 num_gpus=2 #3"."""
        if self.case.repeats == 1:
            return self.case.name
        return f"{self.case.name} #{self.repeat}"


def ordered_items(cases: Sequence[SweepCase], seed: int) -> tuple[SweepItem, ...]:
    """The processes of a sweep in order: rounds of all cases. The seed shuffles each round."""
    most = max((case.repeats for case in cases), default=0)
    order = make_rounds(cases, most, seed, lambda case, at: at <= case.repeats)
    return tuple(SweepItem(case, repeat) for case, repeat in order)


def _resolve_case(
    configuration: SweepCase,
    environment: Mapping[str, Any],
    flags_for_all: Mapping[str, str],
    notices: list[str],
) -> SweepCase:
    """Checks and resolves the flags of a configuration. Adds notices about flags to `notices`."""
    entry = configuration.entry
    known = flag_specs_of(entry.command)
    if entry.command == "run" and configuration.nodes.keys() - known.keys():
        load_named_plugins({name: [text] for name, text in configuration.flags.items()})
    for name, node in configuration.nodes.items():
        if name not in known and not (name in LAUNCH and name in configuration.varied):
            of_launch = f'"{name}" is a key of launch'
            raise node.error(of_launch if name in LAUNCH else unknown_key_message(name, known))
    for name, text in flags_for_all.items():
        if name in configuration.varied and not configuration.included:
            reason = f'is what "{entry.name}" varies; choose with --filter'
            raise FlagError(name, text, reason)
    kept = configuration.varied if configuration.included else ()
    taken = known.keys() - set(kept)
    own = {name: text for name, text in flags_for_all.items() if name in taken}
    flags = {**configuration.flags, **own}
    only_of_runs = (("bounds", entry.bounds), ("launch", configuration.launch))
    for name, value in only_of_runs if entry.command != "run" else ():
        if value:
            raise entry.node.error(f"{entry.name}: {name} needs command: run")
    resolved = _resolve_flags(configuration, flags)
    notices += [f"{configuration.name}: {notice}" for notice in resolved.notices]
    parts = {
        "command": entry.command,
        "config": resolved.identity,
        "environment": environment,
    }
    return replace(configuration, flags=flags, resolved=resolved, key=json_digest(parts))


def _resolve_flags(configuration: SweepCase, flags: Mapping[str, str]) -> ResolvedRun:
    """Resolves the flags of a configuration. Errors name the line of the flag in the suite file.

    Raises _RefusedError if the values are valid, but the run is refused.
    """
    entry = configuration.entry
    try:
        specs = flag_specs_of(entry.command)
        values = parse_flag_texts(flags, specs)
        _refuse_flags(values)
        if entry.alternatives:  # A mistake in a value must not leave out a configuration.
            load_plugins_of_flags(values)
            for name, value in values.items():
                specs[name].check(value)
    except UsageError as error:
        raise _error_about(configuration, error) from None
    try:
        if entry.command == "allreduce":
            return resolve_all_reduce(values)
        args = args_from_values(values)
        if not args.given.get("find_batch_size") or configuration.launch is not None:
            return resolve_run(args, configuration.launch)
        args, _ = without_batch_size_search(args)
        resolved = resolve_run(args)
        # Its records have other batch sizes than those of the same run without the flag.
        return replace(resolved, identity={**resolved.identity, "find_batch_size": True})
    except (UsageError, DataError) as error:
        raise _RefusedError(_error_about(configuration, error), str(error)) from None


def _error_about(configuration: SweepCase, error: UsageError | DataError) -> UsageError:
    flag = error.flag if isinstance(error, FlagError) else ""
    node = configuration.nodes.get(flag, configuration.entry.node)
    return node.error(f"{configuration.name}: {error}")


def _refuse_flags(values: Mapping[str, Any]) -> None:
    """Raises FlagError for flags that cannot be used for the runs of a sweep.

    A sweep sets the names of result files. With --train_dir, each training would resume from the
    checkpoint of the previous training.
    """
    for name in ("result_json", "result_csv"):
        if values.get(name) is not None:
            raise FlagError(name, values[name], "is set by the sweep; use --results")
    if values.get("train_dir") and not (values.get("eval") or values.get("forward_only")):
        raise FlagError(
            "train_dir",
            values["train_dir"],
            "cannot be used for training in a sweep: the second process would resume the "
            "training of the first; leave it out, or evaluate with --eval",
        )
