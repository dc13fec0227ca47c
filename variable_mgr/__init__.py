"""Placement of variables on devices, and aggregation of gradients.

`create` makes a manager from a spec. Managers do not depend on the driver, the flags or the
networks. Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from cnnbench.base import plugins
from cnnbench.base.rules import no_effect, refuse, refuse_any_value
from cnnbench.errors import UsageError
from cnnbench.variable_mgr.modes import Copies, Mode, Processes, Reduction
from cnnbench.variable_mgr.registry import load_plugin, names, register_mode
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec

if TYPE_CHECKING:
    from cnnbench.variable_mgr.base import VariableMgr

__all__ = [
    "Copies",
    "Mode",
    "Processes",
    "Reduction",
    "VariableLike",
    "VariableMgrSpec",
    "create",
    "load_plugin",
    "names",
    "no_effect",
    "refuse",
    "refuse_any_value",
    "register_mode",
]


def create(spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> VariableMgr:
    """Creates the variable manager for the mode in `spec`; it creates the variables later."""
    mode = spec.mode
    origin = plugins.plugin_of_object("mode", mode.name)
    with plugins.reporting_plugin_errors(UsageError, origin or ""):
        manager_class = mode.manager_class()
        if origin:
            _check_manager(mode, manager_class)
        return cast("VariableMgr", manager_class(spec, variables))


def _check_manager(mode: Mode, manager_class: type[Any]) -> None:
    # Imported late, because these modules load TensorFlow.
    from cnnbench.variable_mgr.base import VariableMgr
    from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
    from cnnbench.variable_mgr.strategies import (
        ParameterServerStrategyVariableMgr,
        StrategyVariableMgr,
    )

    for wanted, kind in (
        (True, VariableMgr),
        (mode.asynchronous, ParameterServerVariableMgr),
        (bool(mode.strategy), StrategyVariableMgr),
        (mode.processes is Processes.COORDINATOR, ParameterServerStrategyVariableMgr),
    ):
        if wanted and not issubclass(manager_class, kind):
            wrong = f"a subclass of {kind.__name__}, not {manager_class.__name__}"
            raise UsageError(f"the manager of mode {mode.name} must be {wrong}")
