"""The traced training step of all towers.

Tracing again would take seconds of a timed step, and later steps would run another graph than the
one that was warmed up. What is called between timed steps is therefore traced for one signature,
and a call with another one is an error that names it.

Tracing makes operations, and the gradients of each, one by one from Python; an import makes all of
them at once. ResNet-50: 1.1 s of CPU time for a tower traced, 0.2 s for a copy. A copy has its own
tower's values of variables, batch and seed.

for each tower, on its device:   forward, loss, gradients
    manager:                         reduce the gradients over the towers
    loss scale:                      skip the updates below if a gradient is not finite
    for each device with variables:  weight decay, clipping, optimizer update
    tower 0 (policy --bn_stats):     moving averages of batch normalisation

The returned loss has a control dependency on every update, so the step is over when it is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import tensorflow as tf

from cnnbench.base.interrupts import restored
from cnnbench.base.job import is_cpu
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.data.pipeline import ReadEvents, ScalarReader
from cnnbench.data.prefetch import CoordinatedInput
from cnnbench.errors import RetraceError, first_line
from cnnbench.models.graph import Reader
from cnnbench.models.int8 import Calibration
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.run.step.tower import (
    Factor,
    LossScale,
    PassSums,
    StepConfig,
    Tower,
    TowerResult,
    inverse_of,
    unscaled,
)
from cnnbench.run.step.update import Optimizer, UpdateCounter, Updater, signals
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr import towers as tower_variable
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies import StrategyVariableMgr

# Functions that are traced once, before anything is timed.


class TracedFunction:
    """A function traced for one signature.

    Args:
      name: for messages, such as "the training step".
      function: takes and returns nests of tensors; makes no variables, or it is traced twice.
      signature: for each argument a nest of tf.TensorSpec.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], signature: Sequence[Any] = ()
    ) -> None:
        self._name = name
        self._signature = tuple(signature)
        self.traces = 0

        def counted(*arguments: Any) -> Any:
            self.traces += 1
            return function(*arguments)

        traced = tf.function(counted, autograph=False)
        self.concrete = traced.get_concrete_function(*self._signature)

    def __call__(self, *arguments: Any) -> Any:
        """Calls it with arguments of its signature; RetraceError for others."""
        try:
            return self.concrete(*arguments)
        except TypeError as error:
            changed = _changed(self._signature, arguments)
            if not changed:
                raise
            raise RetraceError(
                f"{self._name} would have to be traced again: {'; '.join(changed)}"
            ) from error


def _changed(signature: Any, arguments: Any) -> list[str]:
    before, now = (dict(_parts(value, "")) for value in (signature, arguments))
    return [
        f"{path} was {before.get(path, 'not there')} and is {now.get(path, 'not there')}"
        for path in dict.fromkeys((*before, *now))
        if before.get(path) != now.get(path)
    ]


def _parts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path and "dtype[shape]" of every tensor in a nest, such as "0.features"."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _parts(part, f"{path}.{name}" if path else f"{name}")
    elif value is not None:
        sizes = ", ".join("?" if size is None else str(size) for size in value.shape)
        yield path, f"{tf.as_dtype(value.dtype).name}[{sizes}]"


# Copies of the first tower's graph, which are built faster than by tracing each tower.

_R = TypeVar("_R")

_WITH_BODIES = frozenset({"StatelessWhile", "StatelessIf", "StatelessCase"})


