"""`VariableMgr`, the interface between the train step and the modes of --variable_update."""

from __future__ import annotations

import abc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import tensorflow as tf

from cnnbench.base import interfaces
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import exchange, gradients, towers
from cnnbench.variable_mgr.gradients import VariableGradients
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.towers import TowerVariable
from cnnbench.variable_mgr.workers import WorkerGroup

GradientPairs: TypeAlias = "list[tuple[tf.Tensor, tf.Variable]]"
_AllCreated = Annotated[None, lambda result, arguments: arguments[0]._missing_reason()]
_T = TypeVar("_T")


class OptimizerLike(Protocol):
    """Interface of optimizers. `cnnbench.run.step.optimizer.Optimizer` implements it."""

    def apply_gradients(
        self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], learning_rate: tf.Tensor
    ) -> list[Any]:
        """Updates each variable on its own device, and returns the update operations."""

    def slot_variables(self) -> Mapping[tuple[str, Any], tf.Variable]:
        """Returns all optimizer slots by (name of the slot, `Variable.ref()` of the variable)."""

    def shared_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns optimizer state of no single variable by name: a scalar per variable group."""


Guard: TypeAlias = Callable[[Callable[[], list[Any]]], list[Any]]
"""Runs an update inside the step, possibly in a branch of tf.cond, and returns its operations."""


class VariableMgr(abc.ABC):
    """Places the copies of variables on devices, and aggregates gradients.

    A run calls `create_variables` eagerly. In the traced step, it calls `run_towers`, in which
    every tower calls `read`. Then it calls `preprocess_device_grads` once, `get_gradients_to_apply`
    and `append_apply_gradients` for each apply device, and `after_updates` once. Properties of a
    mode, such as whether towers stay in sync, are in `cnnbench.variable_mgr.modes.Mode`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        interfaces.guard_plugin_methods(cls, VariableMgr)

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if spec.staged and not spec.mode.staged:
            reason = f"does not work with --variable_update={spec.mode.name}"
            raise FlagError("staged_vars", "true", reason)
        for name, count in Counter(variable.name for variable in variables).items():
            if count > 1:
                raise UsageError(f"the model declares the variable {name!r} twice")
        self._spec = spec
        self._declared = tuple(variables)
        self._facades: dict[str, TowerVariable] = {}
        job = spec.job
        # The workers of the job if each worker runs its own step; None if one step contains all
        # towers.
        self.workers: WorkerGroup | None = None
        if job is not None and job.client_per_worker and job.num_workers > 1:
            self.workers = WorkerGroup(job.cpu_devices, job.cpu_device)

    @property
    def replicas_in_sync(self) -> bool:
        """Whether all towers have equal trainable variables after every step, as with one tower."""
        return self._spec.mode.in_sync or self._spec.num_towers == 1

    def create_variables(self) -> _AllCreated:
        """Creates all copies of all variables, once, outside any traced function.

        Initial values depend only on the seed and the canonical name. Therefore every mode starts
        with the same weights, for any number of towers. In independent mode, only tower 0 has these
        weights.
        """
        if self._facades:
            raise RuntimeError("the variables of this manager exist already")
        if tf.inside_function():
            raise RuntimeError("variables must be created before the step is traced")
        for variable in self._declared:
            self._facades[variable.name] = self._create(variable)

    def _missing_reason(self) -> str:
        """Returns an error message if `create_variables` did not create every variable.

        The message is "" if all variables exist.
        """
        missing = [v.name for v in self._declared if v.name not in self._facades]
        return f"after all variables exist, not without {missing[0]}" if missing else ""

    @abc.abstractmethod
    def _create(self, variable: VariableLike) -> TowerVariable:
        """Creates a variable's copies on all devices."""

    def run_towers(self, build: Callable[[int], _T], *, exchanges_values: bool = False) -> list[_T]:
        """Calls `build` for each tower of a step, and returns the results in order.

        `exchanges_values` must be True if `build` calls `exchange.merge_over_towers`.
        """
        count = len(self._spec.devices)
        if exchanges_values:
            return exchange.build_towers_in_threads(build, count)
        return [build(tower) for tower in range(count)]

    def variable(self, tower: int, name: str) -> tf.Variable:
        """Returns the copy that `tower` uses of the variable with the canonical `name`."""
        if not 0 <= tower < len(self._spec.devices):
            raise IndexError(f"tower {tower} of {len(self._spec.devices)}")
        return self._facades[name].copy(tower)

    def read(self, tower: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """Reads a variable for a tower, cast to `dtype`. Call it in the tower's device scope.

        Several towers may get the same tensor. Watch the returned tensor with the gradient tape and
        compute gradients with respect to it, because the operations that created it may have run
        before the tape began. The manager casts gradients back to float32.
        """
        return self._cast_at_home(self.variable(tower, name), dtype)

    def read_for_step(self, tower: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """Reads the value of a variable with which a tower computes gradients in this step.

        With --staged_vars, the result is the value in the previous step. Otherwise, it is the
        result of `read`.
        """
        return self.read(tower, name, dtype)

    def read_for_weight_decay(self, variable: tf.Variable) -> tf.Tensor:
        """Returns the float32 value of a trained variable for the L2 loss.

        Call this method in the variable's device scope.
        """
        return gradients.cast(towers.read(variable), tf.float32)

    @abc.abstractmethod
    def preprocess_device_grads(
        self, columns: Sequence[VariableGradients]
    ) -> tuple[list[str], list[VariableGradients]]:
        """Aggregates the gradients of all towers, once per step.

        Gradients may be dense tensors of any float dtype, or IndexedSlices. The results are dense
        and float32. If some towers have the gradient None, it counts as zero. If all towers have
        None, the variable is not updated. A NaN or infinity in one tower reaches every copy that is
        kept in sync.

        Args:
          columns: each trainable variable with its gradients from all towers.

        Returns:
          The devices on which updates are applied, and each variable with one gradient and one
          copy per device.
        """

    def get_gradients_to_apply(
        self, device_index: int, columns: Sequence[VariableGradients]
    ) -> GradientPairs:
        """Returns the aggregated (gradient, variable) pairs for one device that applies updates."""
        pairs = [(c.gradients[device_index], c.variables[device_index]) for c in columns]
        return [(gradient, variable) for gradient, variable in pairs if gradient is not None]

    def append_apply_gradients(
        self,
        optimizer: OptimizerLike,
        pairs: GradientPairs,
        guard: Guard | None,
        device: str,
        *,
        learning_rate: tf.Tensor,
    ) -> list[Any]:
        """Applies gradients to variables, each on the device of its variable.

        Returns the operations, or [] in eager mode.

        Args:
          pairs: the pairs of `get_gradients_to_apply`, after clipping. Weight decay is included,
            unless the optimizer's update applies it.
          guard: function that runs the update if a condition holds; None always runs it.
          device: the apply device, for operations that belong to no variable.
          learning_rate: float32 scalar.
        """
        update = partial(self._apply_gradients, optimizer, pairs, device, learning_rate)
        return update() if guard is None else guard(update)

    def _apply_gradients(
        self, optimizer: OptimizerLike, pairs: GradientPairs, device: str, learning_rate: tf.Tensor
    ) -> list[Any]:
        with tf.device(device):
            return optimizer.apply_gradients(pairs, learning_rate)

    def after_updates(self) -> list[Any]:
        """Returns operations that run after the updates on all devices, such as copies."""
        return []

    def updated(self, name: str) -> TowerVariable:
        """Returns the copies of a variable that the optimizer updates.

        By default, the towers read the same copies. Optimizer slots, learning rates and weight
        decay refer to the copies that the optimizer updates. There is one copy per device on which
        updates are applied.
        """
        return self._facades[name]

    def updated_groups(self) -> list[list[tf.Variable]]:
        """Returns groups of variable copies that are updated together, such as one tower's."""
        trained = [self.updated(v.name).copies for v in self._declared if v.trainable]
        return gradients.transpose_lists(trained)

    def broadcast_from_chief(self, variables: Iterable[TowerVariable]) -> None:
        """Sets all copies of `variables` in all workers to the chief's first copy."""
        shared = list(variables)
        if self.workers is not None and shared:
            own = [towers.read(variable.primary) for variable in shared]
            values = self.workers.broadcast_chief_tensors(own)
            for variable, value in zip(shared, values, strict=True):
                with tf.device(variable.primary.device):
                    variable.primary.assign(value, read_value=False)
        for variable in shared:
            variable.broadcast()

    def after_initialization(self, slots: Iterable[TowerVariable] = ()) -> None:
        """Copies every variable from tower 0 to the other towers if the mode keeps them in sync."""
        if self.replicas_in_sync:
            self.after_restore(slots)

    def after_restore(self, slots: Iterable[TowerVariable] = ()) -> None:
        """Sets all copies of each variable in this process to the first copy, in every mode."""
        for variable in (*self._facades.values(), *slots):
            variable.broadcast()

    def wait_for_assignments(self, devices: Iterable[str] = ()) -> None:
        """Waits until assignments to variables are complete; call it before a traced function."""
        towers.wait_for_assignments((*self._spec.devices, *self._spec.variable_devices, *devices))

    def get_devices(self) -> tuple[str, ...]:
        """Returns the full device string of each tower of this process."""
        return self._spec.devices

    def sum_over_workers_in_step(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums float32 tensors of static shapes over all workers, inside the traced step."""
        return list(tensors) if self.workers is None else self.workers.sum_in_step(tensors)

    def reduce_gradients_and_sum(
        self, columns: Sequence[VariableGradients], sums: Sequence[tf.Tensor]
    ) -> tuple[list[str], list[VariableGradients], list[tf.Tensor]]:
        """Aggregates gradients, and sums float32 scalars over all workers.

        See `preprocess_device_grads` and `sum_over_workers_in_step`.
        """
        # The scalars are computed before the gradients, so they are sent first.
        totals = self.sum_over_workers_in_step(sums)
        return (*self.preprocess_device_grads(columns), totals)

    @property
    def num_towers(self) -> int:
        """Number of towers in the whole job."""
        return self._spec.num_towers

    def savable_variables(self) -> dict[str, TowerVariable]:
        """Returns all variables by canonical name, in creation order."""
        return dict(self._facades)

    def savable_slots(self, optimizer: OptimizerLike) -> dict[str, TowerVariable]:
        """Returns the optimizer state by canonical name.

        A slot has as many copies as its variable. Names are "<variable>/<slot>", and
        "optimizer/<name>" for state that belongs to no variable.
        """
        by_key = optimizer.slot_variables()
        slots = {}
        for slot in dict.fromkeys(slot for slot, _ in by_key):
            for name in self._facades:
                updated = self.updated(name)
                if (slot, updated.primary.ref()) in by_key:
                    copies = [by_key[slot, copy.ref()] for copy in updated.copies]
                    slots[f"{name}/{slot}"] = TowerVariable(f"{name}/{slot}", copies)
        for name, scalars in optimizer.shared_variables().items():
            slots[f"optimizer/{name}"] = TowerVariable(f"optimizer/{name}", scalars)
        return slots

    def _initial_value(self, variable: VariableLike, tower: int = 0) -> tf.Tensor:
        value = initial_value(variable, self._spec.seed, tower)
        return tf.cast(value, self._spec.variable_dtype) if variable.fits_16_bits else value

    def _cast_at_home(self, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
        """Reads a variable and casts it on its own device, so that 16 bits halve the data sent."""
        value = towers.read(variable)
        if value.dtype == dtype:
            return value
        with tf.device(variable.device):
            return tf.cast(value, dtype)


def initial_value(variable: VariableLike, seed: int, tower: int = 0) -> tf.Tensor:
    """Returns a variable's initial value, which depends only on its name, the seed and the tower.

    The value is float32, or int64 if the initializer gives integers.
    """
    initializer = variable.initializer
    if initializer.draw is not None:
        return tf.convert_to_tensor(initializer.draw(variable.name, seed, tower))
    if initializer.kind == "constant":
        return tf.fill(variable.shape, tf.constant(initializer.value, tf.float32))
    key = variable.name if tower == 0 else f"{variable.name}@{tower}"
    return tf.random.stateless_truncated_normal(
        variable.shape,
        seed=tf.constant([seed, zlib.crc32(key.encode())], tf.int64),
        stddev=initializer.draw_stddev(variable.shape),
        # The default random algorithm gives different numbers on CPUs and GPUs, so one is chosen
        # here.
        alg="philox",
    )
