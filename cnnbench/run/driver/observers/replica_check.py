"""Compares the copies of variables (--check_replica_consistency).

If a mode keeps the copies equal, they get the same updates, so their bits are equal. If copies
differ, an update was lost, or a reduction gave different sums to the devices. No other part of a
run would detect this, because checkpoints and evaluations use only copy 0.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.base.text import number
from cnnbench.errors import ReplicaDivergenceError
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.observers.observer import PausingObserver, TrainingState
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.variable_mgr.towers import TowerVariable, read
from cnnbench.variable_mgr.workers import WorkerGroup

_DIGEST_BYTES = 16
# Values are compared as integers of the same size. The integers are unsigned, because TensorFlow
# would compare signed 32-bit integers of a GPU on the host.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


class ReplicaCheck(PausingObserver):
    """Compares the copies of variables before the first step and after every `every` global steps.

    It compares variables in the order of their creation, then optimizer slots. Moving averages of
    batch norm are not compared: a step only updates copy 0, and the other copies are replaced
    before they are read, see `cnnbench.run.step.batch_norm`.

    Each copy is compared on its own device with the copy of tower 0. One bit per copy is sent to
    the host, which reads a variable only if its copies differ. If every worker of a job has its own
    copies, all workers also compare digests of their first copies, and find the same result.

    Args:
      variables: at least one variable; all variables have the same number of copies.
      every: number of global steps between two checks.
      workers: workers with their own copies; None if all copies are in this process.
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
        self._differing = TracedFunction("the comparison of copies", self._compare_towers)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Checks the initial or restored values. This also traces the comparison."""
        del steps
        self._check_replicas(global_step)

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns True after every --check_replica_consistency global steps."""
        return global_step % self._every == 0

    def training_paused(self, state: TrainingState) -> None:
        """Compares the copies after a step. Raises ReplicaDivergenceError if copies differ."""
        self._check_replicas(state.global_step)

    def _check_replicas(self, global_step: int) -> None:
        differing = np.array([flags.numpy() for flags in self._differing()])
        checks = self._measurements.parts.measured.replica_checks or 0
        self._measurements.update_record("measured", replica_checks=checks + 1)
        # All workers must take part in this exchange, so it comes before any error of this worker
        # is raised.
        error = self._compare_workers(bool(differing.any()), global_step)
        if differing.any():
            raise self._divergence(differing, global_step)
        if error is not None:
            raise error

    def _compare_workers(
        self, differs_here: bool, global_step: int
    ) -> ReplicaDivergenceError | None:
        """Compares the variables of all workers. Returns an error if they differ, else None."""
        if self._workers is None:
            return None
        own = b"".join(map(_digest, self._variables)) + bytes([differs_here])
        of_workers = [(values[:-1], bool(values[-1])) for values in self._workers.gather_bytes(own)]
        first = of_workers[0][0]
        beginning = f"replicas diverged by global step {global_step}: "
        for index, variable in enumerate(self._variables):
            part = slice(index * _DIGEST_BYTES, (index + 1) * _DIGEST_BYTES)
            workers = [str(i) for i, (of, _) in enumerate(of_workers) if of[part] != first[part]]
            if workers:
                names = f"worker{'s' * (len(workers) > 1)} {', '.join(workers)}"
                text = f"{variable.name} on {names} differs from worker 0"
                return ReplicaDivergenceError(beginning + text)
        worse = [str(i) for i, (_, differs) in enumerate(of_workers) if differs]
        if worse:
            text = f"copies differ within worker {', '.join(worse)}"
            return ReplicaDivergenceError(beginning + text)
        return None

    def _compare_towers(self) -> list[tf.Tensor]:
        """Compares each tower's variables with tower 0's, inside of the traced function.

        Returns a bool tensor ``[variables]`` for each tower except tower 0: True if copies differ.
        """
        differing = []
        for tower in range(1, len(self._variables[0].copies)):
            flags = []
            for variable in self._variables:
                copy = variable.copies[tower]
                with tf.device(copy.device):
                    # Bits are compared instead of numbers: NaN would differ from an equal NaN, and
                    # 0 would equal -0.
                    bits = _BITS[variable.dtype.size]
                    both = (read(v) for v in (copy, variable.primary))
                    mine, first = (tf.bitcast(value, bits) for value in both)
                    flags.append(tf.reduce_any(tf.not_equal(mine, first)))
            with tf.device(self._variables[0].copies[tower].device):
                differing.append(tf.stack(flags))
        return differing

    def _divergence(self, differing: Any, global_step: int) -> ReplicaDivergenceError:
        """Returns the error for variables whose copies differ. Its message names the first such
        variable.

        `differing` has the shape [towers - 1, variables].
        """
        index, *other_variables = np.flatnonzero(differing.any(axis=0))
        variable = self._variables[index]
        towers = [int(tower) + 1 for tower in np.flatnonzero(differing[:, index])]
        first = variable.primary.numpy()
        elements, largest = 0, 0.0
        for tower in towers:
            copy = variable.copies[tower].numpy()
            # Bits are compared instead of numbers, because NaN differs from an equal NaN.
            bits = f"u{first.itemsize}"
            elements = max(elements, int(np.sum(copy.view(bits) != first.view(bits))))
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(copy.astype(np.float64) - first.astype(np.float64))
            largest = max(largest, float(np.max(gap)))
        names = f"tower{'s' * (len(towers) > 1)} {', '.join(map(str, towers))}"
        more = f"; {len(other_variables)} more variables differ" if other_variables else ""
        return ReplicaDivergenceError(
            f"replicas diverged by global step {global_step}: {variable.name} on {names} differs "
            f"from tower 0 in {elements} of {first.size} values, by at most {number(largest)}{more}"
        )


def _digest(variable: TowerVariable) -> bytes:
    value = np.ascontiguousarray(variable.primary.numpy())
    return hashlib.blake2b(value.tobytes(), digest_size=_DIGEST_BYTES).digest()
