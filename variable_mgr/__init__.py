"""Variable placement and gradient aggregation.

One frozen spec makes one manager (`create`); managers know neither the driver, nor flags, nor
networks. Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from cnnbench.variable_mgr.creation import create
from cnnbench.variable_mgr.modes import Copies, Mode, Processes, Reduction
from cnnbench.variable_mgr.registry import load_plugin, names, register_mode
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec

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
    "register_mode",
]
