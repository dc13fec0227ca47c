"""Registers optimizers and learning-rate schedules by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from cnnbench.base import plugins
from cnnbench.base.registry import SpecRegistry
from cnnbench.base.text import enumeration
from cnnbench.errors import UsageError, text_of
from cnnbench.optimizers import builtin
from cnnbench.optimizers.schedules import BUILT_IN, ScheduleSpec
from cnnbench.optimizers.spec import Constant, OptimizerSpec


class _DeclaresFlags(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def flags(self) -> Mapping[str, Constant]: ...


D = TypeVar("D", bound=_DeclaresFlags)


class DeclarationRegistry(SpecRegistry[D]):
    """Registry of optimizers or schedules by name, which are the values of a flag (--optimizer).

    cnnbench's own declarations come before those of plug-ins.

    Attributes:
      check_flag: function of the name and the constant of a new flag, which raises UsageError if
        the flag cannot be added. `cnnbench.flags` sets this function.
    """

    def __init__(self, flag: str, spec: type[D], work: str, built_in: Iterable[D]) -> None:
        noun = flag.rpartition("_")[2]  # For example, "schedule".
        call = f"cnnbench.optimizers.register_{noun}({spec.__name__}(...))"
        super().__init__(spec, work, kind=noun, call=call, flag=flag, group=f"cnnbench.{noun}s")
        self.update({spec.name: spec for spec in built_in})
        self._own_flags = frozenset(self.constants)
        self.check_flag: Callable[[str, Constant], None] = lambda name, constant: None

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants of all registered optimizers or schedules, by the names of their flags."""
        return {name: c for spec in self.values() for name, c in spec.flags.items()}

    @property
    def plugin_constants(self) -> dict[str, Constant]:
        """The constants that plug-ins have added, by the names of their flags."""
        return {name: c for name, c in self.constants.items() if name not in self._own_flags}

    def add(self, name: str, value: D, shown: str = "") -> None:
        """Registers an optimizer or schedule under a new name, with the flags of its constants."""
        if name not in self:
            self._check_flags(value)
        super().add(name, value, shown)

    def _check_flags(self, spec: D) -> None:
        known = self.constants
        for flag, constant in spec.flags.items():
            if known.get(flag) is not constant:
                if flag in known:
                    shared = f"{self.kind.upper()}S.constants[{flag!r}]"
                    reason = f"--{flag} exists; use {shared}, or another name"
                    raise UsageError(f"{self.kind} {spec.name}: {reason}")
                try:
                    self.check_flag(flag, constant)
                except UsageError as error:
                    raise UsageError(f"{self.kind} {spec.name}: {text_of(error)}") from None

    def users_text(self, flag: str) -> str:
        """Lists the optimizers or schedules with a constant of this flag: "adam, adamw or lamb"."""
        return enumeration(spec.name for spec in self.values() if flag in spec.flags)


def _built_in() -> Iterable[OptimizerSpec]:
    for module in plugins.submodule_names(builtin):
        yield importlib.import_module(f"{builtin.__name__}.{module}").OPTIMIZER


OPTIMIZERS = DeclarationRegistry("optimizer", OptimizerSpec, "update", _built_in())
"""Values of --optimizer."""
SCHEDULES = DeclarationRegistry("learning_rate_schedule", ScheduleSpec, "make", BUILT_IN)
"""Values of --learning_rate_schedule."""

register_optimizer = OPTIMIZERS.register
register_schedule = SCHEDULES.register
