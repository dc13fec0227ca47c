"""All-reduce algorithms, and --all_reduce_spec, which selects them. Does not import TensorFlow.

A new algorithm is one module in algorithms/ with one registration; see docs/all_reduce.md.
"""

from cnnbench.variable_mgr.all_reduce.check import check_all_reduce
from cnnbench.variable_mgr.all_reduce.context import (
    COMMUNICATION_HINTS,
    ReduceContext,
    cpus_for_additions,
    group_devices,
    is_gpu,
    process_of_device,
)
from cnnbench.variable_mgr.all_reduce.registry import (
    ALGORITHMS,
    Algorithm,
    cost_formulas,
    create,
    declarations,
    find,
    names,
    readers_of,
    register,
)
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES, LINE_BYTES
from cnnbench.variable_mgr.all_reduce.spec import (
    AlgorithmSpec,
    AllReduceSpec,
    SizeRange,
    parse_all_reduce_spec,
    single,
)

__all__ = [
    "ALGORITHMS",
    "COMMUNICATION_HINTS",
    "DTYPE_BYTES",
    "LINE_BYTES",
    "Algorithm",
    "AlgorithmSpec",
    "AllReduceSpec",
    "ReduceContext",
    "SizeRange",
    "check_all_reduce",
    "cost_formulas",
    "cpus_for_additions",
    "create",
    "declarations",
    "find",
    "group_devices",
    "is_gpu",
    "names",
    "parse_all_reduce_spec",
    "process_of_device",
    "readers_of",
    "register",
    "single",
]
