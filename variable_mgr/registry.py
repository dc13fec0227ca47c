"""Variable managers by the name that --variable_update gives them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cnnbench.errors import FlagError, UsageError

if TYPE_CHECKING:
    from cnnbench.variable_mgr.base import VariableMgr
    from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec

_Class = TypeVar("_Class", bound="type[VariableMgr]")

# Imported on first use, because they need TensorFlow and this module does not.
_BUILT_IN = (
    *("collective_all_reduce", "distributed_replicated", "parameter_server", "per_tower"),
    *("strategies.mirrored", "strategies.central_storage", "strategies.one_device"),
    *("strategies.multi_worker_mirrored", "strategies.parameter_server"),
)

_managers: dict[str, type[VariableMgr]] = {}


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator that makes a manager available as --variable_update=`name`.

    Raises:
      UsageError: if another class already has that name.
    """

    def decorate(cls: _Class) -> _Class:
        known = _managers.get(name)
        if known is not None and known is not cls:
            raise UsageError(f"variable manager {name!r} is already registered as {known.__name__}")
        _managers[name] = cls
        return cls

    return decorate


def names() -> tuple[str, ...]:
    """The registered names, sorted."""
    _load_built_in()
    return tuple(sorted(_managers))


def create(spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> VariableMgr:
    """Makes the manager that the spec names; it holds no variables yet.

    Args:
      spec: the run's devices and policies.
      variables: everything the network declares, in creation order.

    Raises:
      FlagError: for an unknown manager or all-reduce algorithm.
      UsageError: if two variables have the same name.
    """
    _load_built_in()
    if spec.variable_update not in _managers:
        raise FlagError(
            "variable_update", spec.variable_update, f"must be one of {', '.join(names())}"
        )
    return _managers[spec.variable_update](spec, variables)


def _load_built_in() -> None:
    for module in _BUILT_IN:
        importlib.import_module(f"cnnbench.variable_mgr.{module}")
