"""The registry of all-reduce algorithms. Module algorithms/<name>.py registers algorithm <name>.

Names of built-in algorithms are names of files, so listing the names imports no algorithm. The
modules import TensorFlow only in functions, so what they declare is known without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias

from cnnbench import arrays
from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import SpecRegistry
from cnnbench.errors import UsageError
from cnnbench.variable_mgr.all_reduce import algorithms
from cnnbench.variable_mgr.all_reduce.context import ReduceContext

FLAG = "all_reduce_spec"


def _wrong_sums(value: Sequence[Any], arguments: Sequence[Any]) -> str:
    tensors, _ = arguments[-2:]
    if len(value) != len(tensors):
        return f"a tensor for each of {len(tensors)} devices, not {len(value)}"
    sizes = interfaces.tensor_sizes(tensors[0])
    for tensor in value:
        if not interfaces.is_tensor(tensor) or interfaces.tensor_sizes(tensor) != sizes:
            wanted, found = map(interfaces.value_text, (tensors[0], tensor))
            return f"sums of {wanted}, not {found}"
    return ""


Sums = Annotated[list[arrays.Tensor], _wrong_sums]


class Algorithm(Protocol):
    """An all-reduce algorithm, which sums one tensor over the devices of a `ReduceContext`.

    An algorithm may have the attribute `runs_together`.
    """

    def __call__(self, tensors: Sequence[arrays.Tensor], index: int) -> Sums:
        """Sums the values of one tensor over all devices; returns the sum for every device.

        Devices that share a result get the same tensor object, so that later operations process it
        only once.

        Args:
          tensors: a dense value per device of the context, of one shape (any rank and
            size, zero elements too) and one float dtype.
          index: position of the tensor in the step, over which to rotate the load.
        """


def must_use_all_results(algorithm: Algorithm) -> bool:
    """Whether an algorithm's results must be used on all devices, which wait for each other.

    TensorFlow removes operations whose results are unused. In some algorithms, such as collectives,
    the operation on each device waits for the operations on the other devices. No such operation
    may be removed. These algorithms set the attribute `runs_together` to True. With other
    algorithms, callers may leave results unused.
    """
    return bool(getattr(algorithm, "runs_together", False))


Factory: TypeAlias = "Callable[[ReduceContext], Algorithm]"
"""Function that creates an algorithm; raises ValueError if it does not support the context."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """An algorithm, with the properties that it declares.

    Attributes:
      name: its name in specs.
      factory: its constructor.
      check: function that raises ValueError if the algorithm does not support the context. It is
        called before a run starts. If it is None, `factory` is called instead, so only algorithms
        whose constructor needs TensorFlow need it.
      reads: flags whose values in the context change what the algorithm does, such as
        "network_topology". For other algorithms, a notice says that these flags have no effect.
      tuned_on: kinds of devices, "cpu" and "gpu", on which ``cnnbench tune`` tries the algorithm.
      lossy: whether sums have larger rounding errors than additions in the dtype of the tensors.
        ``cnnbench tune`` then tries the algorithm only with --allow=precision.
      across_steps: whether the algorithm works if every process of a job runs its own step, and
        not if one process runs the steps of all processes.
      within_process: whether the algorithm works only within a process, so that it can only be the
        first of two levels.
    """

    name: str
    factory: Factory
    check: Callable[[ReduceContext], object] | None = None
    reads: tuple[str, ...] = ()
    tuned_on: tuple[str, ...] = ("cpu", "gpu")
    lossy: bool = False
    across_steps: bool = False
    within_process: bool = False

    def __post_init__(self) -> None:
        plugins.check_name("an all-reduce algorithm", self.name)
        results = {"factory": Callable[[Sequence[arrays.Tensor], int], Sums], "check": object}
        for attribute, result in results.items():
            function = getattr(self, attribute)
            if function is not None:
                checked = interfaces.with_checked_results(function, result, ("context",))
                object.__setattr__(self, attribute, checked)


ALGORITHMS = SpecRegistry(
    Registration,
    "factory",
    kind="all-reduce algorithm",
    call="cnnbench.variable_mgr.all_reduce.register(name)",
    flag=FLAG,
    group="cnnbench.all_reduce",
    own=algorithms.__name__,
)
"""The algorithms whose modules have been imported, by name."""

register = ALGORITHMS.register


def names(used: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the sorted names of all all-reduce algorithms, without importing the algorithms.

    Algorithms of installed packages are loaded only if one of the names in `used` is unknown.
    """
    own = plugins.submodule_names(algorithms)
    if not {*used} <= {*ALGORITHMS, *own}:
        ALGORITHMS.load_packages()
    return tuple(sorted({*ALGORITHMS, *own}))


def find(name: str) -> Registration | None:
    """Returns the algorithm `name`; None if there is none. TensorFlow is not imported."""
    if name not in ALGORITHMS and name in plugins.submodule_names(algorithms):
        importlib.import_module(f"{algorithms.__name__}.{name}")
    if name not in ALGORITHMS:
        ALGORITHMS.load_packages()
    return ALGORITHMS.get(name)


def declarations() -> dict[str, Registration]:
    """Returns all algorithms by name, sorted; see `find`."""
    found = {name: find(name) for name in names()}
    return {name: declared for name, declared in found.items() if declared is not None}


def readers_of(flag: str) -> frozenset[str]:
    """Returns the names of the algorithms that use the value of a flag (`Registration.reads`)."""
    return frozenset(name for name, declared in declarations().items() if flag in declared.reads)


def create(name: str, context: ReduceContext) -> Algorithm:
    """Creates the algorithm `name`; raises ValueError if it does not support the context."""
    declared = find(name)
    if declared is None:
        raise UsageError(f"no module registers an all-reduce algorithm {name!r}")
    if declared.check is not None:
        declared.check(context)
    return declared.factory(context)
