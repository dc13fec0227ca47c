"""All-reduce algorithms: one file and one registration each.

Every module of this folder is imported on first use, so a new algorithm needs no
change elsewhere.
"""

from __future__ import annotations

from cnnbench.variable_mgr.all_reduce.registry import Algorithm, create, names, register

__all__ = ["Algorithm", "create", "names", "register"]
