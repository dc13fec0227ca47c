"""Base of the managers that use strategies of tf.distribute."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from cnnbench.variable_mgr import gradients, towers
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable

_T = TypeVar("_T")


class StrategyVariableMgr(VariableMgr):
    """A manager whose strategy creates variables, runs towers and reduces.

    Variables are named "v/<name>" and, from the second device on, "v/<name>/replica_<t>".
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        self._strategy = self._make_strategy()
        # The strategy's variable by the reference of each copy.
        self._distributed: dict[Any, Any] = {}
        # tf.distribute numbers replicas over the whole job.
        self._first = 0 if spec.job is None else spec.job.own_towers.start

    @abc.abstractmethod
    def _make_strategy(self) -> tf.distribute.Strategy:
        """The strategy, over the towers' devices."""

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy."""
        return self._strategy

    def run_towers(self, build: Callable[[int], _T], *, meeting: bool = False) -> list[_T]:
        """See `VariableMgr.run_towers`; uses `tf.distribute.Strategy.run` and `merge_call`."""
        results: dict[int, _T] = {}
        visits: dict[int, tuple[str, Any]] = {}
        merged: list[Any] = []

        def replica() -> None:
            context = tf.distribute.get_replica_context()
            tower = int(tf.get_static_value(context.replica_id_in_sync_group)) - self._first

            def meet(point: str, value: Any, merge: Callable[[list[Any]], Sequence[Any]]) -> Any:
                def join(_: Any) -> None:
                    of_towers = [visits[t] for t in sorted(visits)]
                    towers.check_points([point for point, _ in of_towers])
                    merged[:] = merge([value for _, value in of_towers])

                visits[tower] = (point, value)
                context.merge_call(join)
                return merged[tower]

            with towers.meeting_by(meet):
                results[tower] = build(tower)

        self._strategy.run(replica)
        return [results[tower] for tower in range(len(self._spec.devices))]

    def preprocess_device_grads(self, columns: Sequence[Column]) -> tuple[list[str], list[Column]]:
        """See `VariableMgr.preprocess_device_grads`; reduced by the strategy."""
        devices, reduced, _ = self._reduce(columns, [])
        return devices, reduced

    def _reduce(
        self, columns: Sequence[Column], beside: Sequence[tf.Tensor]
    ) -> tuple[list[str], list[Column], list[tf.Tensor]]:
        """The results of `preprocess_device_grads`, and the reduction of a tensor of each tower."""
        keep_sparse = not self._spec.aggregation.sparse_to_dense
        reduced = gradients.complete(columns, self._spec.devices, keep_sparse=keep_sparse)
        reduced = [
            column.mapped(self._spec.devices, _in_float32) if column.sparse else column
            for column in reduced
        ]
        if self._spec.num_towers > 1:
            first = Column(list(beside), reduced[0].variables)
            reduced = self._reduced([*reduced, first] if beside else reduced)
            beside = reduced.pop().gradients if beside else beside
        devices = list(dict.fromkeys(self._homes()))
        return devices, [_dense(column) for column in reduced], list(beside)

    def _homes(self) -> Sequence[str]:
        """Devices of the copies of a variable."""
        return self._spec.devices

    def _options(self) -> tf.distribute.experimental.CommunicationOptions | None:
        """Options of reductions; None for the strategy's defaults."""
        return None

    def _reduced(self, columns: Sequence[Column]) -> list[Column]:
        means = self._spec.reduction == "mean"
        op = tf.distribute.ReduceOp.MEAN if means else tf.distribute.ReduceOp.SUM
        with self._strategy.scope():
            pairs = [
                (self._of_replicas(column.gradients), self._distributed[column.variables[0].ref()])
                for column in columns
            ]
            totals = self._strategy.extended.batch_reduce_to(op, pairs, self._options())
        results = []
        for column, total in zip(columns, totals, strict=True):
            made = list(self._strategy.experimental_local_results(total))
            results.append(Column(made, column.variables[: len(made)]))
        return results

    def _of_replicas(self, values: Sequence[Any]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self._first]
        )

    def _create(self, variable: VariableLike) -> TowerVariable:
        with tf.device(self._spec.cpu_device):
            value = self._initial_value(variable)
        with self._strategy.scope():
            made = tf.Variable(value, trainable=variable.trainable, name=f"v/{variable.name}")
        copies = self._strategy.experimental_local_results(made)
        self._distributed.update({copy.ref(): made for copy in copies})
        return TowerVariable(variable.name, copies)


def _in_float32(slices: tf.IndexedSlices, variable: Any) -> tf.IndexedSlices:
    """Slices with values in float32: strategies average them, and cannot send bfloat16."""
    values = gradients.cast(slices.values, tf.float32)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


def _dense(column: Column) -> Column:
    homes = [variable.device for variable in column.variables]
    return column.mapped(homes, gradients.dense) if column.sparse else column
