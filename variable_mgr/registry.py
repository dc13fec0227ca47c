"""Registry of the modes of `--variable_update`: built-in modes, plug-in files and entry points."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from cnnbench.base import plugins
from cnnbench.base.registry import SpecRegistry
from cnnbench.errors import UsageError
from cnnbench.variable_mgr.modes import BUILT_IN, Mode

MODES = SpecRegistry(
    Mode,
    "manager",
    kind="mode",
    call="cnnbench.variable_mgr.register_mode(Mode(...))",
    flag="variable_update",
    group="cnnbench.variable_mgr",
)
"""All modes by name."""
MODES.update({mode.name: mode for mode in BUILT_IN})

register_mode = MODES.register
find_mode = MODES.find


def names() -> tuple[str, ...]:
    """Returns the names of all modes of --variable_update: built-in modes, then plug-ins'."""
    MODES.load_packages()
    return tuple(MODES)


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a plug-in file; returns the names of the modes that it registers."""
    return tuple(map(str, plugins.load_plugin_file(path)["mode"]))


class _ModeNames(Collection[str]):
    """Names of all modes, as the choices of a flag, including modes that plug-ins add later.

    If an entry point fails, its modes are missing in this collection. `find_mode` raises the error
    for an unknown name.
    """

    def __contains__(self, name: object) -> bool:
        return name in MODES or name in names()

    def __iter__(self) -> Iterator[str]:
        with contextlib.suppress(UsageError):
            MODES.load_packages()
        return iter(MODES)

    def __len__(self) -> int:
        return len(MODES)


NAMES = _ModeNames()
