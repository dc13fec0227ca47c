"""Creates the TensorFlow objects of a run: variables, input, step, evaluator and checkpoints.

It also times input pipelines. Batches that are already in buffers would falsify the throughput of a
pipeline, so the buffers are emptied before the pipeline is timed.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf

from cnnbench.base import plugins
from cnnbench.base.job import Task
from cnnbench.data import make_input
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, InputSpec, close_inputs
from cnnbench.data.pipeline import PipelineStage, ReadCallbacks
from cnnbench.data.prefetch import (
    WORKER_HOST,
    CoordinatedInput,
    InputDistribution,
    JoinedWorkerInput,
    delete_iterators_in_background,
    use_separate_tf_executor,
)
from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.run import InputStage
from cnnbench.run.driver.checkpoints import (
    Checkpoints,
    SavedModelExporter,
    check_tf_cnn_benchmarks_checkpoint,
    select_moving_averages,
)
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.host_metrics import HostMetricsChildExecutor, HostMetricsExecutor
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.train_step import CoordinatedStep, StepResult, TrainStep
from cnnbench.run.step.update import Optimizer, UpdateCounter
from cnnbench.variable_mgr import create
from cnnbench.variable_mgr.base import VariableMgr, WorkerGroup
from cnnbench.variable_mgr.modes import VariableMgrSpec
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.strategies import ParameterServerStrategyVariableMgr, StrategyVariableMgr
from cnnbench.variable_mgr.towers import TowerVariable

# Steps that only fetch input, without a network, and the timing of input pipelines.

DEVICE_STAGE = "device"
"""Name of the whole pipeline as a stage, including copies of the batches to their devices."""

_STAGE_SECONDS = _WHOLE_SECONDS = 2.0
_DRAIN_SECONDS = 0.5


class InputOnlyStep:
    """A step that fetches a batch for each tower, and waits until the batches are on devices."""

    notices, calibration = (), None
    undeclared_variable_locations: tuple[str, ...] = ()

    def __init__(self, inputs: InputSource) -> None:
        self._inputs = inputs
        self._on_gpu = any("GPU" in device for device in inputs.devices)
        self._loss = tf.zeros([])

    def __call__(self, learning_rate: float = 0.0) -> StepResult:
        """Fetches one batch per tower, without training."""
        del learning_rate
        self._inputs.next()
        # On CPUs, copies of the batch are complete when `next` returns.
        if self._on_gpu:
            tf.test.experimental.sync_devices()
        return StepResult(self._loss, {})

    def copy_result_to_host(self, result: StepResult, events: ReadCallbacks) -> StepResult:
        """Returns `result` itself, because it is already on the host."""
        return result


def time_input(inputs: InputSource, *, in_step: bool) -> InputStage:
    """Times the whole input pipeline of a run, or of all workers whose steps this process runs.

    `inputs` must not be used afterwards, except to close it.

    Args:
      in_step: see `combine_pipelines`.
    """
    if in_step:
        return time_whole_pipeline(inputs)
    timings = [partial(time_whole_pipeline, source) for source in inputs.sources_to_time()]
    return combine_pipelines(_run_at_the_same_time(timings), in_step=False)


def time_stages(inputs: InputSource, max_examples: int) -> list[InputStage]:
    """Times the input pipeline of all workers up to each stage. `inputs` must be closed.

    Each stage is timed until `max_examples` are fetched, but for at most two seconds.
    """
    sources = inputs.sources_to_time()
    share = -(-max_examples // len(sources))
    timed = []
    for stages in zip(*(source.stages() for source in sources), strict=True):
        timings = [
            partial(time_pipeline_up_to_stage, stage, source.spec, share)
            for stage, source in zip(stages, sources, strict=True)
        ]
        timed.append(combine_pipelines(_run_at_the_same_time(timings), in_step=True))
    return timed


def combine_pipelines(stages: Sequence[InputStage], *, in_step: bool) -> InputStage:
    """Computes the speed of the input of a job from the speeds of the workers' pipelines.

    Args:
      stages: the same stage of each worker's pipeline, measured at the same time.
      in_step: whether each step needs a batch from every worker. If so, the slowest worker limits
        the job. Otherwise the speeds of the workers add up.
    """
    first, *others = stages
    if not others:
        return first
    if in_step:
        slowest = min(stages, key=lambda stage: stage.examples_per_sec)
        return dataclasses.replace(slowest, examples=slowest.examples * len(stages))
    examples = sum(stage.examples for stage in stages)
    seconds = examples / sum(stage.examples_per_sec for stage in stages)
    return InputStage(name=first.name, examples=examples, seconds=seconds)


def _run_at_the_same_time(timings: Sequence[Callable[[], InputStage]]) -> list[InputStage]:
    if len(timings) == 1:
        return [timings[0]()]
    all_started = threading.Barrier(len(timings))

    def run(timing: Callable[[], InputStage]) -> InputStage:
        # A thread that gets its executor waits for pending operations without releasing Python's
        # lock, so an operation that calls Python code would never end.
        use_separate_tf_executor()
        all_started.wait()
        return timing()

    with ThreadPoolExecutor(len(timings)) as threads:
        return [*threads.map(run, timings)]


def time_whole_pipeline(inputs: InputSource) -> InputStage:
    """Times a whole input pipeline, including copies to devices, after emptying its buffers.

    Fetches at least one batch for each tower.
    """
    step = InputOnlyStep(inputs)
    spec = inputs.spec
    buffered = spec.datasets_prefetch_buffer_size + spec.multi_device_iterator_max_buffer_size
    # tf.data decodes about as many examples at the same time as the machine has cores.
    decoding = -(-2 * (os.cpu_count() or 1) // spec.process_batch_size)
    for _ in range(buffered + decoding + 2):
        step()
    return _time_fetches(DEVICE_STAGE, step, spec.process_batch_size, None, _WHOLE_SECONDS)


def time_pipeline_up_to_stage(
    stage: PipelineStage, spec: InputSpec, max_examples: int
) -> InputStage:
    """Times a pipeline up to and including one stage. The pipeline must not be in use.

    The stage is timed until `max_examples` are fetched, but for at most two seconds.
    """
    chunk = max(1, spec.batch_per_device // stage.examples)
    # tf.data drops the elements, so that the time excludes their conversion to Python objects.
    with tf.device(spec.host):
        dropped = stage.dataset.map(
            tf.autograph.experimental.do_not_convert(lambda *_: tf.zeros([], tf.int8))
        )
        iterators = [iter(dropped.batch(chunk))]
    try:
        start = time.perf_counter()
        next(iterators[0])
        while time.perf_counter() - start < _DRAIN_SECONDS:
            next(iterators[0])
        fetched = chunk * stage.examples
        return _time_fetches(
            stage.name, lambda: next(iterators[0]), fetched, max_examples, _STAGE_SECONDS
        )
    finally:
        delete_iterators_in_background(iterators)


def _time_fetches(
    name: str,
    fetch: Callable[[], object],
    per_fetch: int,
    max_examples: int | None,
    seconds: float,
) -> InputStage:
    """Calls `fetch` for `seconds`, or until `max_examples` are fetched. Returns the count."""
    done = 0
    start = time.perf_counter()
    while True:
        fetch()
        done += per_fetch
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or (max_examples is not None and done >= max_examples):
            return InputStage(name=name, examples=done, seconds=elapsed)


# The TensorFlow objects of a run: variables, input, step, evaluator, checkpoints.

# Number of updates in flight per worker: one runs and one waits, so that no worker is idle.
_UPDATES_PER_WORKER = 2


@dataclass(frozen=True)
class BuiltRun:
    """The TensorFlow objects of a run: variables, inputs, steps, evaluator and checkpoints.

    Attributes:
      step: the training step or forward-only step, or a step that only fetches input; None if the
        run only evaluates.
      inputs: input of the step; None if the run only evaluates.
      manager: variables of the network; None if only the input is measured.
      slots: slots of the optimizer, by canonical name.
      workers: steps of asynchronous workers, by task; `step` is the first of these steps. With a
        coordinator, it contains `step` once for each update that may be in flight. It is empty if
        all towers are part of one step.
      lag: number of steps in flight while the loop waits for a result, see `StepLoop`.
    """

    step: TrainStep | InputOnlyStep | None
    inputs: InputSource | None
    _: dataclasses.KW_ONLY
    devices: runtime.Devices
    manager: VariableMgr | None = None
    slots: Mapping[str, TowerVariable] = field(default_factory=dict)
    workers: Mapping[str, TrainStep] = field(default_factory=dict)
    evaluator: Evaluator | None = None
    checkpoints: Checkpoints | None = None
    exporter: SavedModelExporter | None = None
    lag: int = 0

    @property
    def worker_group(self) -> WorkerGroup | None:
        """The workers of the job, if each worker runs its own step; otherwise None."""
        return None if self.manager is None else self.manager.workers

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """Training input and evaluation input, if they exist."""
        evaluated = None if self.evaluator is None else self.evaluator.inputs
        return tuple(source for source in (self.inputs, evaluated) if source is not None)

    def broadcast_restored_state_and_numbers(self, *numbers: int) -> list[int]:
        """Sends the chief's variables and numbers to all workers that run their own steps.

        Args:
          numbers: numbers that depend on the checkpoint, such as the global step and the number of
            steps left. Only the chief has the correct numbers.

        Returns:
          The chief's numbers.
        """
        if self.manager is None or self.manager.workers is None:
            return [*numbers]
        assert not isinstance(self.step, InputOnlyStep)
        scale = {} if self.step is None else self.step.loss_scale.variables()
        state = [TowerVariable(name, [variable]) for name, variable in scale.items()]
        variables = self.manager.savable_variables().values()
        self.manager.broadcast_from_chief([*variables, *self.slots.values(), *state])
        of_chief, *_ = self.manager.workers.gather_bytes(np.array(numbers, np.int64).tobytes())
        return [*map(int, np.frombuffer(of_chief, np.int64))]

    def close(self) -> None:
        """Closes the inputs of the run. A second call does nothing."""
        close_inputs(self.sources, CLOSE_SECONDS)


def build(plan: RunPlan, devices: runtime.Devices, console: Console) -> BuiltRun:
    """Creates the variables and the input of a run, and traces its functions.

    Raises:
      FlagError, DataError: the data cannot be used.
    """
    if plan.work is WorkKind.INPUT:
        source = make_inputs(plan, devices, "train")
        return BuiltRun(InputOnlyStep(source), source, devices=devices)
    if plan.params.train_dir is not None and devices.job.is_chief:
        check_tf_cnn_benchmarks_checkpoint(plan.params.train_dir, plan.network.spec)
    console.lines(
        f"Generating {'evaluation' if plan.work is WorkKind.EVALUATION else 'training'} model"
    )
    manager = _create_variables(plan, devices)
    optimizer = None
    if plan.work.trains:
        numerics = plan.numerics
        optimizer = Optimizer(numerics.optimizer_spec, numerics.constants, plan.params.ema_decay)
        for variables in manager.updated_groups():
            optimizer.create_slots(variables)
    evaluated, step, inputs, workers = _make_steps(plan, devices, manager, optimizer)
    slots = {} if optimizer is None else manager.savable_slots(optimizer)
    averages = select_moving_averages(slots)
    evaluator = None
    if plan.length.eval_batches:
        if plan.work.trains:
            console.lines("Generating evaluation model")
        evaluator = _make_evaluator(plan, devices, evaluated, averages)
    checkpoints = _make_checkpoints(plan, devices, manager, slots, step, inputs)
    exporter = None
    if plan.params.export_dir is not None:
        exporter = SavedModelExporter(plan, manager, devices.job.cpu_device, averages)
    return BuiltRun(
        step,
        inputs,
        devices=devices,
        manager=manager,
        slots=slots,
        workers=workers,
        evaluator=evaluator,
        checkpoints=checkpoints,
        exporter=exporter,
        lag=1 if devices.kind == "gpu" else 0,
    )


def _make_checkpoints(
    plan: RunPlan,
    devices: runtime.Devices,
    manager: VariableMgr,
    slots: Mapping[str, TowerVariable],
    step: TrainStep | None,
    inputs: InputSource | None,
) -> Checkpoints | None:
    """Creates the object that saves and restores checkpoints; None without --train_dir."""
    if plan.params.train_dir is None:
        return None
    return Checkpoints(
        manager,
        slots,
        plan.params.max_ckpts_to_keep,
        {} if step is None else step.loss_scale.variables(),
        host=devices.job.cpu_device if devices.job.in_cluster else None,
        outlives_others=plan.place.asynchronous,
        optimizer=plan.numerics.optimizer_spec.name if plan.work.trains else None,
        global_batch=plan.length.global_batch,
        # Skipped records are stored only if this process reads all data, in synchronous steps.
        inputs=None if plan.place.asynchronous or manager.workers is not None else inputs,
        spec=plan.network.spec,
        averaged=plan.params.ema_decay > 0 and not plan.work.trains,
    )


def make_inputs(
    plan: RunPlan, devices: runtime.Devices, subset: str, manager: VariableMgr | None = None
) -> InputSource:
    """Creates the input of a run, with one pipeline per worker.

    Args:
      subset: "train" or "validation".
      manager: variable manager whose tf.distribute strategy may distribute the batches; None if no
        strategy distributes them.
    """
    workers, shards = devices.job.own_workers, devices.job.num_workers
    if plan.place.asynchronous and subset != "train":
        # Only one worker evaluates, because other workers may be lost before the evaluation.
        workers, shards = workers[:1], 1
    distribution = None
    if manager is not None and plan.input.distribution is not None:
        assert isinstance(manager, StrategyVariableMgr)
        distribution = InputDistribution(manager.strategy, plan.input.distribution)
        if not distribution.by_pipeline:
            shards = 1  # One pipeline reads all data, and TensorFlow distributes its batches.
    sources = [
        _make_worker_input(plan, devices, subset, worker, shards, distribution)
        for worker in workers
    ]
    return sources[0] if len(sources) == 1 else JoinedWorkerInput(sources)


def _make_worker_input(
    plan: RunPlan,
    devices: runtime.Devices,
    subset: str,
    worker: Task,
    shards: int,
    distribution: InputDistribution | None = None,
    towers: Sequence[str] | None = None,
) -> InputSource:
    """Creates the input of one worker, which reads one of `shards` shards of the data on its CPU.

    `towers` are the devices of the batches, by default the devices of the worker's towers.
    """
    spec = plan.input.input_spec_of_worker(
        subset,
        num_shards=shards,
        shard_index=worker.index if shards > 1 else 0,
        host=worker.device("cpu"),
        datasets_num_private_threads=runtime.choose_input_threads(plan.params, devices.kind),
    )
    return make_input(spec, towers or devices.job.devices_of(worker), distribution)


def _make_evaluator(
    plan: RunPlan,
    devices: runtime.Devices,
    manager: VariableMgr,
    averages: Mapping[str, TowerVariable],
) -> Evaluator:
    host = HostMetricsExecutor(plan.network.model)
    if plan.input.metrics_in_process:
        files = plugins.plugin_files_of_flags(vars(plan.params))
        host = HostMetricsChildExecutor(plan.params.model, plan.network.dataset.name, files)
    inputs = make_inputs(plan, devices, "validation")
    return Evaluator(plan, manager, inputs, host, averages)


def _make_steps(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> tuple[VariableMgr, TrainStep | None, InputSource | None, Mapping[str, TrainStep]]:
    """Creates the step, the inputs and the workers' steps of `BuiltRun`.

    The first result is the variable manager whose variables an evaluation reads.
    """
    if plan.work is WorkKind.EVALUATION:
        return manager, None, None, {}
    if not plan.place.asynchronous and not plan.place.coordinated:
        inputs = make_inputs(plan, devices, "train", manager)
        if plan.numerics.frozen:
            # Tracing turns variables into constants, so all copies get their initial values now.
            manager.after_initialization()
        first = devices.job.own_towers.start
        step = TrainStep(
            plan, manager, optimizer, inputs, host=devices.job.cpu_device, first_tower=first
        )
        return manager, step, inputs, {}
    make = _make_coordinated_steps if plan.place.coordinated else _make_async_steps
    return make(plan, devices, manager, optimizer)


def _make_coordinated_steps(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> tuple[VariableMgr, TrainStep, InputSource, Mapping[str, TrainStep]]:
    """Creates what `_make_steps` returns for a coordinator: one step, which idle workers run."""
    job = plan.place.job
    assert isinstance(manager, ParameterServerStrategyVariableMgr)
    inputs = CoordinatedInput(
        [
            _make_worker_input(
                *(plan, devices, "train", worker, job.num_workers),
                towers=None if plan.params.data_dir is None else [worker.device("cpu")],
            )
            for worker in job.workers
        ]
    )
    counter = UpdateCounter(job.ps_devices[0])
    step = CoordinatedStep(plan, manager, optimizer, inputs, host=WORKER_HOST, counter=counter)
    slots = dict.fromkeys((f"slot {n}" for n in range(_UPDATES_PER_WORKER * job.num_workers)), step)
    return manager.make_worker_manager(devices.job.devices_of(job.workers[0])), step, inputs, slots


def _make_async_steps(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> tuple[VariableMgr, TrainStep, InputSource, Mapping[str, TrainStep]]:
    """Creates what `_make_steps` returns for asynchronous updates: a step and input per worker.

    All steps use the variables of one variable manager.
    """
    job = plan.place.job
    # Asynchronous updates are refused in modes with another variable manager.
    assert isinstance(manager, ParameterServerVariableMgr)
    counter = UpdateCounter(job.ps_devices[0])
    steps, sources = {}, []
    for worker in job.workers:
        source = _make_worker_input(plan, devices, "train", worker, job.num_workers)
        first = worker.index * job.towers_per_worker
        own = manager.make_worker_manager(devices.job.devices_of(worker))
        # Steps are traced one after another, because tracing is not thread-safe.
        steps[str(worker)] = TrainStep(
            *(plan, own, optimizer, source),
            host=devices.job.cpu_device,
            first_tower=first,
            counter=counter,
        )
        sources.append(source)
    first_worker = manager.make_worker_manager(devices.job.devices_of(job.workers[0]))
    return first_worker, next(iter(steps.values())), JoinedWorkerInput(sources), steps


def _create_variables(plan: RunPlan, devices: runtime.Devices) -> VariableMgr:
    """Creates the variable manager of the run's mode, and the variables of the network."""
    spec = VariableMgrSpec(
        variable_update=plan.place.mode.name,
        devices=devices.job.own_tower_devices,
        parameter_device="cpu" if plan.params.local_parameter_device == "cpu" else "towers",
        cpu_device=devices.job.cpu_device,
        ps_devices=devices.job.ps_devices,
        ps_strategy=plan.params.ps_strategy,
        variable_caching=plan.params.variable_caching,
        variable_dtype="float16" if plan.params.fp16_vars else "float32",
        reduction=plan.exchange.update.reduction,
        staged=plan.params.staged_vars and plan.work.trains,
        aggregation=plan.exchange.aggregation,
        cross_device=plan.exchange.cross_device,
        seed=plan.params.tf_random_seed,
        job=devices.job,
    )
    manager = create(spec, plan.network.spec.variables)
    manager.create_variables()
    return manager
