"""The traced training step of all towers.

for each tower, on its device:   forward, loss, gradients
    manager:                         reduce the gradients over the towers
    loss scale:                      skip the updates below if a gradient is not finite
    for each device with variables:  weight decay, clipping, optimizer update
    tower 0 (see --bn_stats):        moving averages of batch normalisation

The returned loss has a control dependency on every update, so the step has finished when the loss
has been read.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import tensorflow as tf

from cnnbench.base.job import is_cpu
from cnnbench.data.copies import ReadCallbacks, ScalarReader
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.data.joined_input import CoordinatedInput
from cnnbench.models.spec import VariableSpec
from cnnbench.plan import RunPlan
from cnnbench.run.runtime.convolutions import doubtful_layer_notice
from cnnbench.run.step.accumulation import PassAccumulator
from cnnbench.run.step.loss_scale import (
    AutoLossScale,
    Factor,
    LossScale,
    divide_by_scale,
    inverse_scale,
)
from cnnbench.run.step.optimizer import Optimizer
from cnnbench.run.step.tower import Tower, TowerResult
from cnnbench.run.step.tower_copier import TowerCopier
from cnnbench.run.step.tracing import TracedFunction, build_loop, select_nest
from cnnbench.run.step.update import Updater, group_dependencies
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies import StrategyVariableMgr
from cnnbench.variable_mgr.towers import read

_RATE = tf.TensorSpec([], tf.float32, name="learning_rate")
"""Signature of the first argument of a traced step."""
_PASS = tf.TensorSpec([], tf.int64, name="pass")
_NO_LIMIT = 2**63 - 1
_RETRY_SECONDS = 0.05


class StepResult(NamedTuple):
    """The results of one step over all towers, as scalars, or of several steps, as vectors.

    Attributes:
      loss: mean loss, float32.
      metrics: metrics of the model by name, float32; empty unless requested.
      skipped: bool, whether the update was skipped because of gradients that are not finite; None
        if updates are not conditional.
      stop: float32, sum over all workers of the arguments of `TrainStep.request_stop` before this
        step; None if all towers are part of one step.
      staleness: int64, number of updates by other workers since the variables were read; None if
        updates are not counted.
      worker: int64, number of the worker that ran the update; None if the caller knows it.
    """

    loss: tf.Tensor
    metrics: dict[str, tf.Tensor]
    skipped: tf.Tensor | None = None
    stop: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    worker: tf.Tensor | None = None


class UpdateCounter:
    """Counts asynchronous updates of shared variables.

    A worker reads the count before it reads the variables, and increments it after it has updated
    them. The staleness of its update is the number of increments in between, as in Dai et al.,
    "Toward understanding the impact of staleness in distributed machine learning", ICLR 2019.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates_done")

    def resume(self, count: int) -> None:
        """Sets the number of updates so far."""
        self._count.assign(count)

    def read(self) -> tf.Tensor:
        """Reads the number of updates so far, an int64 scalar, before any variable is read."""
        return read(self._count)

    def increment(self, count_before: tf.Tensor, updates: Sequence[Any] = ()) -> tf.Tensor:
        """Counts an update after all its assignments. Returns its staleness, an int64 scalar.

        `count_before` is the result of `read` in the same step.
        """
        home = self._count.device
        with tf.device(home), tf.control_dependencies(group_dependencies(updates, home)):
            # A single operation reads and increments the count; with two, two updates could get the
            # same number.
            before = tf.raw_ops.ResourceCountUpTo(
                resource=self._count.handle, limit=_NO_LIMIT, T=tf.int64
            )
            return before - count_before


