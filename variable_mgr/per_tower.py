"""Managers for the modes of --variable_update with a copy of every variable per tower.

Gradients pass through stages that join, pack, scale, compact or defer them. Then the all-reduce
adds them, with an algorithm that depends on the tensor size. Then the inverses of the stages run in
reverse order. Sparse gradients are gathered instead of added. If each worker runs its own step, a
manager contains only the towers of its process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr import gradients, towers
from cnnbench.variable_mgr.all_reduce.algorithms.collective import Collective
from cnnbench.variable_mgr.all_reduce.context import (
    ReduceContext,
    cpus_for_additions,
    group_devices,
)
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer
from cnnbench.variable_mgr.base import GradientPairs, OptimizerLike, VariableMgr
from cnnbench.variable_mgr.gradients import Gradient, VariableGradients
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.stages import make_stages, reduce_through_stages
from cnnbench.variable_mgr.towers import TowerVariable


class PerTowerVariableMgr(VariableMgr):
    """Stores copy t of a variable on the device of tower t, with the name "v<t>/<name>".

    Every tower applies gradients to its own copies.
    """

    def _create(self, variable: VariableLike) -> TowerVariable:
        copies = []
        value = None
        for tower, device in enumerate(self._spec.devices):
            if value is None or not self.replicas_in_sync:
                with tf.device(self._spec.cpu_device):
                    value = self._initial_value(variable, 0 if self.replicas_in_sync else tower)
            name = f"v{tower}/{variable.name}"
            with tf.device(device):
                copies.append(tf.Variable(value, trainable=variable.trainable, name=name))
        return TowerVariable(variable.name, copies)


class ReplicatedVariableMgr(PerTowerVariableMgr):
    """All towers start with equal variables, aggregate gradients and apply the same update.

    Used for `replicated`, `distributed_all_reduce` and `collective_all_reduce`. In
    `collective_all_reduce`, each worker has its own manager, with the copies of its own towers.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        options = spec.aggregation
        if spec.num_towers == 1:  # A single tower sends nothing.
            options = dataclasses.replace(
                options,
                gradient_repacking=0,
                compact_dtype=None,
                agg_small_grads_max_bytes=0,
                gradient_bucket_bytes=0,
            )
        # Deferred gradients are stored in dense variables until the next step, so sparse gradients
        # become dense.
        self._keep_sparse = not (options.sparse_to_dense or options.applies_gradients_late)
        # If gradients are sent in 16 bits, they are not cast to float32 before.
        self._compact = options.compact_dtype is not None
        self._stages = make_stages(options, spec.devices, spec.reduction_scale)
        context = ReduceContext(
            devices=spec.all_devices,
            cpu_devices=cpus_for_additions(spec.all_devices, spec.cpu_devices, spec.cpu_device),
            cpu_device=spec.cpu_device if spec.parameter_device == "cpu" else None,
            network_topology=options.network_topology,
            share_memory=options.share_memory,
            own=spec.devices,
            communication_hint=options.communication_hint,
            shared_cards=options.shared_cards,
        )
        groups = group_devices(spec.all_devices, options.group_size)
        self._reduce = AllReducer(
            options.all_reduce, context, groups, options.allreduce_merge_scope
        )
        self._gather = None if context.all_devices_are_own else Collective(context).gather

    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Aggregates gradients with the all-reduce and packing of `VariableMgrSpec.aggregation`."""
        devices = self._spec.devices
        complete = gradients.complete_gradients(
            columns, devices, keep_sparse=self._keep_sparse, keep_dtype=self._compact
        )
        for index, column in enumerate(complete):
            # Collectives need static shapes to gather sparse gradients; other sparse gradients
            # become dense.
            if column.is_sparse and self._gather and not gradients.slices_can_be_gathered(column):
                complete[index] = column.map_gradients(devices, gradients.to_dense)
        dense = [column.gradients for column in complete if not column.is_sparse]
        totals = iter(reduce_through_stages(self._stages, dense, self._reduce))
        reduced = []
        for column in complete:
            if column.is_sparse:
                scale = self._spec.reduction_scale
                sums = gradients.reduce_sparse(column, devices, scale, self._gather)
            else:
                sums = next(totals)
            reduced.append(column._replace(gradients=sums))
        return list(devices), reduced


class IndependentVariableMgr(PerTowerVariableMgr):
    """Keeps towers independent: they start with different variables and never communicate."""

    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Returns each tower's own gradients. A tower without a gradient skips its update."""
        devices = self._spec.devices
        gradients.check_towers_complete(columns, devices)
        return list(devices), [c.map_gradients(devices, _to_dense_or_none) for c in columns]


