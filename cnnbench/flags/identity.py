"""Which runs are the same by their flags: the one definition, for the judge and for campaigns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnnbench.flags.declare import Counted, Role
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.flags.params import ACCEPTED

_ROLES = {spec.name: spec.role for spec in (*ALL_REDUCE_FLAGS, *ACCEPTED.values())}


def having(*counted: Counted) -> tuple[str, ...]:
    """Names of the flags of which that much belongs to the identity of a run."""
    return tuple(name for name, role in _ROLES.items() if role.counted in counted)


def identity(values: Mapping[str, Any], *, of_places: bool = False) -> dict[str, Any]:
    """What identifies a run, from values of its flags by name, as stored in records.

    With `of_places` also which data, code, machines and devices it uses: on one machine, others are
    another run. Without, runs on several machines may agree. A flag that this version does not
    know, of an old record, counts.
    """
    found = {}
    for name, value in values.items():
        role = _ROLES.get(name, Role.IDENTITY)
        counted = _COUNTED[role]
        if counted is Counted.VALUE or (of_places and role in _PLACES):
            found[name] = value
        elif counted is Counted.PRESENCE:
            found[name] = bool(value)
        elif counted is Counted.NUMBER:
            found[name] = len(str(value).split(",")) if value else 0
    return found


_COUNTED = {role: role.counted for role in Role}
_PLACES = (Role.PLUGIN, Role.PLACE, Role.ITEMS)
