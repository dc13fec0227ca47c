"""--variable_update=mirrored_strategy: a copy of every variable per device, by TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr
from cnnbench.variable_mgr.strategies.spec import COLLECTIVE


class MirroredStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.MirroredStrategy`.

    Raises:
      FlagError: the cross-device operations do not work on the devices.
      UsageError: see `make.mirrored`.
    """

    def _make_strategy(self) -> tf.distribute.Strategy:
        return make.mirrored(self._spec.devices, self._spec.cross_device)

    def _homes(self) -> Sequence[str]:
        return self._spec.devices

    def _options(self) -> tf.distribute.experimental.CommunicationOptions | None:
        spec = self._spec.cross_device
        return make.communication(spec, self._spec.devices) if spec.ops in COLLECTIVE else None
