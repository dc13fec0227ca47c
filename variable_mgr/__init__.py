"""Variable placement and gradient aggregation.

One frozen spec makes one manager (`create`); managers know neither the driver,
nor flags, nor networks. Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from cnnbench.variable_mgr.registry import create, names, register
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec

__all__ = ["VariableLike", "VariableMgrSpec", "create", "names", "register"]