def _to_dense_or_none(gradient: Gradient, variable: tf.Variable) -> tf.Tensor | None:
    return None if gradient is None else gradients.to_dense(gradient, variable)


class DistributedReplicatedVariableMgr(PerTowerVariableMgr):
    """Stores a copy of each variable per tower, and a shadow copy of trained variables on ps tasks.

    The copies of tower t are named "v<t>/<name>", and the shadow copies "shadow/<name>". Gradients
    are added on the device of the shadow and applied to the shadow. Then its new value is copied to
    every tower, so that the next step needs no remote reads. Each tower has its own batch norm
    moments. As in tf_cnn_benchmarks, checkpoints contain the shadows under the names of the copies.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        self._place = spec.variable_device_chooser()
        self._shadows: dict[str, TowerVariable] = {}
        self._name_of: dict[Any, str] = {}

    def updated(self, name: str) -> TowerVariable:
        """Returns the copies that the optimizer updates: a trained variable's shadow copy."""
        return self._shadows.get(name) or super().updated(name)

    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Sums each gradient on the device of the shadow copy, where the optimizer applies it."""
        reduced = gradients.reduce_where_updated(
            columns,
            self._spec,
            lambda column: self._shadows[self._name_of[column.variables[0].ref()]].primary,
        )
        return [self._spec.variable_devices[0]], reduced

    def _apply_gradients(
        self, optimizer: OptimizerLike, pairs: GradientPairs, device: str, learning_rate: tf.Tensor
    ) -> list[Any]:
        ops = super()._apply_gradients(optimizer, pairs, device, learning_rate)
        # A copy from a shadow copy must read the updated value; tf.function orders the two.
        for _, shadow in pairs:
            ops += self._copy_shadow(shadow)
        return ops

    def after_restore(self, slots: Iterable[TowerVariable] = ()) -> None:
        """Sets all copies of each variable, including the shadow copy, to tower 0's copy."""
        super().after_restore(slots)
        for name, shadow in self._shadows.items():
            shadow.assign(towers.read(self.variable(0, name)))

    def _create(self, variable: VariableLike) -> TowerVariable:
        created = super()._create(variable)
        if variable.trainable:
            value = towers.read(created.primary)
            with tf.device(self._place(variable.bytes)):
                shadow = tf.Variable(value, name=f"shadow/{variable.name}")
            self._shadows[variable.name] = TowerVariable(variable.name, [shadow])
            for copy in (shadow, *created.copies):
                self._name_of[copy.ref()] = variable.name
        return created

    def _copy_shadow(self, shadow: tf.Variable) -> list[Any]:
        value = towers.read(shadow)
        cached: dict[str | None, tf.Tensor] = {None: value, shadow.device: value}
        ops = []
        for tower, device in enumerate(self._spec.devices):
            where = self._spec.caching_device(device)
            if where not in cached:
                with tf.device(where):
                    cached[where] = tf.identity(value, name="cached")
            copy = self.variable(tower, self._name_of[shadow.ref()])
            with tf.device(copy.device):
                ops.append(copy.assign(cached[where], read_value=False))
        return [op for op in ops if op is not None]
