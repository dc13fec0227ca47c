"""Creation of variable managers from specs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from cnnbench.base import plugins
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import Mode, Processes
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec

if TYPE_CHECKING:
    from cnnbench.variable_mgr.base import VariableMgr

# Not run_towers, within which all else of a step runs.
_GUARDED = (
    *("create_variables", "after_initialization", "after_restore", "read", "read_for_step"),
    *("preprocess_device_grads", "reduce_together", "get_gradients_to_apply"),
    *("append_apply_gradients", "after_updates", "updated", "savable_variables"),
)


def create(spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> VariableMgr:
    """Makes the manager that the spec names, without variables.

    What that of a plug-in raises, there or in its methods, is one line.

    Raises:
      FlagError: for an unknown manager or all-reduce algorithm, and a plug-in's mistake.
      UsageError: if two variables have the same name.
    """
    mode = spec.mode
    origin = plugins.origin(registry.PLUGIN_FLAG, mode.name)
    if origin is None:
        return cast("VariableMgr", mode.manager_class()(spec, variables))

    def failed(line: str) -> FlagError:
        return FlagError("variable_update", mode.name, f"{origin}: {line}")

    with plugins.code(failed, FlagError, BenchmarkError, *plugins.out_of_memory()):
        made = mode.manager_class()
        _check(mode, made)
        manager = cast("VariableMgr", made(spec, variables))
    for name in _GUARDED:
        setattr(manager, name, _guarded(getattr(manager, name), origin))
    return manager


def _check(mode: Mode, made: type[Any]) -> None:
    """Refuses a class that lacks a property declared in its mode's row."""
    # Late: they load TensorFlow.
    from cnnbench.variable_mgr.base import VariableMgr
    from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
    from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr
    from cnnbench.variable_mgr.strategies.parameter_server import ParameterServerStrategyVariableMgr

    for wanted, kind in (
        (True, VariableMgr),
        (mode.asynchronous, ParameterServerVariableMgr),
        (bool(mode.strategy), StrategyVariableMgr),
        (mode.processes is Processes.COORDINATOR, ParameterServerStrategyVariableMgr),
    ):
        if wanted and not issubclass(made, kind):
            raise UsageError(f"its row needs a subclass of {kind.__name__}, not {made.__name__}")


def _guarded(method: Callable[..., Any], origin: str) -> Callable[..., Any]:
    """A method that raises only errors of cnnbench and errors for lack of memory."""
    where = f"{origin}: {method.__qualname__}()"

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        passes: tuple[type[BaseException], ...] = (
            UsageError,
            BenchmarkError,
            *plugins.out_of_memory(),
        )
        with plugins.code(lambda line: UsageError(f"{where} raises {line}"), *passes):
            return method(*args, **named)

    return call
