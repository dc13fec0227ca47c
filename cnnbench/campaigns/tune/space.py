"""The settings that `cnnbench tune` varies, and the candidates that it makes from them.

A setting is a flag of a run or, on CPUs, an environment variable.

All dimensions in a group are combined with each other. Groups are searched one after the other;
each starts with the best flags of the previous groups (docs/tune.md explains why).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cnnbench.base.text import format_bytes
from cnnbench.campaigns.processes import STORED, ResolvedRun, json_digest, resolve_plan
from cnnbench.campaigns.tune import environment, phrases
from cnnbench.errors import DataError, UsageError
from cnnbench.flags import ACCEPTED, SPECS, ParsedArgs, flag_texts, parse_flag_texts
from cnnbench.machine.cpu import ONEDNN, MemoryCapacity
from cnnbench.plan import check_flags, resolve, unused_flag_notices
from cnnbench.records.campaigns import AS_GIVEN
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec
from cnnbench.variable_mgr.all_reduce.registry import ALGORITHMS, declarations, find
from cnnbench.variable_mgr.distribute import alternatives_to_auto
from cnnbench.variable_mgr.modes import BUCKET_BYTES, DEFAULT, Mode, Reduction

# The dimensions of a search: flags with the values to try, and when they apply.

Settings: TypeAlias = Mapping[str, str]
"""Values of flags and of environment variables as texts, by name. The names of the variables are
`environment.VARIABLES`.
"""

CHANGES: Mapping[str, str] = {
    "precision": "precision",
    "batch_size": "batch_size",
    "variable_consistency": "consistency",
    "staged_vars": "consistency",
    "gradient_reduction": "gradient_reduction",
    ONEDNN: "environment",
}
"""Settings that change what is trained, and the word of --allow that permits varying them."""

ALLOWABLE = tuple(dict.fromkeys(CHANGES.values()))


class Dimension(NamedTuple):
    """Settings to try in addition to the given flags. `suits` says whether a mode supports them."""

    values: Sequence[Settings]
    suits: Callable[[Mode], bool] = lambda mode: True


def _settings_of_flag(name: str, *values: object) -> list[Settings]:
    return [{name: str(value)} for value in values]


def _all_reduces(mode: Mode) -> bool:
    return mode.reduction is Reduction.ALL_REDUCE


def search_dimensions(
    resolved: ResolvedRun, *, on_gpu: bool, cpus: int
) -> dict[str, list[Dimension]]:
    """The settings to try with the given flags, by group, in the order of the search.

    `resolved` contains the given flags.
    """
    config, batch = resolved.config, resolved.batch_size
    towers = int(config["num_gpus"])
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
        "aggregation": _aggregation_dimensions(on_gpu) if reduces else [],
        "threads": [*map(Dimension, threads)],
        "input": [] if config["data_dir"] is None else [*map(Dimension, reading)],
        # The environment is the last group, so that only its candidates have other environment
        # variables than the user's.
        "environment": [] if on_gpu else [*map(Dimension, environment.dimensions(os.environ))],
    }


def _aggregation_dimensions(on_gpu: bool) -> list[Dimension]:
    known = map(registry.find_mode, registry.names())
    alike = [mode for mode in known if mode.in_sync and not mode.one_tower]
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

_NEAR = 0.9  # Runs print a warning if they need more than this share of the memory.


class Candidate(NamedTuple):
    """Settings of a run. `cnnbench tune` measures its speed.

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
    """Makes candidates, which add settings to the flags that the user gave.

    TensorFlow is not loaded.

    Attributes:
      args: the given flags.
      allowed: the words of `ALLOWABLE` for what candidates may train differently.
      memory: bytes of memory of the machine or of a GPU; None if unknown.
    """

    args: ParsedArgs
    allowed: frozenset[str] = frozenset()
    memory: MemoryCapacity | None = None

    @cached_property
    def given_texts(self) -> Settings:
        """The flags that the user has given, as texts by name. A search never varies them."""
        return flag_texts(self.args.given, ACCEPTED)

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
        args = self.args.including(parse_flag_texts(flags, SPECS))
        plan = check_flags(args.including(STORED))
        without_effect = unused_flag_notices(plan, tuple(flags))
        if without_effect:
            raise UsageError(without_effect[0])
        resolved = resolve_plan(resolve(plan))
        needed = resolved.needed_bytes
        if settings and self.memory is not None and needed > _NEAR * self.memory.available:
            available = format_bytes(self.memory.available)
            text = phrases.TOO_LARGE.format(needed=format_bytes(needed), available=available)
            raise UsageError(text)
        changes = _changes(settings)
        for word in changes:
            if word not in self.allowed:
                raise UsageError(phrases.NOT_ALLOWED.format(word=word))
        return Candidate(
            name=candidate_name(settings),
            settings=dict(settings),
            flags={**self.given_texts, **flags},
            key=json_digest({"config": resolved.identity, "variables": variables}),
            variables=variables,
            changes=changes,
            resolved=resolved,
        )


def candidate_name(settings: Settings) -> str:
    """Returns the name of a candidate: the settings that the candidate adds to the given flags,
    such as "precision=bf16 xla=true".
    """
    texts = (environment.short_text(name, text) for name, text in settings.items())
    return " ".join(texts) or AS_GIVEN


def _changes(settings: Settings) -> tuple[str, ...]:
    """The words of `ALLOWABLE` for what the settings train differently, without duplicates."""
    words = [CHANGES[name] for name in settings if name in CHANGES]
    if spec := settings.get("all_reduce_spec"):
        algorithms = map(find, parse_all_reduce_spec(spec).algorithm_names)
        if any(algorithm is not None and algorithm.lossy for algorithm in algorithms):
            words.append("precision")
    return tuple(dict.fromkeys(words))


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


def search_groups(
    space: SearchSpace, as_given: Candidate, *, on_gpu: bool, cpus: int
) -> dict[str, tuple[Settings, ...]]:
    """The settings to try, by group. The first ones of a group add nothing. Groups without a choice
    are left out.

    `as_given` is the candidate with the given flags. `cpus` is the machine's number of CPUs.
    """
    given = space.given_texts
    mode = given.get("variable_update", DEFAULT)
    groups = {}
    for name, group in search_dimensions(as_given.resolved, on_gpu=on_gpu, cpus=cpus).items():
        choices = _without_given(combine_dimensions(group, space.allowed, mode), given)
        if len(choices) > 1:
            # Settings that change few flags come first, because the time may not suffice for all.
            groups[name] = tuple(sorted(choices, key=len))
    if not groups:
        raise UsageError(phrases.NOTHING_VARIES)
    return groups


def _without_given(choices: Iterable[Settings], given: Settings) -> list[Settings]:
    """Removes settings that contradict the given flags, and duplicates. Removes the given flags
    from the other settings.
    """
    compatible = (
        {name: text for name, text in choice.items() if name not in given}
        for choice in choices
        if all(given.get(name, text) == text for name, text in choice.items())
    )
    return [dict(items) for items in dict.fromkeys(tuple(choice.items()) for choice in compatible)]
