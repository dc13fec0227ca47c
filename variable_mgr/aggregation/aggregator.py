"""From the gradients of every tower to the gradient that every tower applies.

columns      one logical variable each: None as zero, sparse apart from dense
stages       join small ones, pack, scale, send as 16 bits, defer by a step
all-reduce   by the algorithm for each size
inverses     in reverse order
"""

from __future__ import annotations

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.aggregation.pipeline import make_stages, run_through
from cnnbench.variable_mgr.aggregation.sparse import reduce_sparse
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.groups import groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.base import GradientPairs
from cnnbench.variable_mgr.gradients import DeviceGrads
from cnnbench.variable_mgr.spec import VariableMgrSpec


class Aggregator:
    """Aggregates the gradients of towers that hold a copy of every variable.

    Args:
      spec: the devices, the reduction and `spec.aggregation`.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """

    def __init__(self, spec: VariableMgrSpec) -> None:
        options = spec.aggregation
        if len(spec.devices) == 1:
            options = options.for_one_device()
        self._devices = spec.devices
        self._scale = spec.reduction_scale
        # A deferred gradient is kept for a step in a variable, which is dense.
        self._keep_sparse = not (options.sparse_to_dense or options.relaxed)
        # What is sent in 16 bits need not be widened before.
        self._compact = options.compact_dtype is not None
        self._stages = make_stages(options, spec.devices, spec.reduction_scale)
        self._reduce = Reducer(
            options.all_reduce,
            ReduceContext.of_towers(
                spec.devices,
                spec.cpu_device,
                add_on_cpu=spec.parameter_device == "cpu",
                network_topology=options.network_topology,
                share_memory=options.share_memory,
            ),
            groups_of(spec.devices, options.group_size),
            options.allreduce_merge_scope,
        )

    def __call__(self, device_grads: DeviceGrads) -> list[GradientPairs]:
        """Aggregates inside the traced step.

        Args:
          device_grads: device_grads[t][g] is the pair (gradient, variable) of tower t.

        Returns:
          For each tower its aggregated gradients, dense, each with the tower's own
          variable; in the order of `device_grads`, without the variables that no tower
          has a gradient for.

        Raises:
          ValueError: if the gradients do not fit the towers.
        """
        columns = gradients.columns(
            device_grads,
            self._devices,
            keep_sparse=self._keep_sparse,
            keep_dtype=self._compact,
        )
        dense = [column for column in columns if not column.sparse]
        reduced = run_through(
            self._stages,
            [[column.gradients[t] for column in dense] for t in range(len(self._devices))],
            self._reduce,
        )
        totals: dict[int, list[tf.Tensor]] = {
            id(column): [tensors[i] for tensors in reduced] for i, column in enumerate(dense)
        }
        for column in columns:
            if column.sparse:
                totals[id(column)] = reduce_sparse(column, self._devices, self._scale)
        return [
            [(totals[id(column)][t], column.variables[t]) for column in columns]
            for t in range(len(self._devices))
        ]
