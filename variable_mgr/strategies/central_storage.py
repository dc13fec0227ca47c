"""--variable_update=central_storage_strategy: one copy of every variable, on one device."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr


class CentralStorageStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.experimental.CentralStorageStrategy`.

    As TensorFlow chooses by itself, variables are on the host, or on the only device.
    """

    def _make_strategy(self) -> tf.distribute.Strategy:
        return make.central_storage(self._spec.devices, self._homes()[0])

    def _homes(self) -> Sequence[str]:
        return self._spec.devices if len(self._spec.devices) == 1 else [self._spec.cpu_device]
