"""Managers for the modes of --variable_update that use strategies of tf.distribute."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from cnnbench.base.job import Job
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import distribute, exchange, gradients
from cnnbench.variable_mgr.all_reduce.context import is_gpu
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import VariableGradients
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.towers import TowerVariable

_T = TypeVar("_T")


class StrategyVariableMgr(VariableMgr):
    """Base class of managers whose tf.distribute strategy creates variables and reduces gradients.

    The strategy also runs the towers. Variables are named "v/<name>" and, from the second device
    on, "v/<name>/replica_<t>".
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        self._strategy = self._make_strategy()
        # By the `ref()` of each copy of a variable: the strategy's distributed variable.
        self._distributed: dict[Any, Any] = {}
        # tf.distribute numbers the replicas of the whole job; this is the number of this worker's
        # first one.
        self._first = 0 if spec.job is None else spec.job.own_towers.start

    @abc.abstractmethod
    def _make_strategy(self) -> tf.distribute.Strategy:
        """Creates the strategy over the devices of the towers."""

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The tf.distribute strategy that this manager uses."""
        return self._strategy

    def run_towers(self, build: Callable[[int], _T], *, exchanges_values: bool = False) -> list[_T]:
        """Runs towers as replicas of the strategy; they exchange values by `merge_call`."""
        results: dict[int, _T] = {}
        visits: dict[int, tuple[str, Any]] = {}
        merged: list[Any] = []

        def replica() -> None:
            context = tf.distribute.get_replica_context()
            tower = int(tf.get_static_value(context.replica_id_in_sync_group)) - self._first

            def meet_by_merge_call(
                point: str, value: Any, merge: Callable[[list[Any]], Sequence[Any]]
            ) -> Any:
                def merge_values(_: Any) -> None:
                    of_towers = [visits[t] for t in sorted(visits)]
                    exchange.check_same_meeting_point([point for point, _ in of_towers])
                    merged[:] = merge([value for _, value in of_towers])

                visits[tower] = (point, value)
                context.merge_call(merge_values)
                return merged[tower]

            with exchange.set_rendezvous(meet_by_merge_call):
                results[tower] = build(tower)

        self._strategy.run(replica)
        return [results[tower] for tower in range(len(self._spec.devices))]

    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Aggregates the gradients of all towers with the tf.distribute strategy."""
        devices, reduced, _ = self._reduce_with_tensors(columns, [])
        return devices, reduced

    def _reduce_with_tensors(
        self, columns: Sequence[VariableGradients], tensor_by_tower: Sequence[tf.Tensor]
    ) -> tuple[list[str], list[VariableGradients], list[tf.Tensor]]:
        """Reduces gradients like `preprocess_device_grads`, together with one tensor per tower.

        The additional tensors are `tensor_by_tower`; their sums are the last result.
        """
        keep_sparse, own = not self._spec.aggregation.sparse_to_dense, self._spec.devices
        reduced = gradients.complete_gradients(columns, own, keep_sparse=keep_sparse)
        reduced = [c.map_gradients(own, _cast_slices) if c.is_sparse else c for c in reduced]
        if self._spec.num_towers > 1:
            first = VariableGradients(list(tensor_by_tower), reduced[0].variables)
            reduced = self._reduce_columns([*reduced, first] if tensor_by_tower else reduced)
            tensor_by_tower = reduced.pop().gradients if tensor_by_tower else tensor_by_tower
        devices = list(dict.fromkeys(self._copy_devices()))
        return devices, [_to_dense_column(column) for column in reduced], list(tensor_by_tower)

    def _copy_devices(self) -> Sequence[str]:
        """Returns the devices on which the strategy stores copies of a variable."""
        return self._spec.devices

    def _options(self) -> tf.distribute.experimental.CommunicationOptions | None:
        """Returns communication options for the strategy's reductions; None for the defaults."""
        return None

    def _reduce_columns(self, columns: Sequence[VariableGradients]) -> list[VariableGradients]:
        means = self._spec.reduction == "mean"
        op = tf.distribute.ReduceOp.MEAN if means else tf.distribute.ReduceOp.SUM
        with self._strategy.scope():
            variables = [self._distributed[column.variables[0].ref()] for column in columns]
            values = [self._per_replica(column.gradients) for column in columns]
            pairs = list(zip(values, variables, strict=True))
            totals = self._strategy.extended.batch_reduce_to(op, pairs, self._options())
        results = []
        for column, total in zip(columns, totals, strict=True):
            local_values = list(self._strategy.experimental_local_results(total))
            results.append(VariableGradients(local_values, column.variables[: len(local_values)]))
        return results

    def _per_replica(self, values: Sequence[Any]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self._first]
        )

    def _create(self, variable: VariableLike) -> TowerVariable:
        with tf.device(self._spec.cpu_device):
            value = self._initial_value(variable)
        with self._strategy.scope():
            name = f"v/{variable.name}"
            distributed = tf.Variable(value, trainable=variable.trainable, name=name)
        copies = self._strategy.experimental_local_results(distributed)
        self._distributed.update({copy.ref(): distributed for copy in copies})
        return TowerVariable(variable.name, copies)


