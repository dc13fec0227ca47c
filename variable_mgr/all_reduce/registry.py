"""All-reduce algorithms by the name that --all_reduce_spec gives them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cnnbench.errors import FlagError, UsageError

if TYPE_CHECKING:
    from cnnbench.variable_mgr.spec import VariableMgrSpec

_DEFAULT = "copy"


class Algorithm(Protocol):
    """Sums tensors over towers."""

    def __call__(
        self, tower_tensors: Sequence[Sequence[Any]], devices: Sequence[str]
    ) -> list[list[Any]]:
        """Sums each tensor over all towers and hands the sum to every tower.

        Args:
          tower_tensors: tower_tensors[t][i] is tensor i of tower t, dense; dtype
            and shape of tensor i are the same in all towers, of which there are
            at least two.
          devices: the towers' devices, in the same order.

        Returns:
          sums[t][i] is what tower t gets. Towers that are given the same tensor
          share the very same object, so that what follows is done to it once.
        """


Factory: TypeAlias = "Callable[[VariableMgrSpec], Algorithm]"

_factories: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Decorates what makes an algorithm from a spec, to be --all_reduce_spec=`name`.

    Raises:
      UsageError: if the name is taken.
    """

    def decorate(factory: Factory) -> Factory:
        if _factories.setdefault(name, factory) is not factory:
            raise UsageError(f"all-reduce algorithm {name!r} is already registered")
        return factory

    return decorate


def names() -> tuple[str, ...]:
    """The registered names, sorted."""
    _load_all()
    return tuple(sorted(_factories))


def create(spec: VariableMgrSpec) -> Algorithm:
    """The algorithm that the spec asks for; copying to one device without --all_reduce_spec.

    Raises:
      FlagError: for an unknown algorithm.
    """
    _load_all()
    name = spec.all_reduce_spec or _DEFAULT
    if name not in _factories:
        raise FlagError("all_reduce_spec", name, f"must be one of {', '.join(names())}")
    return _factories[name](spec)


def _load_all() -> None:
    package = importlib.import_module("cnnbench.variable_mgr.all_reduce")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
