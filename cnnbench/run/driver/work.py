"""The kinds of work of a run, such as training or evaluation, with the objects that each kind
needs.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, close_inputs
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.inputs import InputOnlyStep
from cnnbench.run.driver.saved_model import SavedModelExporter
from cnnbench.run.observe.traffic import collective_libraries, count_traffic_of_calls
from cnnbench.run.runtime.devices import Devices
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import TowerVariable
from cnnbench.variable_mgr.workers import WorkerGroup


@dataclass(frozen=True, kw_only=True)
class BuiltWork(abc.ABC):
    """The work of a run with its TensorFlow objects. The subclasses are the kinds of work.

    Attributes:
      notices, warnings: lines for the user about what was built; warnings by their names.
    """

    devices: Devices
    notices: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)

    @property
    @abc.abstractmethod
    def sources(self) -> tuple[InputSource, ...]:
        """All inputs of the run."""

    @property
    def worker_group(self) -> WorkerGroup | None:
        """The workers of the job, if each worker runs its own step; otherwise None."""
        return None

    def record_sizes(self, measurements: Measurements) -> None:
        """Records the sizes that this work has: numbers of variables and operations, and the
        network traffic.
        """

    def close(self) -> None:
        """Closes the inputs of the run. A second call does nothing."""
        close_inputs(self.sources, CLOSE_SECONDS)


@dataclass(frozen=True, kw_only=True)
class LoopWork(BuiltWork):
    """Work whose steps `Training` runs in the timed loop.

    Attributes:
      inputs: input of the step.
      workers: steps of asynchronous workers, by task; `step` is the first of these steps. With a
        coordinator, it contains `step` once for each update that may be in flight. It is empty if
        all towers are part of one step.
      lag: number of steps in flight while the loop waits for a result, see `StepLoop`. A GPU works
        on a step while the next step is launched.
    """

    step: InputOnlyStep | TrainStep
    inputs: InputSource
    workers: Mapping[str, TrainStep] = field(default_factory=dict)
    lag: int = 0

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """The input of the step."""
        return (self.inputs,)

    def loss_advice(self, *, updated: bool) -> str:
        """Returns advice on how to make an infinite loss finite; "" if there is none for this run.

        `updated` is whether the run had updated the variables before it computed the loss.
        """
        del updated
        return ""

    def request_stop(self, reason: float) -> None:
        """Requests the end of the run: in the next step, all workers of `worker_group` receive
        `reason`.

        Without such workers, there is nothing to do.
        """


@dataclass(frozen=True, kw_only=True)
class InputWork(LoopWork):
    """Reads input, without a network."""

    step: InputOnlyStep


@dataclass(frozen=True, kw_only=True)
class NetworkWork(BuiltWork):
    """Work with the variables of a network.

    Attributes:
      manager: variables of the network.
      slots: slots of the optimizer, by canonical name; empty if the run does not train.
      exporters: what exports the weights at the end of the work, as flags request it.
    """

    manager: VariableMgr
    slots: Mapping[str, TowerVariable] = field(default_factory=dict)
    checkpoints: Checkpoints
    exporters: tuple[SavedModelExporter, ...]

    @property
    def worker_group(self) -> WorkerGroup | None:
        """The workers of the job, if each worker runs its own step; otherwise None."""
        return self.manager.workers

    def record_sizes(self, measurements: Measurements) -> None:
        """Records the numbers of variables and of their copies."""
        variables = self.manager.savable_variables().values()
        copies = sum(len(variable.copies) for variable in variables)
        measurements.update_record("placement", variables=len(variables), variable_copies=copies)

    def restored_variables(self) -> Iterator[TowerVariable]:
        """Yields the variables that a checkpoint restores."""
        yield from self.manager.savable_variables().values()
        yield from self.slots.values()


@dataclass(frozen=True, kw_only=True)
class EvaluationWork(NetworkWork):
    """Evaluates checkpoints.

    Attributes:
      folder: contains the checkpoints.
    """

    evaluator: Evaluator
    folder: str

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """The input of the evaluations."""
        return (self.evaluator.inputs,)


@dataclass(frozen=True, kw_only=True)
class ForwardWork(LoopWork, NetworkWork):
    """Runs forward passes of a network."""

    step: TrainStep

    def record_sizes(self, measurements: Measurements) -> None:
        """Records also the operations that reduce gradients, and the network traffic of a step."""
        super().record_sizes(measurements)
        graph, job = self.step.graph, self.devices.job
        reductions = self.step.reduction_operations
        measurements.update_record("placement", reduction_operations=reductions)
        placement = measurements.parts.placement
        if placement is not None and placement.all_reduce:
            by = collective_libraries(graph, job.own_tower_devices)
            measurements.update_record("placement", communication=by or None)
        if job.in_cluster:
            traffic = count_traffic_of_calls(self.step.graphs, job.num_workers)
            measurements.update_record(
                "cluster", messages_per_step=traffic.messages, bytes_per_step=traffic.bytes
            )

    def restored_variables(self) -> Iterator[TowerVariable]:
        """Yields the variables that a checkpoint restores, and the state of an automatic loss
        scale.
        """
        yield from super().restored_variables()
        for name, variable in self.step.loss_scale.variables().items():
            yield TowerVariable(name, [variable])

    def request_stop(self, reason: float) -> None:
        """Requests the end of the run: in the next step, all workers of `worker_group` receive
        `reason`.
        """
        self.step.request_stop(reason)


@dataclass(frozen=True, kw_only=True)
class TrainingWork(ForwardWork):
    """Trains a network."""

    def loss_advice(self, *, updated: bool) -> str:
        """Returns advice on how to make an infinite loss finite, see `LoopWork.loss_advice`."""
        return self.step.doubt or ("lower --init_learning_rate" if updated else "")


@dataclass(frozen=True, kw_only=True)
class EvaluatedTrainingWork(TrainingWork):
    """Trains a network, and evaluates it during and after the training."""

    evaluator: Evaluator

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """The inputs of the step and of the evaluations."""
        return (self.inputs, self.evaluator.inputs)


Work: TypeAlias = InputWork | EvaluationWork | ForwardWork
"""The work of a run. A `TrainingWork` is a `ForwardWork` that also updates the variables."""
