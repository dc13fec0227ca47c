"""The settings that `cnnbench tune` varies, and the candidates that it makes from them.

A setting is a flag of a run or, on CPUs, an environment variable.

All dimensions in a group are combined with each other. Groups are searched one after the other;
each starts with the best flags of the previous groups (docs/tune.md explains why).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cnnbench.base.text import format_bytes
from cnnbench.campaigns.launch import JobLayout, plan_chief
from cnnbench.campaigns.processes import STORED, ResolvedRun, json_digest, resolve_plan
from cnnbench.campaigns.suite.entries import SuiteEntry, expand_entry, parse_suite
from cnnbench.campaigns.suite.nodes import load_yaml_file
from cnnbench.campaigns.tune import environment, phrases
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import (
    ACCEPTED,
    FLAGS,
    SPECS,
    Affects,
    ParsedArgs,
    RunPart,
    flag_texts,
    names_of_flags,
    parse_flag_texts,
    specs_of,
)
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.machine.cpu import ONEDNN, MemoryCapacity
from cnnbench.plan import resolve, unused_flag_notices
from cnnbench.records.campaigns import AS_GIVEN
from cnnbench.variable_mgr import all_reduce, registry
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.all_reduce.registry import ALGORITHMS, declarations, find
from cnnbench.variable_mgr.distribute import alternatives_to_auto
from cnnbench.variable_mgr.modes import (
    BUCKET_BYTES,
    DEFAULT,
    Mode,
    Processes,
    Reduction,
    mode_without_ps,
)

# The dimensions of a search: flags with the values to try, and when they apply.

Settings: TypeAlias = Mapping[str, str]
"""Values of flags and of environment variables as texts, by name. The names of the variables are
`environment.VARIABLES`.
"""

CHANGES: Mapping[str, str] = {
    "precision": "precision",
    "use_fp16": "precision",
    "fp16_vars": "precision",
    "compact_gradient_transfer": "precision",
    "batch_size": "batch_size",
    "variable_consistency": "consistency",
    "staged_vars": "consistency",
    "gradient_reduction": "gradient_reduction",
    ONEDNN: "environment",
}
"""Settings that change what is trained, and the word of --allow that permits varying them."""

ALLOWABLE = tuple(dict.fromkeys(CHANGES.values()))

COMPUTING = frozenset(names_of_flags(specs_of(RuntimeParams), Affects.TIME))
"""Flags that change how operations compute: kernels, order of additions and, with XLA, random
numbers.
"""

TUNABLE = (
    frozenset({*CHANGES, *names_of_flags(FLAGS, Affects.TIME)})
    - {*names_of_flags(FLAGS, RunPart.PROFILE)}
    - environment.VARIABLES
)
"""Flags that may vary: flags that do not change the work, and the flags in `CHANGES`."""


class Dimension(NamedTuple):
    """Settings to try in addition to the given flags. `suits` says whether a mode supports them."""

    values: Sequence[Settings]
    suits: Callable[[Mode], bool] = lambda mode: True


def _settings_of_flag(name: str, *values: object) -> list[Settings]:
    return [{name: str(value)} for value in values]


def _all_reduces(mode: Mode) -> bool:
    return mode.reduction is Reduction.ALL_REDUCE


def search_dimensions(
    resolved: ResolvedRun, workers: int, *, on_gpu: bool, cpus: int
) -> dict[str, list[Dimension]]:
    """The settings to try with the given flags, by group, in the order of the search.

    `resolved` contains the given flags.
    """
    config, batch = resolved.config, resolved.batch_size
    towers = workers * int(config["num_gpus"])
    reduces = towers > 1 and not config["forward_only"]
    precisions = ("bf16", "fp16") if on_gpu else ("bf16",)
    sizes = (size for size in (2 * batch, 4 * batch, batch // 2) if size)
    computing = [
        _settings_of_flag("precision", *precisions),
        _settings_of_flag("data_format", "NHWC", "NCHW") if on_gpu else [],
        [*_settings_of_flag("xla_compile", "true"), *_settings_of_flag("xla", "true")],
        _settings_of_flag("batch_size", *sizes)
        if "global_batch_size" not in resolved.explicit_flags
        else [],
    ]
    if on_gpu:
        threads = [_settings_of_flag("gpu_thread_mode", "global", "gpu_shared")]
    else:
        # The sizes are one thread, a tower's share of the CPUs, half of the CPUs, and all CPUs.
        pools = sorted({1, max(1, cpus // towers), max(1, cpus // 2), cpus})
        threads = [
            _settings_of_flag("num_intra_threads", *pools),
            _settings_of_flag("num_inter_threads", *pools),
        ]
    readers = sorted({max(1, cpus // 2), cpus, 2 * cpus})
    reading = [
        _settings_of_flag("datasets_num_private_threads", *readers),
        _settings_of_flag("datasets_prefetch_buffer_size", 2, 4),
    ]
    return {
        "computing": [*map(Dimension, computing)],
        "aggregation": _aggregation_dimensions(workers, on_gpu) if reduces else [],
        "threads": [*map(Dimension, threads)],
        "input": [] if config["data_dir"] is None else [*map(Dimension, reading)],
        # The environment is the last group, so that only its candidates have other environment
        # variables than the user's.
        "environment": [] if on_gpu else [*map(Dimension, environment.dimensions())],
    }


def _aggregation_dimensions(workers: int, on_gpu: bool) -> list[Dimension]:
    known = map(registry.find_mode, registry.names())
    alike = [mode for mode in known if mode.in_sync and not mode.apart and not mode.one_tower]
    kind = "gpu" if on_gpu else "cpu"
    ALGORITHMS.load_packages()
    declared = declarations().items()
    names = (name for name, algorithm in declared if kind in algorithm.tuned_on)
    algorithms = _settings_of_flag("all_reduce_spec", *names)
    packings = [
        *_settings_of_flag("gradient_repacking", 8),
        *_settings_of_flag("gradient_bucket_bytes", BUCKET_BYTES),
    ]
    return [
        # Values of --variable_update with which all towers train the same weights.
        Dimension([{"variable_update": mode.name, **mode.needs} for mode in alike]),
        Dimension(
            algorithms,
            lambda mode: _all_reduces(mode) and not mode.algorithm and not mode.needs,
        ),
        Dimension(
            # With one worker, the settings above already include these algorithms.
            algorithms if workers > 1 else [],
            lambda mode: _all_reduces(mode) and "all_reduce_spec" in mode.needs,
        ),
        Dimension(
            _settings_of_flag("cross_device_ops", *alternatives_to_auto(on_gpu=on_gpu)),
            lambda mode: mode.uses_cross_device_ops,
        ),
        Dimension(packings, _all_reduces),
        Dimension(
            _settings_of_flag("local_parameter_device", "cpu"),
            lambda mode: mode.reduction is Reduction.AT_VARIABLE,
        ),
        # --variable_consistency=relaxed and --staged_vars use values of the previous step.
        Dimension(_settings_of_flag("variable_consistency", "relaxed"), _all_reduces),
        Dimension(_settings_of_flag("staged_vars", "true"), lambda mode: mode.staged),
        Dimension(_settings_of_flag("gradient_reduction", "sum")),
    ]


def combine_dimensions(
    group: Sequence[Dimension], allowed: Collection[str], mode: str
) -> list[Settings]:
    """Combines the settings of a group's dimensions in all ways. The first combination sets no
    flag.

    `allowed` contains words of --allow. `mode` is the value of --variable_update if the combination
    does not set it.
    """
    refused = {name for name, word in CHANGES.items() if word not in allowed}
    combinations: list[Settings] = [{}]
    for values, suits in group:
        # Modes that need a refused flag remain: `SearchSpace.make_candidate` names the reason.
        accepted = [value for value in values if not value.keys() <= refused]
        combinations = [
            {**settings, **value}
            for settings in combinations
            for value in ({}, *accepted)
            if not value or suits(registry.find_mode(settings.get("variable_update", mode)))
        ]
    return combinations


# Makes candidates. If the flags of a candidate are invalid, it is dropped with a reason.

_MODE = "variable_update"
_NEAR = 0.9  # Runs print a warning if they need more than this share of the memory.


class Candidate(NamedTuple):
    """Settings of a run or a job. `cnnbench tune` measures its speed.

    Attributes:
      name: the settings that are added to the given flags, as text.
      settings: the settings that are added.
      flags: all flags by name.
      key: equal for equivalent settings.
      variables: environment variables that its processes get.
      changes: the words of `ALLOWABLE` for differences in what is trained.
      resolved: properties of the run with these flags.
    """

    name: str
    settings: Settings
    flags: Settings
    key: str
    variables: Settings = MappingProxyType({})
    changes: tuple[str, ...] = ()
    resolved: ResolvedRun = ResolvedRun()


class DroppedCandidate(NamedTuple):
    """A candidate that is not measured, with the reason.

    `repeats` is whether it is equivalent to another candidate.
    """

    name: str
    reason: str
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The flags that the user gave, and the flags that a search may vary. Candidates are made from
    both.

    TensorFlow is not loaded.

    Attributes:
      args: the given flags.
      groups: settings by name of the group. Candidates in the race of a group add one of these
        settings to the best flags of the previous groups. The first candidate adds nothing.
      memory: bytes of memory of the machine or of a GPU; None if unknown.
      layout: the processes of a job; None for runs in one process.
    """

    args: ParsedArgs
    groups: Mapping[str, tuple[Settings, ...]] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    memory: MemoryCapacity | None = None
    layout: JobLayout | None = None

    @cached_property
    def given_texts(self) -> Settings:
        """The flags that the user has given, as texts by name. A search never varies them."""
        return flag_texts(self.args.given, ACCEPTED)

    @cached_property
    def assumed_mode_flags(self) -> dict[str, str]:
        """Flags that select a mode for a job without --variable_update and without ps tasks.

        The default mode of jobs needs ps tasks. The result is empty if the default mode is used.
        """
        if self.layout is None or self.layout.ps or _MODE in self.given_texts:
            return {}
        how = Processes.CONTROLLER if self.layout.controller else Processes.CLIENT_PER_WORKER
        mode = mode_without_ps(how)
        needs = {name: text for name, text in mode.needs.items() if name not in self.given_texts}
        return {_MODE: mode.name, **needs}

    @property
    def initial_mode(self) -> str:
        """The value of --variable_update with which the search starts."""
        return {_MODE: DEFAULT, **self.assumed_mode_flags, **self.given_texts}[_MODE]

    def make_candidate(self, settings: Settings) -> Candidate:
        """Makes the candidate that adds settings to the given flags.

        Raises UsageError or DataError if the candidate cannot run. The given flags are accepted
        even if they may need too much memory.
        """
        variables = {name: settings[name] for name in settings if name in environment.VARIABLES}
        flags = {name: settings[name] for name in settings if name not in variables}
        for name, value in variables.items():
            if reason := environment.why_unusable(name, value):
                raise UsageError(reason)
        own = flags if _MODE in settings else {**self.assumed_mode_flags, **flags}
        args = self.args.including(parse_flag_texts(own, SPECS))
        setup = plan_chief(args.including(STORED), self.layout)
        without_effect = unused_flag_notices(setup, tuple(flags))
        if without_effect:
            raise UsageError(without_effect[0])
        resolved = resolve_plan(resolve(setup))
        needed = resolved.needed_bytes
        if settings and self.memory is not None and needed > _NEAR * self.memory.available:
            available = format_bytes(self.memory.available)
            text = phrases.TOO_LARGE.format(needed=format_bytes(needed), available=available)
            raise UsageError(text)
        changed = tuple(dict.fromkeys(_changed(settings)))
        for word in changed:
            if word not in self.allowed:
                raise UsageError(phrases.NOT_ALLOWED.format(word=word))
        return Candidate(
            name=candidate_name(settings),
            settings=dict(settings),
            flags={**self.given_texts, **own},
            key=json_digest({"config": resolved.identity, "variables": variables}),
            variables=variables,
            changes=changed,
            resolved=resolved,
        )


