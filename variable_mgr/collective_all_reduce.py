"""--variable_update=collective_all_reduce: every worker runs a step of its own towers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.per_tower import ReplicatedVariableMgr
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable
from cnnbench.variable_mgr.worker_group import WorkerGroup


@register("collective_all_reduce")
class CollectiveAllReduceVariableMgr(ReplicatedVariableMgr):
    """Like replicated, with TensorFlow's collectives between the towers of all workers.

    Every worker has an object of this class with the copies of its own towers. In a run of one
    process that is all there is.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        job = spec.job
        if job is not None and job.client_per_worker and job.num_workers > 1:
            self._workers = WorkerGroup(job.cpu_devices, job.cpu_device)

    def after_restore(self, slots: Iterable[TowerVariable] = ()) -> None:
        """See `VariableMgr.after_restore`; for the towers of this worker, see `share`."""
        for variable in (*self._facades.values(), *slots):
            variable.broadcast()

    def share(self, variables: Iterable[TowerVariable]) -> None:
        """See `VariableMgr.share`; copy 0 of worker 0 goes to all workers first."""
        shared = list(variables)
        if self._workers is not None and shared:
            own = [tower_variable.read(variable.primary) for variable in shared]
            for variable, value in zip(shared, self._workers.of_chief(own), strict=True):
                with tf.device(variable.primary.device):
                    variable.primary.assign(value, read_value=False)
        super().share(shared)
