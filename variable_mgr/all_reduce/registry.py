"""All-reduce algorithms; algorithms/<name>.py registers <name>, so that listing imports none."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.errors import UsageError
from cnnbench.variable_mgr.all_reduce import algorithms, limits

if TYPE_CHECKING:
    from cnnbench.variable_mgr.all_reduce.context import ReduceContext
    from cnnbench.variable_mgr.all_reduce.cost import Formula


class Algorithm(Protocol):
    """Sums one tensor over the devices of a context; may have the attribute `runs_together`."""

    def __call__(self, tensors: Sequence[Any], index: int) -> list[Any]:
        """Sums the values of one tensor and gives every device the sum, of the same shape.

        Devices that are given the same tensor share the very same object, so that later operations
        apply to it once.

        Args:
          tensors: a dense value per device of the context, of one shape (any rank and
            size, zero elements too) and one float dtype.
          index: position of the tensor in the step, over which to rotate the load.
        """


def runs_together(algorithm: Algorithm) -> bool:
    """Whether the results of all devices must be used for any of them to arrive.

    TensorFlow prunes an operation whose result is unused. An algorithm with an operation on each
    device that waits for those on the others, such as a collective, must not lose any: it sets the
    attribute `runs_together` to True. Otherwise callers may leave results unused.
    """
    return bool(getattr(algorithm, "runs_together", False))


# Raises ValueError with the reason if the algorithm cannot work in the context.
Factory: TypeAlias = "Callable[[ReduceContext], Algorithm]"
_Factory = TypeVar("_Factory", bound=Factory)

_registered: dict[str, tuple[Factory, Formula | None]] = {}


def register(name: str, cost: Formula | None = None) -> Callable[[_Factory], _Factory]:
    """Decorator that registers the constructor of an algorithm as `name`.

    Args:
      cost: for ``cnnbench allreduce --predict``; None where it has no prediction, or for those in
        `cnnbench.lab.predict.formulas`.
    """

    def decorate(factory: _Factory) -> _Factory:
        plugins.check_name("an all-reduce algorithm", name)
        is_built_in = factory.__module__ == f"{algorithms.__name__}.{name}"
        known, _ = _registered.get(name, (factory if is_built_in else None, None))
        if name in names() and known is not factory:
            raise UsageError(f"all-reduce algorithm {name!r} is already registered")
        _registered[name] = factory, cost
        return factory

    return decorate


def names() -> tuple[str, ...]:
    """Names of all algorithms, sorted; imports none of them."""
    return tuple(sorted({*_registered, *plugins.modules_of(algorithms)}))


def create(name: str, context: ReduceContext) -> Algorithm:
    """Makes the algorithm `name`; raises ValueError if it cannot work with the context."""
    limits.check(name, context)
    factory, _ = _find(name)
    return factory(context)


def costs(but: Container[str] = ()) -> dict[str, Formula]:
    """Costs by name of the algorithms that are registered with one; imports them, but for some."""
    found = {name: _find(name)[1] for name in names() if name not in but}
    return {name: cost for name, cost in found.items() if cost is not None}


def _find(name: str) -> tuple[Factory, Formula | None]:
    if name not in _registered and name in names():
        importlib.import_module(f"{algorithms.__name__}.{name}")
    if name not in _registered:
        raise UsageError(f"no module registers an all-reduce algorithm {name!r}")
    return _registered[name]


plugins.add_kind(
    plugins.Kind(
        flag="all_reduce_spec",
        noun="all-reduce algorithm",
        call="cnnbench.variable_mgr.all_reduce.register(name)",
        table=lambda: _registered,
        prepare=lambda: None,  # those of cnnbench are found by their files
    )
)