def candidate_name(settings: Settings) -> str:
    """Returns the name of a candidate: the settings that the candidate adds to the given flags,
    such as "precision=bf16 xla=true".
    """
    texts = (environment.short_text(name, text) for name, text in settings.items())
    return " ".join(texts) or AS_GIVEN


def _changed(settings: Settings) -> Iterator[str]:
    for name, text in settings.items():
        flag = SPECS.get(name)
        if name in CHANGES and (flag is None or text != flag.text(flag.default)):
            yield CHANGES[name]
    if spec := settings.get("all_reduce_spec"):
        algorithms = map(find, parse_all_reduce_spec(spec).algorithm_names)
        if any(algorithm is not None and algorithm.lossy for algorithm in algorithms):
            yield "precision"
    if _MODE in settings:
        mode = registry.find_mode(settings[_MODE])
        if not mode.in_sync or mode.apart or mode.processes is Processes.COORDINATOR:
            yield "consistency"  # The towers of this mode train different weights.


def candidates_of_group(
    space: SearchSpace, choices: Iterable[Settings], best: Candidate
) -> tuple[tuple[Candidate, ...], tuple[DroppedCandidate, ...]]:
    """Makes the candidates of a group: `best`, then `best` with each of the `choices`.

    `best` is the best candidate of the previous groups. Also returns candidates that cannot run or
    that are equivalent to others.
    """
    by_key: dict[str, Candidate] = {best.key: best}
    dropped: list[DroppedCandidate] = []
    for choice in choices:
        settings = {**best.settings, **choice}
        try:
            candidate = space.make_candidate(settings)
        except (UsageError, DataError) as error:
            dropped.append(DroppedCandidate(candidate_name(settings), str(error)))
            continue
        known = by_key.setdefault(candidate.key, candidate)
        if known.settings != candidate.settings:
            reason = phrases.duplicate_reason(known.name)
            dropped.append(DroppedCandidate(candidate.name, reason, repeats=True))
    return tuple(by_key.values()), tuple(dropped)


