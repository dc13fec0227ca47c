"""--variable_update=one_device_strategy: everything on one device."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr


class OneDeviceStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.OneDeviceStrategy`.

    Raises:
      FlagError: several devices.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if len(spec.devices) > 1:
            raise FlagError("variable_update", spec.variable_update, "needs --num_gpus=1")
        super().__init__(spec, variables)

    def _make_strategy(self) -> tf.distribute.Strategy:
        return make.one_device(self._spec.devices[0])

    def _homes(self) -> Sequence[str]:
        return self._spec.devices
