"""Optimizers and schedules by name: built-in ones, plug-in files, entry points; no TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from cnnbench.base import plugins
from cnnbench.errors import FlagError, UsageError
from cnnbench.optimizers import builtin
from cnnbench.optimizers.schedules import BUILT_IN, ScheduleSpec
from cnnbench.optimizers.spec import Constant, OptimizerSpec


class _Declared(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def flags(self) -> Mapping[str, Constant]: ...


S = TypeVar("S", bound=_Declared)


class Registry(dict[str, S], Generic[S]):
    """Declarations by name, the values of a flag: those of cnnbench first, then of plug-ins.

    Attributes:
      constants: constants that are flags, by flag.
    """

    def __init__(self, flag: str, noun: str, kind: type[S], built_in: Iterable[S]) -> None:
        super().__init__({spec.name: spec for spec in built_in})
        self._flag, self._noun, self._kind = flag, noun, kind
        self.constants = {name: c for spec in self.values() for name, c in spec.flags.items()}
        call = f"cnnbench.optimizers.register_{noun}({kind.__name__}(...))"
        # Filled when this module is imported.
        plugins.add_kind(plugins.Kind(flag, noun, call, lambda: self, lambda: None))

    def register(self, spec: S) -> None:
        """Adds a declaration with a new name; its constants are those of `constants`."""
        if not isinstance(spec, self._kind):
            raise UsageError(f"{self._noun}: {spec!r} is no {self._kind.__name__}")
        if spec.name in self:
            raise UsageError(f"{self._noun} {spec.name} is registered already; choose another name")
        for flag in spec.flags:
            if flag not in self.constants:
                known = ", ".join(self.constants)
                raise UsageError(f"{self._noun} {spec.name}: no flag --{flag}; use {known}")
        self[spec.name] = spec

    def find(self, name: str) -> S:
        """The declaration of that name; an unknown one loads entry points, then FlagError."""
        if name not in self:
            plugins.load_entry_points(f"cnnbench.{self._noun}s")
        if name not in self:
            raise FlagError(self._flag, name, f"must be one of {', '.join(self)}")
        return self[name]

    def users(self, flag: str) -> str:
        """Names of those with a constant of this flag: "adam, adamw or lamb"."""
        *others, last = (spec.name for spec in self.values() if flag in spec.flags)
        return f"{', '.join(others)} or {last}" if others else last


def _modules() -> Iterable[OptimizerSpec]:
    for module in plugins.modules_of(builtin):
        yield importlib.import_module(f"{builtin.__name__}.{module}").OPTIMIZER


OPTIMIZERS = Registry("optimizer", "optimizer", OptimizerSpec, _modules())
"""Values of --optimizer."""
SCHEDULES = Registry("learning_rate_schedule", "schedule", ScheduleSpec, BUILT_IN)
"""Values of --learning_rate_schedule."""

register_optimizer = OPTIMIZERS.register
register_schedule = SCHEDULES.register