class TrainStep:
    """Builds and runs the step of a plan under one variable manager.

    Attributes:
      inputs: the input of the step.
      function: the traced step, which takes the learning rate (float32) and the batches of a step.
      graph: the graph of `function`.
      notices: lines for the user.
      warnings: warnings for the user, by their names.
      doubt: says which layer TensorFlow may compute wrongly; "" if there is none.

    Args:
      optimizer: the optimizer, whose slots exist; None for a step that only computes outputs. The
        mean of the outputs then replaces the loss.
      host: full name of the CPU of the process that calls the step.
      first_tower: number of the step's first tower in the job, which random draws depend on.
      counter: counts updates, if other steps update the same variables.
    """

    _counts_steps = True
    """Whether random draws depend on the number of steps of this object."""

    def __init__(
        self,
        plan: RunPlan,
        manager: VariableMgr,
        optimizer: Optimizer | None,
        inputs: InputSource,
        *,
        host: str,
        first_tower: int = 0,
        counter: UpdateCounter | None = None,
    ) -> None:
        numerics = plan.numerics
        self._plan = plan
        self._manager = manager
        self.inputs = inputs
        self._host = host
        self._first_tower = first_tower
        self._devices = manager.get_devices()
        several = manager.num_towers > 1
        self._synchronises = plan.params.bn_stats == "sync" and several and optimizer is not None
        self.loss_scale = LossScale(numerics.loss_scale)
        if numerics.scale_doubles_after is not None:
            every = numerics.scale_doubles_after
            self.loss_scale = AutoLossScale(numerics.loss_scale, every, host)
        self._towers = [
            Tower(plan, device, manager.workers, synchronises=self._synchronises)
            for device in self._devices
        ]
        self._updates_counter = counter
        self._rate_tensors: dict[tuple[float, ...], tf.Tensor] = {}
        if self._counts_steps:
            # This variable must exist before tracing, because TensorFlow traces functions that
            # create variables twice.
            with tf.device(self._devices[0]):
                self._counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
        self._update: Updater | None = None
        if optimizer is not None:
            number = self._counter if self._counts_steps else None
            self._update = Updater(plan, manager, optimizer, self.loss_scale, host, number)
        # The variable in which this worker asks all workers to end the run. The list is empty if
        # one step contains all towers of the job.
        self._stop: list[tf.Variable] = []
        if manager.workers is not None:
            with tf.device(self._devices[0]):
                self._stop.append(tf.Variable(0.0, trainable=False, name="stop"))
        self._keeps_batches = False
        self._batches: Any = None
        self.notices: list[str] = []
        self.warnings: dict[str, str] = {}
        self._sums: PassAccumulator | None = None
        if plan.params.gradient_accumulation_steps > 1:
            self._sums = PassAccumulator(plan, manager, self.loss_scale)
        self._trace_all()

    def _trace_all(self) -> None:
        """Traces the passes before the last pass, the step, and the loop over several steps."""
        flags = self._plan.params
        passes, steps = flags.gradient_accumulation_steps, flags.steps_per_execution
        signature = self.inputs.step_argument_specs
        self._pass: Any = passes - 1
        self._earlier: TracedFunction | None = None
        if self._sums is not None:
            self._passes = [tf.constant(number, tf.int64) for number in range(self._pass)]
            build = partial(self._build_earlier_pass, self._sums)
            self._earlier = TracedFunction("a pass", build, (_PASS, *signature))
        self.function = self._trace()
        self.graph: tf.Graph = self.function.concrete.graph
        self.doubt = doubtful_layer_notice(self._plan, self._devices[0], self.graph)
        if self.doubt:
            self.notices.append(self.doubt)
        if where := ", ".join(self._towers[0].undeclared_variable_locations):
            reason = "the tf.Variable created here is not trained; use net.variable instead"
            self.warnings["untrained"] = f"{where}: {reason}"
        self._execution: TracedFunction | None = None
        if steps > 1:
            rates, batches = tf.TensorSpec([steps], tf.float32), signature * (steps * passes)
            name = "the steps of an execution"
            self._execution = TracedFunction(name, self._build_step_loop, (rates, *batches))

    def _trace(self) -> TracedFunction:
        """Traces the step without running it. This takes seconds for a deep network."""
        signature = (_RATE, *self.inputs.step_argument_specs)
        function = TracedFunction("the step", self._build_step, signature)
        device = self._devices[0]  # `_build_result` places all results on this device.
        self._reader: ScalarReader | None = None
        if not is_cpu(device):
            outputs = function.concrete.structured_outputs
            self._reader = ScalarReader(device, self._host, outputs)
        return function

    @property
    def graphs(self) -> list[tuple[tf.Graph, int]]:
        """The graphs of the functions of a step, with the number of their calls in each step."""
        graphs = [(self.graph, 1)]
        if self._earlier is not None:
            graphs.append((self._earlier.concrete.graph, len(self._passes)))
        return graphs

    @property
    def reduction_operations(self) -> int | None:
        """Number of operations that reduce the gradients; None without an optimizer."""
        return None if self._update is None else self._update.reduction_operations

    def request_stop(self, reason: float) -> None:
        """Requests the end of the run: the next step sends `reason`, a number, to all workers.

        The number is added to `StepResult.stop` of each worker.
        """
        for stop in self._stop:
            stop.assign(reason)

    def resume(self, global_step: int) -> None:
        """Sets the number of completed steps, which random draws and updates depend on."""
        self._counter.assign(global_step)
        if self._updates_counter is not None:
            self._updates_counter.resume(global_step)

    def __call__(self, *learning_rates: float) -> StepResult:
        """Fetches a batch for each tower and pass, and launches a step for each learning rate.

        The number of learning rates must be --steps_per_execution.
        """
        if self._execution is not None:
            fetches = len(learning_rates) * self._plan.params.gradient_accumulation_steps
            fetched = [self.inputs.next() for _ in range(fetches)]
            self._batches = fetched[-1] if self._keeps_batches else None
            rates, flat = self._rate_tensor(*learning_rates), itertools.chain(*fetched)
            return cast("StepResult", self._execution(rates, *flat))
        if self._earlier is not None:
            for number in self._passes:
                self._earlier(number, *self.inputs.next())
        batches = self.inputs.next()
        if self._keeps_batches:
            self._batches = batches
        result: StepResult = self.function(self._rate_tensor(*learning_rates), *batches)
        return result

    def copy_result_to_host(self, result: StepResult, events: ReadCallbacks) -> StepResult:
        """Copies the result of a step to host memory. On a CPU, returns the result itself."""
        return result if self._reader is None else self._reader(result, events)

    def trace_last_gradients(self) -> Callable[[], tuple[dict[str, tf.Tensor], list[tf.Tensor]]]:
        """Traces a function that recomputes the gradients of the last step, for summaries.

        From now on, the batches of the last step are kept. The function returns tower 0's
        gradients by canonical name, and the tensors of its batch. It uses the last step's batch and
        the weights after this step, without weight decay and loss scale. It updates nothing.
        """
        self._keeps_batches = True
        name = "the gradients for summaries"
        traced = TracedFunction(name, self._build_gradients, self.inputs.step_argument_specs)
        return lambda: traced(*self._batches)

    def _rate_tensor(self, *rates: float) -> tf.Tensor:
        """Returns a tensor of the learning rates times the plan's factor for learning rates.

        Equal rates return the same tensor.
        """
        tensor = self._rate_tensors.get(rates)
        if tensor is None:
            scaled = [rate * self._plan.exchange.update.rate_factor for rate in rates]
            with tf.device(self._host):
                tensor = tf.constant(scaled if len(scaled) > 1 else scaled[0], tf.float32)
            self._rate_tensors = {rates: tensor}
        return tensor

    def _build_step_loop(self, rates: tf.Tensor, *batches: TowerBatch) -> StepResult:
        """Builds a loop over the steps of an execution, each of which calls the traced step."""
        passes = self._plan.params.gradient_accumulation_steps
        signature = self.inputs.step_argument_specs
        per_tower = len(signature) == len(self._devices)
        devices = self._devices if per_tower else [self._host] * len(signature)

        def batches_of_pass(number: tf.Tensor) -> Iterator[TowerBatch]:
            for place, device in enumerate(devices):
                with tf.device(device):
                    yield select_nest(number, batches[place :: len(devices)])

        def step(number: tf.Tensor) -> StepResult:
            first = number * passes

            def add_pass(earlier: TracedFunction, pass_number: tf.Tensor) -> None:
                own = batches_of_pass(first + pass_number)
                earlier.concrete(tf.cast(pass_number, tf.int64), *own)

            if self._earlier is not None:
                build_loop(passes - 1, partial(add_pass, self._earlier), None)
            result = self.function.concrete(rates[number], *batches_of_pass(first + passes - 1))
            return cast("StepResult", result)

        with tf.device(self._host):
            result = build_loop(rates.shape[0], step, self.function.concrete.structured_outputs)
            return cast("StepResult", result)

    def _build_step(self, rate: tf.Tensor, *batches: TowerBatch) -> StepResult:
        """Builds the step (of the last pass): towers, reduction, updates and results."""
        factor = None if self._update is None else self.loss_scale.factor()
        counter = self._updates_counter
        count_before = None if counter is None else counter.read()
        towers = self._build_towers(batches, factor, count_before)
        if self._sums is not None:
            towers = self._sums.add_last_pass(towers, rate)
        sums = self._build_sums(towers)
        if self._update is None:
            losses = [tower.loss for tower in towers]
            totals = self._manager.sum_over_workers_in_step(sums)
            return self._build_result(towers, totals, losses)
        report = self._plan.params.loss_type_to_report == "total_loss"
        weight_losses = self._update.weight_losses() if report else []
        l2_loss = partial(self._update.l2_loss, weight_losses) if weight_losses else None
        updates, skipped, totals = self._update(towers, factor, sums, rate, count_before)
        if self._sums is not None:
            updates = [*updates, *self._sums.clear(rate, updates)]
        if self._counts_steps:
            with tf.device(self._devices[0]):
                updates.append(self._counter.assign_add(1, read_value=False))
        staleness = None
        if counter is not None:
            staleness = counter.increment(count_before, updates)
            updates.append(staleness)
        result = self._build_result(towers, totals, updates, l2_loss)
        return result._replace(skipped=skipped, staleness=staleness)

    def _build_earlier_pass(
        self, sums: PassAccumulator, number: tf.Tensor, *batches: TowerBatch
    ) -> None:
        """Builds a pass of a step except the last pass: it only adds its results to the sums."""
        last, self._pass = self._pass, number
        sums.add(self._build_towers(batches, self.loss_scale.factor(), None))
        self._pass = last

    def _build_towers(
        self, batches: Sequence[TowerBatch], factor: Factor, count_before: tf.Tensor | None
    ) -> list[TowerResult]:
        # Synchronised towers are built together, and frozen towers contain their own constants, so
        # neither can be copies of the first tower.
        alone = len(self._towers) == 1 or self._synchronises or self._plan.numerics.frozen
        copied = None if alone else TowerCopier(self._towers[0], self.notices.append)
        return self._manager.run_towers(
            lambda tower: self._build_tower(tower, batches, factor, count_before, copied),
            exchanges_values=self._synchronises,
        )

    def _build_seed(self, tower: int, count_before: tf.Tensor | None) -> tf.Tensor:
        """Builds the seed, int64 [2], of random draws in a tower and step."""
        del count_before  # Only `CoordinatedStep` uses this argument.
        number, done = self._first_tower + tower, self._counter
        passes = self._plan.params.gradient_accumulation_steps
        if passes > 1:
            done = done * passes + self._pass
        return tf.stack([tf.constant(self._plan.params.tf_random_seed + number, tf.int64), done])

    def _build_tower(
        self,
        tower: int,
        batches: Sequence[TowerBatch],
        factor: Factor,
        count_before: tf.Tensor | None = None,
        copied: TowerCopier[TowerResult] | None = None,
        *,
        staged: bool = True,
    ) -> TowerResult:
        """Builds the pass of one tower, as a copy of the first tower if `copied` is given.

        The tower reads variables after `count_before`. With `staged`, reads of staged variables
        return the values of the previous step.
        """
        with tf.device(self._devices[tower]), tf.name_scope(f"tower_{tower}"):
            features, labels, _ = self.inputs.get_tower_batch(tower, batches)
            seed = self._build_seed(tower, count_before)

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if self._plan.numerics.frozen:
                    with tf.init_scope():
                        value = tf.cast(self._manager.variable(tower, spec.name), dtype).numpy()
                    return tf.constant(value, dtype)
                reader = self._manager.read_for_step if staged else self._manager.read
                with tf.control_dependencies([] if count_before is None else [count_before]):
                    return reader(tower, spec.name, dtype)

            make = self._towers[tower] if copied is None else copied
            return make(read, features, labels, seed, factor)

    def _build_gradients(
        self, *batches: TowerBatch
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Builds the gradients of tower 0 by canonical name, and the tensors of its batch."""
        factor = self.loss_scale.factor()
        build = partial(self._build_tower, batches=batches, factor=factor, staged=False)
        if self._synchronises:  # Such towers cannot be built one by one.
            result = self._manager.run_towers(build, exchanges_values=True)[0]
        else:
            result = build(0)
        with tf.device(self._devices[0]):
            inverse = inverse_scale(factor)
            passes = self._plan.params.gradient_accumulation_steps
            # The gradients of each pass contain the factor 1 / passes, which would make them too
            # small in summaries.
            if passes > 1:
                inverse = float(passes) * (1.0 if inverse is None else inverse)
            trainables = [v for v in self._plan.network.spec.variables if v.trainable]
            by_name = {
                spec.name: tf.convert_to_tensor(divide_by_scale(gradient, inverse))
                for spec, gradient in zip(trainables, result.gradients, strict=True)
                if gradient is not None
            }
            parts = tf.nest.flatten(self.inputs.get_tower_batch(0, batches))
            return by_name, [tf.identity(part) for part in parts if part is not None]

    def _build_sums(self, towers: Sequence[TowerResult]) -> list[tf.Tensor]:
        """Builds the sums of the loss and of the metrics over this step's towers.

        If workers can request the end of the run, the last value is this worker's request.
        """
        columns = [[tower.loss for tower in towers]]
        columns += [[tower.metrics[name] for tower in towers] for name in towers[0].metrics]
        with tf.device(self._devices[0]), tf.name_scope("sums"):
            sums = [gradients.sum_tensors(column) for column in columns]
            return [*sums, *map(read, self._stop)]

    def _build_result(
        self,
        towers: Sequence[TowerResult],
        totals: Sequence[tf.Tensor],
        updates: Sequence[Any],
        l2_loss: Callable[[], tf.Tensor] | None = None,
    ) -> StepResult:
        """Builds the means over all towers of the job, which are computed after all `updates`.

        `totals` are the sums of `_build_sums` over all workers. `l2_loss` builds the L2 loss
        if the reported loss contains it.
        """
        with tf.device(self._devices[0]), tf.name_scope("means"):
            sums = list(totals)
            stop = sums.pop() if self._stop else None
            count = self._manager.num_towers
            loss, *metrics = sums if count == 1 else [total / float(count) for total in sums]
        with tf.device(self._devices[0]), tf.name_scope("result"):
            if l2_loss is not None:
                loss = loss + l2_loss()
            with tf.control_dependencies(group_dependencies(updates, self._devices[0])):
                by_name = dict(zip(towers[0].metrics, metrics, strict=True))
                return StepResult(tf.identity(loss), by_name, stop=stop)


class CoordinatedStep(TrainStep):
    """A `TrainStep` that a coordinator of tf.distribute runs on any idle worker.

    It needs a counter, and a `CoordinatedInput`, which also reads the worker's number. Random draws
    depend on the worker's number and on the count of updates.
    """

    inputs: CoordinatedInput
    _manager: StrategyVariableMgr
    _updates_counter: UpdateCounter
    _counts_steps = False

    def _trace(self) -> TracedFunction:
        """Creates the coordinator, which the step needs, and traces the step without running it.

        TensorFlow's messages about lost workers are hidden, because cnnbench reports the losses.
        """
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._manager.strategy)
        return TracedFunction("the step", self._build_update, (_RATE,))

    def resume(self, global_step: int) -> None:
        """Sets the number of completed updates, which random draws depend on."""
        self._updates_counter.resume(global_step)

    def __call__(self, *learning_rates: float) -> StepResult:
        """Schedules an update, and waits for its result."""
        return self.schedule(*learning_rates)()

    def schedule(self, learning_rate: float) -> Callable[[], StepResult]:
        """Schedules an update on an idle worker. Returns a function that waits for its result.

        Both functions are thread-safe. If the worker is killed, the update is repeated on another
        worker, although it may have been applied.
        """
        self.inputs.next()
        scheduled = time.perf_counter()
        arguments = (self._rate_tensor(learning_rate),)
        remote = self._coordinator.schedule(self.function.concrete, args=arguments)
        return partial(self._finish, remote, scheduled)

    def _finish(self, remote: Any, scheduled: float) -> StepResult:
        results = self._wait_for_result(remote).numpy()
        fetched = zip(tf.nest.flatten(self._fields), results, strict=True)
        tensors = [tf.cast(tf.constant(value), spec.dtype) for spec, value in fetched]
        values = dict(tf.nest.pack_sequence_as(self._fields, tensors))
        self.inputs.note_step_end(int(values["worker"].numpy()), scheduled)
        return StepResult(**values)

    def _wait_for_result(self, remote: Any) -> tf.Tensor:
        """Waits for the result of a scheduled update, which another worker repeats after a loss."""
        while True:
            try:
                return remote.get()
            except tf.errors.OpError as error:
                if self.inputs.error is not None:
                    raise self.inputs.error from error
                lost = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
                if not lost or "/job:ps" in str(error):
                    raise
            # The worker was killed after the step and before its result was copied.
            # The coordinator repeats the step on another worker, whose result is used.
            time.sleep(_RETRY_SECONDS)

    def _build_update(self, rate: tf.Tensor) -> tf.Tensor:
        """Builds a step that returns its results in one float64 tensor."""
        result = self._build_step(rate)._replace(worker=self.inputs.worker_number())
        scalars = {name: value for name, value in result._asdict().items() if value is not None}
        self._fields = tf.nest.map_structure(lambda x: tf.TensorSpec([], x.dtype), scalars)
        return tf.stack([tf.cast(scalar, tf.float64) for scalar in tf.nest.flatten(scalars)])

    def _build_seed(self, tower: int, count_before: tf.Tensor | None) -> tf.Tensor:
        del tower
        assert count_before is not None
        seed = self._plan.params.tf_random_seed + self.inputs.worker_number()
        return tf.stack([seed, count_before])
