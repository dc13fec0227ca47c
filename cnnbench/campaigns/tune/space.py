"""From a space of flags to candidates: each resolved beforehand, or dropped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cnnbench.base.text.numbers import binary
from cnnbench.campaigns.launch.tasks import JobLayout, chief_flags
from cnnbench.campaigns.processes.commands import Resolved, digest_key, resolve_run
from cnnbench.campaigns.sweep.document import load
from cnnbench.campaigns.sweep.planning import expand
from cnnbench.campaigns.sweep.schema import SuiteEntry, check
from cnnbench.campaigns.tune.dimensions import (
    CHANGES,
    DIMENSIONS,
    TUNABLE,
    SearchSituation,
    Settings,
    choices,
)
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import parse_args
from cnnbench.flags.ineffective import unused_notices
from cnnbench.flags.params import SPECS
from cnnbench.machine.cpu import Memory
from cnnbench.records.tune import AS_GIVEN
from cnnbench.variable_mgr import all_reduce, registry
from cnnbench.variable_mgr.all_reduce import AllReduceSpec
from cnnbench.variable_mgr.modes import BUILT_IN, DEFAULT, Processes

_MODE = "variable_update"
_NEAR = 0.9  # share of memory from which `cnnbench.run.driver.estimates` warns


@dataclass(frozen=True)
class FlagGroup:
    """Settings that are raced together.

    A candidate adds one of the choices to the best of the groups before; the first adds none.
    """

    name: str
    choices: tuple[Settings, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """Flags that a search may vary, by group, and the given ones.

    `assumed` is the mode of the given flags, where the default mode cannot run.
    """

    fixed: Settings
    groups: tuple[FlagGroup, ...]
    allowed: frozenset[str] = frozenset()
    assumed: Settings = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """Value of --variable_update of the given flags."""
        return {_MODE: DEFAULT, **self.assumed, **self.fixed}[_MODE]

    def texts(self, settings: Settings) -> dict[str, str]:
        """The flags of the candidate that adds settings, by name."""
        assumed = {} if _MODE in settings else self.assumed
        return {**self.fixed, **assumed, **settings}


@dataclass(frozen=True)
class Candidate:
    """Flags to be measured: all those of a run or of every process of a job.

    Its name and settings have the flags that it adds to the given ones, its key is equal for
    equivalent flags, and `changes` has words of `ALLOWABLE` for what it trains differently.
    """

    name: str
    settings: Settings
    flags: tuple[str, ...]
    key: str
    changes: tuple[str, ...] = ()
    resolved: Resolved = field(default_factory=Resolved, repr=False)


@dataclass(frozen=True)
class Dropped:
    """A candidate that is not measured; `repeats` if it is equivalent to another one."""

    name: str
    reason: str
    repeats: bool = False


@dataclass(frozen=True)
class Field:
    """The candidates of a group, the best of the groups before first, and dropped ones."""

    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...] = ()


Maker = Callable[[Settings], Candidate]
"""Makes the candidate that adds settings; raises UsageError with the reason why it cannot run."""


class CandidateMaker:
    """Makes candidates, without TensorFlow; `memory` of the machine or a GPU is None if unknown."""

    def __init__(
        self, space: Space, memory: Memory | None = None, layout: JobLayout | None = None
    ) -> None:
        self._space = space
        self._memory = memory
        self._layout = layout

    def __call__(self, settings: Settings) -> Candidate:
        """See `Maker`; the given flags are never refused for the memory that they need."""
        space = self._space
        flags = tuple(f"--{name}={text}" for name, text in space.texts(settings).items())
        words = chief_flags(self._layout, flags)
        without_effect = unused_notices(parse_args(words).params, settings)
        if without_effect:
            raise UsageError(without_effect[0])
        resolved = resolve_run(words)
        needed = resolved.needed_bytes
        if settings and self._memory is not None and needed > _NEAR * self._memory.available:
            raise UsageError(
                f"takes about {binary(needed)} of memory, and "
                f"{binary(self._memory.available)} is available"
            )
        changed = tuple(dict.fromkeys(_changes(settings)))
        for word in changed:
            if word not in space.allowed:
                raise UsageError(f"changes what is trained; allow it with --allow={word}")
        return Candidate(
            name=name_of(settings),
            settings=dict(settings),
            flags=flags,
            key=digest_key({"config": resolved.identity}),
            changes=changed,
            resolved=resolved,
        )


def name_of(settings: Settings) -> str:
    """The name of a candidate that adds these flags."""
    return " ".join(f"{name}={text}" for name, text in settings.items()) or AS_GIVEN


def _changes(settings: Settings) -> Iterator[str]:
    for name, text in settings.items():
        if name in CHANGES and text != SPECS[name].text(SPECS[name].default):
            yield CHANGES[name]
    if _MODE in settings:
        mode = registry.find(settings[_MODE])
        if not mode.in_sync or mode.apart or mode.processes is Processes.COORDINATOR:
            yield "consistency"  # towers train differently


def assumed_mode(fixed: Settings, layout: JobLayout | None) -> dict[str, str]:
    """The mode of a job whose flags name none, and for which the default mode lacks ps tasks.

    Flags by name; none where the default mode applies.
    """
    if layout is None or layout.ps or _MODE in fixed:
        return {}
    how = Processes.CONTROLLER if layout.controller else Processes.CLIENT_PER_WORKER
    mode = next(one for one in BUILT_IN if one.processes is how and not one.uses_ps)
    needs = {name: text for name, text in mode.needs.items() if name not in fixed}
    return {_MODE: mode.name, **needs}


def field_of(group: FlagGroup, best: Candidate, make: Maker) -> Field:
    """The candidates of a group, the best of the groups before first."""
    found: dict[str, Candidate] = {best.key: best}
    dropped: list[Dropped] = []
    for choice in group.choices:
        settings = {**best.settings, **choice}
        try:
            candidate = make(settings)
        except (UsageError, DataError) as error:
            dropped.append(Dropped(name_of(settings), str(error)))
            continue
        known = found.setdefault(candidate.key, candidate)
        if known.settings != candidate.settings:
            other = "the flags as given" if known.name == AS_GIVEN else known.name
            dropped.append(Dropped(candidate.name, f"means the same as {other}", repeats=True))
    return Field(tuple(found.values()), tuple(dropped))


def default_space(
    fixed: Settings, situation: SearchSituation, allowed: Iterable[str], mode: str = DEFAULT
) -> Space:
    """The built-in space for a situation and the given flags; `mode` where these name none."""
    words = frozenset(allowed)
    mode = fixed.get(_MODE, mode)
    groups = []
    for name, dimensions in DIMENSIONS.items():
        found = _open(choices(dimensions, situation, words, mode), fixed)
        # Those that change least first: they are tried if not all can be.
        groups.append(FlagGroup(name, tuple(sorted(found, key=len))))
    return _space(fixed, groups, words)


def read_space(path: str, fixed: Settings, allowed: Iterable[str]) -> Space:
    """The space of a suite file, a group for each entry; given flags are not varied."""
    suite = check(load(path, "space"))
    if suite.on_cpu is not None:
        raise suite.entries[0].node.error("on_cpu is for sweeps; cnnbench tune takes no notice", 1)
    groups = [_group(entry, fixed) for entry in suite.entries]
    return _space(fixed, groups, frozenset(allowed))


def _group(entry: SuiteEntry, fixed: Settings) -> FlagGroup:
    not_here = {
        "command: allreduce": entry.command != "run",
        "launch": entry.launch is not None,
        "bounds": bool(entry.bounds),
        "max_batch_search": entry.search is not None,
    }
    for key, given in not_here.items():
        if given:
            raise entry.node.error(f"{entry.name}: cnnbench tune has no use for {key}")
    expanded, unset = expand(entry)
    if unset is not None:
        raise entry.node.error(f"{entry.name}: {unset}")
    for one in expanded:
        for name, text in one.flags.items():
            _check(entry, name, text, one.nodes[name].line)
    return FlagGroup(entry.name, tuple(_open(({}, *(one.flags for one in expanded)), fixed)))


def _check(entry: SuiteEntry, name: str, text: str, line: int) -> None:
    spec = SPECS.get(name)
    if spec is None or name not in TUNABLE:
        known = "is no flag of a run" if spec is None else "changes what is measured"
        raise entry.node.error(f"{entry.name}: {name} {known}; it cannot vary", line)
    try:
        value = spec.parse(text)
        spec.check(value)
        if isinstance(value, AllReduceSpec):
            value.check_names(all_reduce.names())
    except FlagError as error:
        raise entry.node.error(f"{entry.name}: {error}", line) from None


def _open(found: Iterable[Settings], fixed: Settings) -> list[Settings]:
    """The choices that do not contradict given flags, without such flags and duplicates."""
    kept = (
        {name: text for name, text in choice.items() if name not in fixed}
        for choice in found
        if all(fixed.get(name, text) == text for name, text in choice.items())
    )
    return [dict(items) for items in dict.fromkeys(tuple(choice.items()) for choice in kept)]


def _space(fixed: Settings, groups: Sequence[FlagGroup], allowed: frozenset[str]) -> Space:
    varied = tuple(group for group in groups if len(group.choices) > 1)
    if not varied:
        raise UsageError("nothing is left to vary: the flags that are given fix all of the space")
    return Space(fixed=fixed, groups=varied, allowed=allowed)


def by_reason(dropped: Iterable[Dropped]) -> Mapping[str, tuple[str, ...]]:
    """Names of dropped candidates by their reason."""
    found: dict[str, list[str]] = {}
    for one in dropped:
        found.setdefault(one.reason, []).append(one.name)
    return {reason: tuple(names) for reason, names in found.items()}
