"""All-reduce algorithms, and --all_reduce_spec, which selects them. Does not import TensorFlow.

A new algorithm is one module in algorithms/ with one registration; see docs/all_reduce.md.
"""

from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import Algorithm, create, names, register
from cnnbench.variable_mgr.all_reduce.spec import (
    AlgorithmSpec,
    AllReduceSpec,
    SizeRange,
    parse_all_reduce_spec,
    single,
)

__all__ = [
    "Algorithm",
    "AlgorithmSpec",
    "AllReduceSpec",
    "ReduceContext",
    "SizeRange",
    "create",
    "names",
    "parse_all_reduce_spec",
    "register",
    "single",
]
