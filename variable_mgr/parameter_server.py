"""--variable_update=parameter_server: one copy of every variable, which all towers read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr import gradients, towers
from cnnbench.variable_mgr.base import GradientPairs, OptimizerLike, VariableMgr
from cnnbench.variable_mgr.gradients import VariableGradients, cast
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.towers import TowerVariable
from cnnbench.variable_mgr.tracing import PerTraceCache, assign_and_return_old, run_untraced


class StagedVariables:
    """Variable values of the previous step for --staged_vars, by device, variable and dtype.

    With staged values, copying variables to the towers' devices overlaps with the previous step.
    All traces share the staged values.
    """

    def __init__(self) -> None:
        self._staged: dict[tuple[str, str, tf.DType], tuple[tf.Variable, tf.Variable]] = {}
        self._values = PerTraceCache()

    def previous_value(
        self,
        device: str,
        variable: tf.Variable,
        dtype: tf.DType,
        read_current: Callable[[], tf.Tensor],
    ) -> tf.Tensor:
        """Returns the value that the previous step read; call it in a step before any update."""
        key = (device, variable.name, dtype)
        values = self._values.tensors_of_trace()
        if key not in values:
            if key not in self._staged:
                copy = run_untraced(lambda: _staged_copy(device, variable, dtype))
                self._staged[key] = variable, copy
            with tf.device(device):
                values[key] = assign_and_return_old(self._staged[key][1], read_current())
        return values[key]

    def refill_staged_values(self) -> None:
        """Replaces all staged values by the current values of variables, outside a traced step."""
        for (device, _, dtype), (variable, staged) in self._staged.items():
            with tf.device(device):
                staged.assign(cast(towers.read(variable), dtype), read_value=False)


def _staged_copy(device: str, variable: tf.Variable, dtype: tf.DType) -> tf.Variable:
    with tf.device(device):
        value = cast(towers.read(variable), dtype)
        return tf.Variable(value, trainable=False, name=f"staged/{variable.name.split(':')[0]}")


class ParameterServerVariableMgr(VariableMgr):
    """Stores one copy of each variable, "v/<name>", on the CPU, the towers' devices or ps tasks.

    A gradient is reduced on its variable's device and applied there, once.
    """

    def __init__(
        self,
        spec: VariableMgrSpec,
        variables: Sequence[VariableLike],
        created: Mapping[str, TowerVariable] | None = None,
        stagings: list[StagedVariables] | None = None,
    ) -> None:
        """Creates a manager of new variables, or of variables that another manager has created.

        `created` contains the existing variables by name. `stagings` contains the staged values of
        each manager that uses the same variables.
        """
        super().__init__(spec, variables)
        self._facades.update(created or {})
        self._place = spec.variable_device_chooser()
        self._values = PerTraceCache()
        self._staging = StagedVariables() if spec.staged else None
        self._stagings = [] if stagings is None else stagings
        self._stagings += [] if self._staging is None else [self._staging]

    def make_worker_manager(self, devices: Sequence[str]) -> ParameterServerVariableMgr:
        """Creates a manager of the same variables, for the towers of one worker only."""
        spec = dataclasses.replace(self._spec, devices=tuple(devices), job=None)
        return ParameterServerVariableMgr(spec, self._declared, self._facades, self._stagings)

    def read(self, tower: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """Reads a variable for a tower; see `VariableMgr.read`.

        A traced step reads, casts and copies a variable only once for each device that caches it.
        """
        variable = self.variable(tower, name)
        # A step may assign moving averages between two reads, so they are not cached.
        if not (variable.trainable and tf.inside_function()):
            return self._cast_at_home(variable, dtype)
        values = self._values.tensors_of_trace()
        at_home = (name, tf.as_dtype(dtype), None)
        if at_home not in values:
            values[at_home] = self._cast_at_home(variable, dtype)
        where = self._spec.caching_device(self._spec.devices[tower])
        if where in (None, variable.device):
            return values[at_home]
        cached = (name, tf.as_dtype(dtype), where)
        if cached not in values:
            with tf.device(where):
                values[cached] = tf.identity(values[at_home], name="cached")
        return values[cached]

    def read_for_step(self, tower: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """Reads a variable for computing gradients; see `VariableMgr.read_for_step`."""
        variable = self.variable(tower, name)
        if self._staging is None or not variable.trainable:
            return self.read(tower, name, dtype)
        return self._staging.previous_value(
            self._spec.devices[tower], variable, dtype, lambda: self.read(tower, name, dtype)
        )

    def read_for_weight_decay(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the value for the L2 loss; see `VariableMgr.read_for_weight_decay`."""
        if self._staging is None:
            return super().read_for_weight_decay(variable)
        read = functools.partial(super().read_for_weight_decay, variable)
        return self._staging.previous_value(variable.device, variable, tf.float32, read)

    def after_restore(self, slots: Iterable[TowerVariable] = ()) -> None:
        """Sets copies of variables to the first copy, and refills staged values from variables."""
        super().after_restore(slots)
        for staging in self._stagings:
            staging.refill_staged_values()

    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Sums each gradient on its variable's device, where the optimizer applies it once."""
        reduced = gradients.reduce_where_updated(columns, self._spec, _shared_variable)
        return [self._spec.variable_devices[0]], reduced

    def _apply_gradients(
        self, optimizer: OptimizerLike, pairs: GradientPairs, device: str, learning_rate: tf.Tensor
    ) -> list[Any]:
        self._values.clear()  # Later reads must get the new values.
        return super()._apply_gradients(optimizer, pairs, device, learning_rate)

    def _create(self, variable: VariableLike) -> TowerVariable:
        with tf.device(self._spec.cpu_device):
            value = self._initial_value(variable)
        with tf.device(self._place(variable.bytes)):
            shared = tf.Variable(value, trainable=variable.trainable, name=f"v/{variable.name}")
        return TowerVariable(variable.name, [shared])


def _shared_variable(column: VariableGradients) -> tf.Variable:
    variable = column.variables[0]
    if any(v is not variable for v in column.variables):
        raise ValueError(f"towers use different variables for {variable.name}")
    return variable
