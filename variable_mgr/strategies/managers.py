"""Managers of the strategies of tf.distribute."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr.all_reduce.context import is_gpu
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr
from cnnbench.variable_mgr.strategies.spec import COLLECTIVE

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


class MirroredStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.MirroredStrategy`."""

    def _make_strategy(self) -> tf.distribute.Strategy:
        return make.mirrored(self._spec.devices, self._spec.cross_device)

    def _options(self) -> tf.distribute.experimental.CommunicationOptions | None:
        spec = self._spec.cross_device
        return make.communication(spec, self._spec.devices) if spec.ops in COLLECTIVE else None


class CentralStorageStrategyVariableMgr(StrategyVariableMgr):
    """`CentralStorageStrategy`; variables are on the host, or on the only device."""

    def _make_strategy(self) -> tf.distribute.Strategy:
        devices = self._spec.devices
        make.check_devices(devices)
        with tf.init_scope():
            return tf.distribute.experimental.CentralStorageStrategy(
                list(devices), self._homes()[0]
            )

    def _homes(self) -> Sequence[str]:
        return self._spec.devices if len(self._spec.devices) == 1 else [self._spec.cpu_device]


class OneDeviceStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.OneDeviceStrategy`."""

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if len(spec.devices) > 1:
            raise FlagError("variable_update", spec.variable_update, "needs --num_gpus=1")
        super().__init__(spec, variables)

    def _make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.OneDeviceStrategy(self._spec.devices[0])


class MultiWorkerMirroredStrategyVariableMgr(StrategyVariableMgr):
    """`tf.distribute.MultiWorkerMirroredStrategy`; a worker has the copies of its own towers."""

    def reduce_together(
        self, columns: Sequence[Column], sums: Sequence[tf.Tensor]
    ) -> tuple[list[str], list[Column], list[tf.Tensor]]:
        """See `VariableMgr.reduce_together`; all in the collective of the gradients."""
        if self.workers is None:
            return super().reduce_together(columns, sums)
        own, *others = self._spec.devices
        with tf.device(own):
            # Scaled here, because the reduction of gradients may be a mean over towers.
            scale = self._spec.num_towers if self._spec.reduction == "mean" else 1
            of_towers = [tf.stack(sums) * float(scale)]
        for device in others:
            with tf.device(device):
                of_towers.append(tf.zeros([len(sums)]))
        devices, reduced, totals = self._reduce(columns, of_towers)
        return devices, reduced, tf.unstack(totals[0], len(sums))

    def _make_strategy(self) -> tf.distribute.Strategy:
        self._spec.cross_device.check(self._spec.devices)
        devices = self._spec.devices
        kind = "gpu" if is_gpu(devices[0]) else "cpu"
        alone = Job(towers_per_worker=len(devices), device=kind)
        return make.multi_worker(self._spec.job or alone)

    def _options(self) -> tf.distribute.experimental.CommunicationOptions:
        return make.communication(self._spec.cross_device, self._spec.devices)