class CopiedTowers(Generic[_R]):
    """Builds the towers of one traced function, which differ in device and inputs.

    Args:
      trace: makes the first tower in the current name scope and on the current device: trace(read,
        *given) returns a nest of tensors and of values that are the same for all towers.
      tell: prints a line if TensorFlow rejects a copy; all towers are traced then.
    """

    def __init__(self, trace: Callable[..., _R], tell: Callable[[str], object]) -> None:
        self._trace = trace
        self._tell = tell
        self._traced = False
        self._original: _Original | None = None

    def __call__(self, read: Reader, *given: Any) -> _R:
        """Builds one tower, in the current name scope and on the current device.

        `given` are nests of the tower's other inputs; their tensors, at least one, are made within
        the function.
        """
        tensors = [x for x in tf.nest.flatten(given) if isinstance(x, tf.Tensor)]
        assert all(map(tf.is_symbolic_tensor, tensors)), "a captured value looks like any tower's"
        if self._original is not None:
            try:
                with restored():
                    return self._original.copy(read, tensors)  # type: ignore[no-any-return]
            except Exception as error:  # whatever another version of TensorFlow may raise
                self._give_up(error)
        if self._traced:
            return self._trace(read, *given)
        graph = tensors[0].graph
        reads: list[tuple[VariableSpec, tf.DType, tf.Tensor]] = []
        of_reads: set[int] = set()  # numbers of operations

        def recorded(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            begin = len(graph.get_operations())
            reads.append((spec, dtype, read(spec, dtype)))
            of_reads.update(range(begin, len(graph.get_operations())))
            return reads[-1][-1]

        start = len(graph.get_operations())
        result = self._trace(recorded, *given)
        self._traced = True
        try:
            with restored():
                made = [o for n, o in enumerate(graph.get_operations()) if n not in of_reads]
                body = _body(made[start:])
                if body:
                    self._original = _Original(graph, body, reads, tensors, result)
        except Exception as error:
            self._give_up(error)
        return result

    def _give_up(self, error: Exception) -> None:
        self._original = None
        reason = f"{type(error).__name__}: {first_line(error)}"
        self._tell(f"every tower is traced, which takes longer: its graph has no copy ({reason})")


def _body(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """The operations of a tower that a copy repeats; empty if the tower cannot be copied."""
    # A captured tensor is a placeholder of the function, the same for all towers.
    body = [operation for operation in operations if operation.type != "Placeholder"]
    # A stateful operation, such as tf.random.uniform, would share its state with its copies or
    # draw the same numbers. Bodies of loops and branches name the first tower's device. For an
    # operation on another device than the tower's, the device in another tower is unknown.
    if any(one.op_def.is_stateful or one.type in _WITH_BODIES for one in body):
        return []
    return body if len({operation.device for operation in body}) == 1 else []


class _Original:
    """A definition, without devices, of the tower traced in the current name scope and device.

    `body` has its operations except those that read variables; `reads` has variable, dtype and
    value of each read; `given` are its other inputs, flat.
    """

    def __init__(
        self,
        graph: tf.Graph,
        body: Sequence[tf.Operation],
        reads: Sequence[tuple[VariableSpec, tf.DType, tf.Tensor]],
        given: Sequence[tf.Tensor],
        result: Any,
    ) -> None:
        self._graph = graph
        self._reads = reads
        self._given = given
        self._result = result
        self._scope = f"{graph.get_name_scope()}/"
        self._inside = {operation.name for operation in body}
        # Inputs from outside the tower, by their names in the definition.
        self._outer: dict[str, str] = {}
        self._nodes = [self._node(operation) for operation in body]

    def copy(self, read: Reader, given: Sequence[tf.Tensor]) -> Any:
        """Adds a copy of the tower, in the current name scope and on the current device."""
        own = {before.name: now for before, now in zip(self._given, given, strict=True)}
        for spec, dtype, before in self._reads:
            own[before.name] = read(spec, dtype)
        parts = tf.nest.flatten(self._result, expand_composites=True)
        shapes = {part.name: part.shape for part in parts if isinstance(part, tf.Tensor)}
        wanted = [name for name in shapes if name.partition(":")[0] in self._inside]
        found = {name: self._outside(name, own) for name in shapes if name not in wanted}
        scope = f"{self._graph.get_name_scope()}/"

        def renamed(name: str) -> str:
            return name.replace(self._scope, scope, 1)

        made = tf.graph_util.import_graph_def(
            self._definition(renamed),
            input_map={key: self._outside(name, own) for key, name in self._outer.items()},
            return_elements=[renamed(name) for name in wanted],
            name="",  # keeps the names that a trace would have
        )
        for name, tensor in zip(wanted, made, strict=True):
            tensor.set_shape(shapes[name])  # a definition has no shapes from set_shape
            found[name] = tensor
        own_parts = [found[x.name] if isinstance(x, tf.Tensor) else x for x in parts]
        return tf.nest.pack_sequence_as(self._result, own_parts, expand_composites=True)

    def _outside(self, name: str, own: dict[str, tf.Tensor]) -> tf.Tensor:
        if name.startswith("^"):
            return self._graph.get_operation_by_name(name[1:]).outputs[0]
        return own[name] if name in own else self._graph.get_tensor_by_name(name)

    def _node(self, operation: tf.Operation) -> Any:
        node = operation.node_def
        node.input[:] = [self._input(name) for name in node.input]
        node.device = ""
        if "_class" in node.attr:
            kept = [c for c in node.attr["_class"].list.s if c.decode()[5:] in self._inside]
            del node.attr["_class"]
            if kept:
                node.attr["_class"].list.s.extend(kept)
        return node

    def _input(self, name: str) -> str:
        operation, _, number = name.removeprefix("^").partition(":")
        if operation in self._inside:
            return name
        elsewhere = f"elsewhere/{operation.replace('/', '.')}"
        if name.startswith("^"):
            self._outer[f"^{elsewhere}"] = name
            return f"^{elsewhere}"
        self._outer[f"{elsewhere}:{number or 0}"] = f"{operation}:{number or 0}"
        return f"{elsewhere}:{number or 0}"

    def _definition(self, renamed: Callable[[str], str]) -> Any:
        definition = tf.Graph().as_graph_def()
        for original in self._nodes:
            node = definition.node.add()
            node.CopyFrom(original)
            node.name = renamed(node.name)
            node.input[:] = [renamed(name) for name in node.input]
            if "_class" in node.attr:
                old = node.attr["_class"].list.s
                old[:] = [renamed(c.decode()).encode() for c in old]
        return definition


# One training step of all towers as a single traced function.

RATE = tf.TensorSpec([], tf.float32, name="learning_rate")
"""The first argument of a traced step."""
_PASS = tf.TensorSpec([], tf.int64, name="pass")


class StepResult(NamedTuple):
    """Scalars of one step over all towers.

    Attributes:
      loss: float32.
      metrics: those of the model by name, float32; empty unless asked for.
      skipped: bool, whether an update was left out because its gradients were not finite; None
        where updates are not conditional.
      stop: float32, sum over the workers of what `TrainStep.request_stop` was called with before
        this step; None where one step has all towers.
      staleness: int64, updates by others since the variables were read; None where updates are not
        counted.
      worker: int64, number of the worker that made the update; None where it is known anyway.
    """

    loss: tf.Tensor
    metrics: dict[str, tf.Tensor]
    skipped: tf.Tensor | None = None
    stop: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    worker: tf.Tensor | None = None


class TrainStep:
    """Builds and runs the step of one model under one variable manager.

    The slots of `optimizer` (None with `forward_only`) have been created; `counter` counts the
    updates where other steps update the same variables. `function` takes the learning rate
    (float32) and the batches; `notices` are lines for the user.
    """

    _counts_steps = True
    """Whether random draws depend on the number of steps of this object."""

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        manager: VariableMgr,
        optimizer: Optimizer | None,
        inputs: InputSource,
        config: StepConfig,
        loss_scale: LossScale,
        counter: UpdateCounter | None = None,
    ) -> None:
        self._manager = manager
        self._inputs = inputs
        self._config = config
        self._devices = manager.get_devices()
        self._towers = [
            Tower(model, spec, config, device, manager.workers) for device in self._devices
        ]
        self._trainables = [v for v in spec.variables if v.trainable]
        self.loss_scale = loss_scale
        self._updates_counter = counter
        self._rate_tensors: dict[float, tf.Tensor] = {}
        if self._counts_steps:
            # Not while tracing: a function that creates variables is traced twice.
            with tf.device(self._devices[0]):
                self._counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
        self._update: Updater | None = None
        if optimizer is not None:
            number = self._counter if self._counts_steps else None
            made = (manager, self._trainables, optimizer, loss_scale, config, number)
            self._update = Updater(*made)
        self._stop: tf.Variable | None = None
        if manager.workers is not None:
            with tf.device(self._devices[0]):
                self._stop = tf.Variable(0.0, trainable=False, name="stop")
        self._keeps_batches = False
        self._batches: Any = None
        self.notices: list[str] = []
        self._pass: Any = config.passes - 1
        self._sums = PassSums(manager, spec, loss_scale, config) if config.passes > 1 else None
        self._earlier: TracedFunction | None = None
        if self._sums is not None:
            self._passes = [tf.constant(number, tf.int64) for number in range(self._pass)]
            signature = (_PASS, *inputs.signature)
            self._earlier = TracedFunction("a pass", self._earlier_pass, signature)
        self.function = self._traced()

    def _traced(self) -> TracedFunction:
        """Traces the step (seconds for a deep network); nothing runs yet."""
        made = TracedFunction("the step", self._step, (RATE, *self._inputs.signature))
        device = self._devices[0]  # see `_result`
        self._reader: ScalarReader | None = None
        if not is_cpu(device):
            outputs = made.concrete.structured_outputs
            self._reader = ScalarReader(device, self._config.host, outputs)
        return made

    @property
    def reduction_operations(self) -> int | None:
        """See `Updater.reduction_operations`; None with `forward_only`."""
        return None if self._update is None else self._update.reduction_operations

    @property
    def input_wait_seconds(self) -> float:
        """Total time spent waiting for batches."""
        return self._inputs.wait_seconds

    @property
    def graph(self) -> tf.Graph:
        """The traced graph."""
        return self.function.concrete.graph

    def request_stop(self, reason: float) -> None:
        """Lets the next step tell all workers that the run ends, and why: `StepResult.stop`."""
        assert self._stop is not None
        self._stop.assign(reason)

    def resume(self, global_step: int) -> None:
        """Sets the number of steps done, on which random draws depend."""
        self._counter.assign(global_step)

    def __call__(self, learning_rate: float) -> StepResult:
        """Fetches a batch per tower and pass, and launches one step."""
        if self._earlier is not None:
            for number in self._passes:
                self._earlier(number, *self._inputs.next())
        batches = self._inputs.next()
        if self._keeps_batches:
            self._batches = batches
        result: StepResult = self.function(self._rate_tensor(learning_rate), *batches)
        return result

    def on_host(self, result: StepResult, events: ReadEvents) -> StepResult:
        """The result in host memory: read by a `ScalarReader` from a GPU, unchanged from a CPU."""
        return result if self._reader is None else self._reader(result, events)

    def last_gradients(self) -> Callable[[], tuple[dict[str, tf.Tensor], list[tf.Tensor]]]:
        """Traces a function; from now on the last step's batches are kept for it.

        It returns the gradients of tower 0, where they exist, by canonical name, and the parts of
        its batch. They are computed again from the weights after the last step and the batch of
        that step, without weight decay and loss scale; nothing is updated.
        """
        self._keeps_batches = True
        name = "the gradients for summaries"
        traced = TracedFunction(name, self._tower_0, self._inputs.signature)
        return lambda: traced(*self._batches)

    def _rate_tensor(self, rate: float) -> tf.Tensor:
        """The rate of an update by reduced gradients; the same tensor for the same rate."""
        found = self._rate_tensors.get(rate)
        if found is None:
            with tf.device(self._config.host):
                found = tf.constant(rate * self._config.update.rate_factor, tf.float32)
            self._rate_tensors = {rate: found}
        return found

    def _step(self, rate: tf.Tensor, *batches: TowerBatch) -> StepResult:
        factor = None if self._config.forward_only else self.loss_scale.factor()
        begun = None if self._updates_counter is None else self._updates_counter.begin()
        towers = self._all_towers(batches, factor, begun)
        if self._sums is not None:
            towers = self._sums.total(towers)
        sums = self._scalar_sums(towers)
        if self._config.forward_only:
            losses = [tower.loss for tower in towers]
            return self._result(towers, self._manager.add_up(sums), [], losses)
        report = self._config.report_total_loss
        assert self._update is not None
        weight_losses = self._update.weight_losses() if report else []
        updates, skipped, totals = self._update(towers, factor, sums, rate)
        if self._sums is not None:
            updates = [*updates, *self._sums.clear(rate, updates)]
        if self._counts_steps:
            with tf.device(self._devices[0]):
                updates.append(self._counter.assign_add(1, read_value=False))
        staleness = None
        if self._updates_counter is not None:
            staleness = self._updates_counter.end(begun, updates)
            updates.append(staleness)
        result = self._result(towers, totals, weight_losses, updates)
        return result._replace(skipped=skipped, staleness=staleness)

    def _earlier_pass(self, number: tf.Tensor, *batches: TowerBatch) -> None:
        """A pass of a step before the last one: only adds its results."""
        assert self._sums is not None
        last, self._pass = self._pass, number
        self._sums.add(self._all_towers(batches, self.loss_scale.factor(), None))
        self._pass = last

    def _all_towers(
        self, batches: Sequence[TowerBatch], factor: Factor, begun: tf.Tensor | None
    ) -> list[TowerResult]:
        # Towers that synchronise are built at the same time; frozen ones differ in constants.
        alone = len(self._towers) == 1 or self._config.synchronises or self._config.frozen
        copied = None if alone else CopiedTowers(self._towers[0], self.notices.append)
        return self._run_towers(lambda tower: self._tower(tower, batches, factor, begun, copied))

    @property
    def foreign(self) -> tuple[str, ...]:
        """Places where a plug-in makes variables that the network uses but does not declare."""
        return self._towers[0].foreign

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the first tower's network, if it computes in 8-bit integers."""
        return self._towers[0].calibration

    def _draw_seed(self, tower: int, begun: tf.Tensor | None) -> tf.Tensor:
        """Seed of a tower and step, int64 [2]."""
        del begun  # used by steps with a shared counter of updates
        number, done = self._config.first_tower + tower, self._counter
        if self._config.passes > 1:
            done = done * self._config.passes + self._pass
        return tf.stack([tf.constant(self._config.seed + number, tf.int64), done])

    def _run_towers(self, build: Callable[[int], TowerResult]) -> list[TowerResult]:
        return self._manager.run_towers(build, meeting=self._config.synchronises)

    def _tower(
        self,
        tower: int,
        batches: Sequence[TowerBatch],
        factor: Factor,
        begun: tf.Tensor | None = None,
        copied: CopiedTowers[TowerResult] | None = None,
        *,
        ahead: bool = True,
    ) -> TowerResult:
        """Builds a tower's pass, which reads variables after `begun`, by `copied` if given.

        With staged variables, `ahead` includes the reads for the next step.
        """
        with tf.device(self._devices[tower]), tf.name_scope(f"tower_{tower}"):
            features, labels, _ = self._inputs.of_tower(tower, batches)
            seed = self._draw_seed(tower, begun)

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if self._config.frozen:
                    with tf.init_scope():
                        value = tf.cast(self._manager.variable(tower, spec.name), dtype).numpy()
                    return tf.constant(value, dtype)
                reader = self._manager.read_for_step if ahead else self._manager.read
                with tf.control_dependencies([] if begun is None else [begun]):
                    return reader(tower, spec.name, dtype)

            make = self._towers[tower] if copied is None else copied
            return make(read, features, labels, seed, factor)

    def _tower_0(self, *batches: TowerBatch) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        factor = self.loss_scale.factor()

        def build(tower: int) -> TowerResult:
            return self._tower(tower, batches, factor, ahead=False)

        # Towers that synchronise can only be built together.
        of_tower = self._run_towers(build)[0] if self._config.synchronises else build(0)
        found = of_tower.gradients
        with tf.device(self._devices[0]):
            inverse = inverse_of(factor)
            if self._config.passes > 1:  # the gradients of a pass are divided by their number
                inverse = float(self._config.passes) * (1.0 if inverse is None else inverse)
            made = {
                spec.name: tf.convert_to_tensor(unscaled(gradient, inverse))
                for spec, gradient in zip(self._trainables, found, strict=True)
                if gradient is not None
            }
            parts = tf.nest.flatten(self._inputs.of_tower(0, batches))
            return made, [tf.identity(part) for part in parts if part is not None]

    def _scalar_sums(self, towers: Sequence[TowerResult]) -> list[tf.Tensor]:
        """Sums of loss and metrics over the towers of this step, then any request to stop."""
        columns = [[tower.loss for tower in towers]]
        columns += [[tower.metrics[name] for tower in towers] for name in towers[0].metrics]
        with tf.device(self._devices[0]), tf.name_scope("sums"):
            sums = [gradients.add_up(column) for column in columns]
            if self._stop is not None:
                sums.append(tower_variable.read(self._stop))
            return sums

    def _result(
        self,
        towers: Sequence[TowerResult],
        totals: Sequence[tf.Tensor],
        weight_losses: Sequence[tf.Tensor],
        updates: Sequence[Any],
    ) -> StepResult:
        """Means over all towers of the job, with `_scalar_sums` `totals`, after all updates."""
        with tf.device(self._devices[0]), tf.name_scope("means"):
            sums, stop = list(totals), None
            if self._stop is not None:
                stop = sums.pop()
            count = self._manager.num_towers
            loss, *metrics = sums if count == 1 else [total / float(count) for total in sums]
        with tf.device(self._devices[0]), tf.name_scope("result"):
            if weight_losses:
                assert self._update is not None
                loss = loss + self._update.l2_loss(weight_losses)
            with tf.control_dependencies(signals(updates, self._devices[0])):
                by_name = dict(zip(towers[0].metrics, metrics, strict=True))
                return StepResult(tf.identity(loss), by_name, stop=stop)


# One step for all workers of a job, run by a ClusterCoordinator on any idle worker.

_RETRY_SECONDS = 0.05


class CoordinatedStep(TrainStep):
    """A `TrainStep`, with a counter and a `CoordinatedInput`, that reads its worker's number.

    Draws depend on the number of the worker and on the updates counted before.
    """

    _inputs: CoordinatedInput
    _counts_steps = False

    def _traced(self) -> TracedFunction:
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)  # cnnbench reports losses
        assert isinstance(self._manager, StrategyVariableMgr)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._manager.strategy)
        self._waited = 0.0
        self._waits = threading.Lock()
        return TracedFunction("the step", self._scheduled, (RATE,))

    @property
    def input_wait_seconds(self) -> float:
        """Mean time that workers spent waiting for batches."""
        return self._waited / len(self._inputs.devices)

    def resume(self, global_step: int) -> None:
        """See `TrainStep.resume`."""
        assert self._updates_counter is not None
        self._updates_counter.resume(global_step)

    def __call__(self, learning_rate: float) -> StepResult:
        """Schedules an update and waits for it; thread-safe.

        An update whose worker is killed is made again on another worker, though the first may have
        been applied.
        """
        self._inputs.next()
        arguments = (self._rate_tensor(learning_rate),)
        remote = self._coordinator.schedule(self.function.concrete, args=arguments)
        fetched = zip(tf.nest.flatten(self._fields), self._table(remote).numpy(), strict=True)
        found = [tf.cast(tf.constant(value), spec.dtype) for spec, value in fetched]
        values = dict(tf.nest.pack_sequence_as(self._fields, found))
        self._inputs.taken(int(values["worker"].numpy()))
        with self._waits:
            self._waited += float(values.pop("waited").numpy())
        return StepResult(**values)

    def _table(self, remote: Any) -> tf.Tensor:
        while True:
            try:
                return remote.get()
            except tf.errors.OpError as error:
                if self._inputs.error is not None:
                    raise self._inputs.error from error
                lost = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
                if not lost or "/job:ps" in str(error):
                    raise
            # The worker was killed between the end of the step and the copy of its result. The
            # coordinator gives the step to another one, whose result comes in its place.
            time.sleep(_RETRY_SECONDS)

    def _scheduled(self, rate: tf.Tensor) -> tf.Tensor:
        """`StepResult`'s fields and the wait for input, as one float64 tensor for one message."""
        result = self._step(rate)._replace(worker=self._inputs.worker())
        made = {name: value for name, value in result._asdict().items() if value is not None}
        made["waited"] = self._inputs.waited
        self._fields = tf.nest.map_structure(lambda scalar: tf.TensorSpec([], scalar.dtype), made)
        return tf.stack([tf.cast(scalar, tf.float64) for scalar in tf.nest.flatten(made)])

    def _draw_seed(self, tower: int, begun: tf.Tensor | None) -> tf.Tensor:
        del tower
        assert begun is not None
        return tf.stack([self._config.seed + self._inputs.worker(), begun])
