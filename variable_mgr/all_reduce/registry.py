"""All-reduce algorithms; algorithms/<name>.py registers <name>, so that listing imports none."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.errors import BenchmarkError, UsageError
from cnnbench.variable_mgr.all_reduce import algorithms, limits

if TYPE_CHECKING:
    from cnnbench.variable_mgr.all_reduce.context import ReduceContext


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

_factories: dict[str, Factory] = {}


def register(name: str) -> Callable[[_Factory], _Factory]:
    """Decorator that registers the constructor of an algorithm as `name`."""

    def decorate(factory: _Factory) -> _Factory:
        plugins.check_name("an all-reduce algorithm", name)
        is_built_in = factory.__module__ == f"{algorithms.__name__}.{name}"
        if name in names() and (name in _factories or not is_built_in):
            raise UsageError(f"all-reduce algorithm {name!r} is already registered")
        _factories[name] = factory
        return factory

    return decorate


def names() -> tuple[str, ...]:
    """Names of all algorithms, sorted; imports none of them.

    Raises:
      BenchmarkError: the folder of the algorithms cannot be read.
    """
    (folder,) = algorithms.__path__
    try:
        # `pkgutil.iter_modules` takes an unreadable folder for an empty one.
        files = {path.stem for path in Path(folder).iterdir() if path.suffix == ".py"}
    except OSError as error:
        reason = f"{folder}: cannot be read: {error.strerror}"
        raise BenchmarkError(f"{reason}; reinstall cnnbench") from None
    return tuple(sorted((_factories.keys() | files) - {"__init__"}))


def create(name: str, context: ReduceContext) -> Algorithm:
    """Makes the algorithm `name`; raises ValueError if it cannot work with the context."""
    limits.check(name, context)
    if name not in _factories and name in names():
        importlib.import_module(f"{algorithms.__name__}.{name}")
    if name not in _factories:
        raise UsageError(f"no module registers an all-reduce algorithm {name!r}")
    return _factories[name](context)


plugins.add_kind(
    plugins.Kind(
        flag="all_reduce_spec",
        noun="all-reduce algorithm",
        call="cnnbench.variable_mgr.all_reduce.register(name)",
        table=lambda: _factories,
        prepare=lambda: None,  # those of cnnbench are found by their files
    )
)
