"""--variable_update=multi_worker_mirrored_strategy: a step in every worker, by TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.runtime.job import Job
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr


@register("multi_worker_mirrored_strategy")
class MultiWorkerMirroredStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.MultiWorkerMirroredStrategy`, in one process or in one of several.

    Every worker has an object of this class with the copies of its own towers.

    Raises:
      FlagError: other devices than the strategy takes, or operations that do not work on them.
      UsageError: see `make.multi_worker`.
    """

    def each_tower_has_variables(self) -> bool:
        """See `VariableMgr.each_tower_has_variables`."""
        return True

    def _make_strategy(self) -> tf.distribute.Strategy:
        self._spec.cross_device.check(self._spec.devices)
        return make.multi_worker(self._spec.job or _alone(self._spec.devices))

    def _homes(self) -> Sequence[str]:
        return self._spec.devices

    def _options(self) -> tf.distribute.experimental.CommunicationOptions:
        return make.communication(self._spec.cross_device)


def _alone(devices: Sequence[str]) -> Job:
    """A job of one process with so many towers."""
    kind = "gpu" if "/device:GPU:" in devices[0] else "cpu"
    return Job(towers_per_worker=len(devices), device=kind)
