"""--variable_update=parameter_server_strategy: variables on ps tasks, updates by a coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr

_T = TypeVar("_T")


class ParameterServerStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.ParameterServerStrategy`, which puts variables on the ps tasks in turn.

    There is one step for all workers, which TensorFlow runs on any that is free. So its only
    tower is on a device without a task: that of the worker that runs it.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if spec.job is None or not spec.ps_devices:
            raise UsageError("a ParameterServerStrategy needs a job with ps tasks")
        self._job = spec.job
        kind = "GPU" if spec.job.device == "gpu" else "CPU"
        own = dataclasses.replace(spec, devices=(f"/device:{kind}:0",), job=None)
        super().__init__(own, variables)

    def of_worker(self, devices: Sequence[str]) -> VariableMgr:
        """A manager of the same variables for towers on devices of one worker."""
        spec = dataclasses.replace(self._spec, devices=tuple(devices))
        return ParameterServerVariableMgr(spec, self._declared, self._facades)

    def run_towers(self, build: Callable[[int], _T], *, meeting: bool = False) -> list[_T]:
        """See `StrategyVariableMgr.run_towers`."""
        with _without_warnings():  # which ask for a coordinator; there is one
            return super().run_towers(build, meeting=meeting)

    def _make_strategy(self) -> tf.distribute.Strategy:
        return make.parameter_server(self._job)

    def _homes(self) -> Sequence[str]:
        return self._spec.ps_devices[:1]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
