"""Modes of --variable_update by name: built-in ones, plug-in files, entry points; no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnnbench.base import plugins
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr.modes import BUILT_IN, Mode

PLUGIN_FLAG = "variable_mgr_plugin"
ENTRY_POINT_GROUP = "cnnbench.variable_mgr"

# An old name of another mode, and what `cnnbench strategies` calls other rows and folders.
_RESERVED = ("horovod", "one_tower", "checkpoints", "logs")

_modes: dict[str, Mode] = {mode.name: mode for mode in BUILT_IN}


def register_mode(mode: Mode) -> None:
    """Makes a mode with a new name available to ``--variable_update``."""
    if not isinstance(mode, Mode):
        raise UsageError(f"register_mode takes a cnnbench.variable_mgr.Mode, not {mode!r}")
    if mode.name in _modes or mode.name in _RESERVED:
        raise UsageError(
            f"a mode {mode.name} of --variable_update is registered already; choose another name"
        )
    _modes[mode.name] = mode


def find(name: str) -> Mode:
    """The mode of that name; an unknown one loads installed entry points, then raises FlagError."""
    if name not in _modes:
        plugins.load_entry_points(ENTRY_POINT_GROUP)
    if name not in _modes:
        raise FlagError("variable_update", name, f"must be one of {', '.join(_modes)}")
    return _modes[name]


def names() -> tuple[str, ...]:
    """Names of all modes: the built-in ones, then those of plug-ins."""
    plugins.load_entry_points(ENTRY_POINT_GROUP)
    return tuple(_modes)


def load_plugin(path: str) -> tuple[str, ...]:
    """Names that a Python file registers by `register_mode`; see `plugins.load`."""
    return tuple(map(str, plugins.load(path, PLUGIN_FLAG)))


class _Names(Sequence[str]):
    """Names of all modes at the time of use, for the choices of a flag.

    An entry point that fails is left out of the list; looking up an unknown name raises its error.
    """

    def __contains__(self, name: object) -> bool:
        return name in _modes or name in names()

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __bool__(self) -> bool:
        return True

    def _all(self) -> tuple[str, ...]:
        try:
            return names()
        except UsageError:
            return tuple(_modes)


NAMES = _Names()


plugins.add_kind(
    plugins.Kind(
        flag=PLUGIN_FLAG,
        noun="variable manager",
        call="cnnbench.variable_mgr.register_mode(Mode(...))",
        table=lambda: _modes,
        prepare=lambda: None,  # imported with the package
    )
)
