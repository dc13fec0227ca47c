"""--check_replica_consistency: whether the copies of every variable are still equal.

Copies that a mode keeps equal get the same updates, so they agree to the last bit. Where they do
not, an update was lost, or a reduction gave devices different sums; nothing else in a run would
show it, since checkpoints and evaluations take copy 0.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.base.text.numbers import number
from cnnbench.errors import ReplicaDivergenceError
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.build import BuiltRun
from cnnbench.run.driver.observer import Moment, Observer
from cnnbench.run.step.traced import TracedFunction
from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.tower_variable import TowerVariable
from cnnbench.variable_mgr.worker_group import WorkerGroup

# Kernels for GPUs compare unsigned integers there; signed ones of 32 bits by way of the host.
_DIGEST_BYTES = 16
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


def replica_checks(plan: RunPlan, built: BuiltRun, measurements: Measurements) -> list[Observer]:
    """The check as an observer, if it is requested and there are copies to compare.

    It compares variables in creation order, then slots. Moving averages of batch norm are not among
    them: a step updates copy 0 alone, and the others take it over before anything reads them, see
    `cnnbench.run.step.batch_norm_stats`.
    """
    manager, every = built.manager, plan.numerics.check_replica_consistency
    if not (every and plan.work.trains and manager.replicas_in_sync):
        return []
    fewest = 1 if manager.workers is not None else 2
    trained = [v for v in manager.savable_variables().values() if v.primary.trainable]
    compared = tuple(v for v in (*trained, *built.slots.values()) if len(v.copies) >= fewest)
    return [ReplicaCheck(compared, every, measurements, manager.workers)] if compared else []


class ReplicaCheck(Observer):
    """Compares copies before the first step and after every `every` global steps.

    Each copy is compared on its own device with that of tower 0, and one bit per copy goes to the
    host; a variable is only read there when its copies differ. Where every worker of a job has
    copies of its own, all workers compare digests of the first copies, with the same result.

    Args:
      variables: at least one, of equally many copies each.
      every: global steps between two checks.
      workers: workers with copies of their own; None where all copies are in this process.
    """

    def __init__(
        self,
        variables: tuple[TowerVariable, ...],
        every: int,
        measurements: Measurements,
        workers: WorkerGroup | None = None,
    ) -> None:
        self._workers = workers
        self._variables = variables
        self._every = every
        self._measurements = measurements
        self._differing = TracedFunction("the comparison of copies", self._compare)

    def begins(self, global_step: int, steps: int) -> None:
        """Checks initial or restored values, which also traces the function."""
        del steps
        self._check(global_step)

    def due(self, global_step: int) -> bool:
        """Every --check_replica_consistency global steps."""
        return global_step % self._every == 0

    def paused(self, moment: Moment) -> None:
        """Checks the weights after a step; raises ReplicaDivergenceError if some copies differ."""
        self._check(moment.global_step)

    def _check(self, global_step: int) -> None:
        differing = np.array([flags.numpy() for flags in self._differing()])
        checks = self._measurements.measured.replica_checks or 0
        self._measurements.note(replica_checks=checks + 1)
        # Before this worker raises an error and leaves the others waiting.
        error = self._between_workers(bool(differing.any()), global_step)
        if differing.any():
            raise self._error(differing, global_step)
        if error is not None:
            raise error

    def _between_workers(
        self, differs_here: bool, global_step: int
    ) -> ReplicaDivergenceError | None:
        """Compares the workers' copies; returns what differs on other workers, or None."""
        if self._workers is None:
            return None
        own = b"".join(map(_digest, self._variables)) + bytes([differs_here])
        found = [(one[:-1], bool(one[-1])) for one in self._workers.gather(own)]
        first = found[0][0]
        begun = f"replicas diverged by global step {global_step}: "
        for index, variable in enumerate(self._variables):
            part = slice(index * _DIGEST_BYTES, (index + 1) * _DIGEST_BYTES)
            others = [str(i) for i, (of, _) in enumerate(found) if of[part] != first[part]]
            if others:
                named = f"worker{'s' * (len(others) > 1)} {', '.join(others)}"
                return ReplicaDivergenceError(
                    f"{begun}{variable.name} on {named} differs from worker 0"
                )
        worse = [str(i) for i, (_, differs) in enumerate(found) if differs]
        if worse:
            return ReplicaDivergenceError(f"{begun}copies differ within worker {', '.join(worse)}")
        return None

    def _compare(self) -> list[tf.Tensor]:
        """Names of the variables that differ from those of tower 0, by tower."""
        found = []
        for tower in range(1, len(self._variables[0].copies)):
            flags = []
            for variable in self._variables:
                copy = variable.copies[tower]
                with tf.device(copy.device):
                    # Bits are equal also for NaNs, and different for 0 and -0.
                    bits = _BITS[variable.dtype.size]
                    both = (tower_variable.read(v) for v in (copy, variable.primary))
                    mine, first = (tf.bitcast(value, bits) for value in both)
                    flags.append(tf.reduce_any(tf.not_equal(mine, first)))
            with tf.device(self._variables[0].copies[tower].device):
                found.append(tf.stack(flags))
        return found

    def _error(self, differing: Any, global_step: int) -> ReplicaDivergenceError:
        """Names the first variable that differs; `differing` has shape [towers - 1, variables]."""
        index, *others = np.flatnonzero(differing.any(axis=0))
        variable = self._variables[index]
        towers = [int(tower) + 1 for tower in np.flatnonzero(differing[:, index])]
        first = variable.primary.numpy()
        elements, largest = 0, 0.0
        for tower in towers:
            copy = variable.copies[tower].numpy()
            elements = max(elements, int(np.sum(_integers(copy) != _integers(first))))
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(copy.astype(np.float64) - first.astype(np.float64))
            largest = max(largest, float(np.max(gap)))
        named = f"tower{'s' * (len(towers) > 1)} {', '.join(map(str, towers))}"
        more = f"; {len(others)} more variables differ" if others else ""
        return ReplicaDivergenceError(
            f"replicas diverged by global step {global_step}: {variable.name} on {named} differs "
            f"from tower 0 in {elements} of {first.size} values, by at most {number(largest)}{more}"
        )


def _digest(variable: TowerVariable) -> bytes:
    value = np.ascontiguousarray(variable.primary.numpy())
    return hashlib.blake2b(value.tobytes(), digest_size=_DIGEST_BYTES).digest()


def _integers(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
