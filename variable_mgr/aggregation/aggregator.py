"""Aggregation of gradients for towers with copies of all variables.

Stages join, pack, scale, narrow and defer gradients; the all-reduce uses the algorithm for each
size; the inverses of the stages follow in reverse order. Sparse gradients are gathered instead of
added. Where workers run steps of their own, an `Aggregator` has the towers of its process.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.aggregation.pipeline import make_stages, run_through
from cnnbench.variable_mgr.all_reduce.algorithms.collective import Collective
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.gradients import Column
from cnnbench.variable_mgr.spec import VariableMgrSpec


class Aggregator:
    """Aggregates the gradients of towers that hold a copy of every variable."""

    def __init__(self, spec: VariableMgrSpec) -> None:
        options = spec.aggregation
        if spec.num_towers == 1:
            options = options.for_one_device()
        self._devices = spec.devices
        self._scale = spec.reduction_scale
        # A deferred gradient is kept for a step in a variable, which is dense.
        self._keep_sparse = not (options.sparse_to_dense or options.relaxed)
        # What is sent in 16 bits need not be widened before.
        self._compact = options.compact_dtype is not None
        self._stages = make_stages(options, spec.devices, spec.reduction_scale)
        context = ReduceContext.of_towers(
            spec.all_devices,
            spec.cpu_device,
            cpus=spec.cpu_devices,
            add_on_cpu=spec.parameter_device == "cpu",
            network_topology=options.network_topology,
            share_memory=options.share_memory,
            own=spec.devices,
            communication_hint=options.communication_hint,
        )
        self._reduce = Reducer(
            options.all_reduce,
            context,
            groups_of(spec.all_devices, options.group_size),
            options.allreduce_merge_scope,
        )
        self._gather = None if context.complete else Collective(context).gather

    def __call__(self, columns: Sequence[Column]) -> list[Column]:
        """Aggregated gradients, dense and float32, for each tower, inside the traced step.

        Variables keep their order; those that no tower has a gradient for are left out.
        """
        complete = gradients.complete(
            columns,
            self._devices,
            keep_sparse=self._keep_sparse,
            keep_dtype=self._compact,
        )
        # Slices whose number is unknown cannot be gathered.
        complete = [
            column
            if not column.sparse or self._gather is None or gradients.fit_together(column)
            else column.mapped(self._devices, gradients.dense)
            for column in complete
        ]
        dense = [column.gradients for column in complete if not column.sparse]
        totals = iter(run_through(self._stages, dense, self._reduce))
        return [
            column._replace(
                gradients=gradients.reduce_sparse(column, self._devices, self._scale, self._gather)
                if column.sparse
                else next(totals)
            )
            for column in complete
        ]