def default_groups(
    space: SearchSpace, first: Candidate, *, on_gpu: bool, cpus: int
) -> dict[str, tuple[Settings, ...]]:
    """The settings to try, by group, if the user gives no --space.

    `first` is the candidate with the given flags. `cpus` is the machine's number of CPUs.
    """
    workers = 1 if space.layout is None else space.layout.workers
    suitable = search_dimensions(first.resolved, workers, on_gpu=on_gpu, cpus=cpus)
    groups = {
        name: _compatible(
            combine_dimensions(group, space.allowed, space.initial_mode), space.given_texts
        )
        for name, group in suitable.items()
    }
    # Settings that change few flags come first, because the time may not suffice for all.
    return _with_choices(
        {name: tuple(sorted(choices, key=len)) for name, choices in groups.items()}
    )


def read_groups(path: str, given_flags: Settings) -> dict[str, tuple[Settings, ...]]:
    """Reads the settings to try from the suite file in --space. Each entry becomes a group.

    `given_flags` do not vary.
    """
    suite = parse_suite(load_yaml_file(path, "space"))
    if suite.on_cpu is not None:
        raise suite.entries[0].node.error(phrases.UNUSED_ON_CPU, 1)
    return _with_choices(
        {entry.name: _settings_of_entry(entry, given_flags) for entry in suite.entries}
    )


