"""Which flag values identify a run, so that equal runs are repetitions of one measurement."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cnnbench.flags.declare import ComparedBy, FlagSpec, RunPart
from cnnbench.flags.obsolete import OBSOLETE
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.records.codec import encode

_OF_RUNS = {**ACCEPTED}


@functools.cache
def _compared_flags() -> Mapping[str, FlagSpec]:
    """The flags of runs and of ``cnnbench allreduce``, which most commands do not need, by name."""
    from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS

    return {**{spec.name: spec for spec in ALL_REDUCE_FLAGS}, **_OF_RUNS}


def flags_compared_by(*ways: ComparedBy) -> tuple[str, ...]:
    """Returns the names of the flags that are compared in one of the given ways. For example,
    `ComparedBy.VALUE` selects the flags whose value must be equal in all repetitions of a run.
    """
    return tuple(name for name, spec in _compared_flags().items() if spec.compared_by in ways)


def is_machine_specific(spec: FlagSpec) -> bool:
    """Whether a flag names data, code, machines or devices, which differ between machines."""
    of_place = spec.compared_by in (ComparedBy.PRESENCE, ComparedBy.NUMBER)
    return of_place and not spec.part & RunPart.PROFILE


def identity_flags(values: Mapping[str, Any], *, of_places: bool = False) -> dict[str, Any]:
    """Selects the flag values that identify a run: two runs for which the result is equal are
    repetitions of each other. `values` are flag values by name, as records store them.

    If `of_places` is True, the result includes data, code, machines and devices, so that a run with
    a different data set is a different run. If it is False, runs on several machines can have the
    same identity. Unknown flags of older records are included.
    """
    known = _compared_flags()
    by_name = {}
    for name, value in values.items():
        spec = known.get(name)
        way = ComparedBy.VALUE if spec is None else spec.compared_by
        if way is ComparedBy.VALUE or (
            of_places and spec is not None and is_machine_specific(spec)
        ):
            by_name[name] = value
        elif way is ComparedBy.PRESENCE:
            by_name[name] = bool(value)
        elif way is ComparedBy.NUMBER:
            by_name[name] = len(str(value).split(",")) if value else 0
    return by_name


@functools.cache
def recorded_defaults() -> Mapping[str, Any]:
    """Returns the default values of all flags, as records store them. Records of earlier versions
    lack flags that were added later; these flags have the values of this mapping.
    """
    # Obsolete flags are included, because records of earlier versions contain them.
    return {
        spec.name: encode(spec.default if spec.before is None else spec.before)
        for spec in (*FLAGS, *OBSOLETE)
    }


def changed_flags(
    config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the flags of a record that differ from `defaults` (None: `recorded_defaults`). Types
    are compared, too: 0, 0.0 and False are equal in Python, but not in JSON. A flag that no longer
    exists differs unless its value is None.
    """
    usual = recorded_defaults() if defaults is None else defaults
    return {
        name: value
        for name, value in config.items()
        if (default := usual.get(name)) is not value
        and (default != value or type(default) is not type(value))
    }


def nondefault_identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of a record that identify the run and differ from their defaults. Together
    with the defaults, they determine the configuration of the run.
    """
    counted = identity_flags(config)
    return {name: value for name, value in changed_flags(config).items() if name in counted}