def _cast_slices(slices: tf.IndexedSlices, variable: Any) -> tf.IndexedSlices:
    """Casts a sparse gradient to float32: strategies compute means and cannot send bfloat16."""
    values = gradients.cast(slices.values, tf.float32)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


def _to_dense_column(column: VariableGradients) -> VariableGradients:
    homes = [variable.device for variable in column.variables]
    return column.map_gradients(homes, gradients.to_dense) if column.is_sparse else column


class ParameterServerStrategyVariableMgr(StrategyVariableMgr):
    """Manager for `tf.distribute.ParameterServerStrategy`.

    The strategy places variables on the ps tasks in rotation.

    There is one traced step, which TensorFlow runs on any free worker. Therefore, the device string
    of its only tower contains no task. It means the device of the worker that runs the step.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if spec.job is None or not spec.ps_devices:
            raise UsageError("a ParameterServerStrategy needs a job with ps tasks")
        self._job = spec.job
        kind = "GPU" if spec.job.device == "gpu" else "CPU"
        own = dataclasses.replace(spec, devices=(f"/device:{kind}:0",), job=None)
        super().__init__(own, variables)

    def make_worker_manager(self, devices: Sequence[str]) -> VariableMgr:
        """Creates a manager of the same variables, for the towers of one worker only."""
        spec = dataclasses.replace(self._spec, devices=tuple(devices))
        return ParameterServerVariableMgr(spec, self._declared, self._facades)

    def run_towers(self, build: Callable[[int], _T], *, exchanges_values: bool = False) -> list[_T]:
        """Runs the only tower; see `StrategyVariableMgr.run_towers`."""
        # Without this context, TensorFlow would warn that there is no coordinator, although there
        # is one.
        with _quiet_logger():
            return super().run_towers(build, exchanges_values=exchanges_values)

    def _make_strategy(self) -> tf.distribute.Strategy:
        return distribute.connect_ps_strategy(self._job)

    def _copy_devices(self) -> Sequence[str]:
        return self._spec.ps_devices[:1]


@contextlib.contextmanager
def _quiet_logger() -> Iterator[None]:
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class MirroredStrategyVariableMgr(StrategyVariableMgr):
    """Manager for `tf.distribute.MirroredStrategy`."""

    def _make_strategy(self) -> tf.distribute.Strategy:
        return distribute.make_mirrored_strategy(self._spec.devices, self._spec.cross_device)

    def _options(self) -> tf.distribute.experimental.CommunicationOptions | None:
        spec = self._spec.cross_device
        if spec.ops not in distribute.COLLECTIVE:
            return None
        return distribute.communication_options(spec, self._spec.devices)


class CentralStorageStrategyVariableMgr(StrategyVariableMgr):
    """Manager for `CentralStorageStrategy`: variables are on the CPU, or on the only device."""

    def _make_strategy(self) -> tf.distribute.Strategy:
        devices = self._spec.devices
        distribute.refuse_wrong_devices(devices)
        with tf.init_scope():
            home = self._copy_devices()[0]
            return tf.distribute.experimental.CentralStorageStrategy(list(devices), home)

    def _copy_devices(self) -> Sequence[str]:
        return self._spec.devices if len(self._spec.devices) == 1 else [self._spec.cpu_device]


class OneDeviceStrategyVariableMgr(StrategyVariableMgr):
    """Manager for `tf.distribute.OneDeviceStrategy`."""

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if len(spec.devices) > 1:
            raise FlagError("variable_update", spec.mode.name, "needs --num_gpus=1")
        super().__init__(spec, variables)

    def _make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.OneDeviceStrategy(self._spec.devices[0])


class MultiWorkerMirroredStrategyVariableMgr(StrategyVariableMgr):
    """Manager for `tf.distribute.MultiWorkerMirroredStrategy`.

    A worker stores the copies of its own towers.
    """

    def reduce_gradients_and_sum(
        self, columns: Sequence[VariableGradients], sums: Sequence[tf.Tensor]
    ) -> tuple[list[str], list[VariableGradients], list[tf.Tensor]]:
        """Reduces gradients, and sums scalars over workers, in one collective operation."""
        if self.workers is None:
            return super().reduce_gradients_and_sum(columns, sums)
        own, *other_devices = self._spec.devices
        with tf.device(own):
            # If the strategy computes means, they are multiplied by the number of towers to get
            # sums.
            scale = self._spec.num_towers if self._spec.reduction == "mean" else 1
            of_towers = [tf.stack(sums) * float(scale)]
        for device in other_devices:
            with tf.device(device):
                of_towers.append(tf.zeros([len(sums)]))
        devices, reduced, totals = self._reduce_with_tensors(columns, of_towers)
        return devices, reduced, tf.unstack(totals[0], len(sums))

    def _make_strategy(self) -> tf.distribute.Strategy:
        self._spec.cross_device.check_devices(self._spec.devices)
        devices = self._spec.devices
        kind = "gpu" if is_gpu(devices[0]) else "cpu"
        alone = Job(towers_per_worker=len(devices), device=kind)
        return distribute.make_worker_strategy(self._spec.job or alone)

    def _options(self) -> tf.distribute.experimental.CommunicationOptions:
        return distribute.communication_options(self._spec.cross_device, self._spec.devices)