def _settings_of_entry(entry: SuiteEntry, given_flags: Settings) -> tuple[Settings, ...]:
    not_here = {
        "command: allreduce": entry.command != "run",
        "launch": entry.launch is not None,
        "bounds": bool(entry.bounds),
    }
    for key, reason in not_here.items():
        if reason:
            raise entry.node.error(phrases.UNUSED_KEY.format(entry=entry.name, key=key))
    expanded, unset = expand_entry(entry)
    if unset is not None:
        raise entry.node.error(f"{entry.name}: {unset}")
    for configuration in expanded:
        for name, text in configuration.flags.items():
            _check_tunable(entry, name, text, configuration.nodes[name].line)
    return tuple(
        _compatible(({}, *(configuration.flags for configuration in expanded)), given_flags)
    )


def _check_tunable(entry: SuiteEntry, name: str, text: str, line: int) -> None:
    spec = SPECS.get(name)
    if spec is None or name not in TUNABLE:
        template = phrases.UNKNOWN_FLAG if spec is None else phrases.FIXED_FLAG
        raise entry.node.error(template.format(entry=entry.name, flag=name), line)
    try:
        value = spec.parse(text)
        spec.check(value)
        if isinstance(value, AllReduceSpec):
            value.check_algorithm_names(all_reduce.names(value.algorithm_names))
    except FlagError as error:
        raise entry.node.error(f"{entry.name}: {error}", line) from None


def _compatible(options: Iterable[Settings], given_flags: Settings) -> list[Settings]:
    """Removes settings that contradict the given flags, and duplicates. Removes the given flags
    from the other settings.
    """
    compatible = (
        {name: text for name, text in choice.items() if name not in given_flags}
        for choice in options
        if all(given_flags.get(name, text) == text for name, text in choice.items())
    )
    return [dict(items) for items in dict.fromkeys(tuple(choice.items()) for choice in compatible)]


def _with_choices(
    groups: Mapping[str, tuple[Settings, ...]],
) -> dict[str, tuple[Settings, ...]]:
    varied = {name: choices for name, choices in groups.items() if len(choices) > 1}
    if not varied:
        raise UsageError(phrases.NOTHING_VARIES)
    return varied
