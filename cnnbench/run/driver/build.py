"""Assembly of a run's TensorFlow parts: variables, input, step, evaluator, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from cnnbench.data import InputSource
from cnnbench.data.coordinated import WORKER_HOST, CoordinatedInput
from cnnbench.data.joined import JoinedInput
from cnnbench.data.source import TowerBatch
from cnnbench.data.synthetic import synthetic_rows
from cnnbench.flags import Params
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.console import Console, Phase
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.export import Exporter
from cnnbench.run.driver.host_metrics import HostMetrics, Immediate, InProcess
from cnnbench.run.driver.inputs import make_inputs, towers_of, worker_input
from cnnbench.run.driver.plan import COMPUTE_DTYPES, Plan, initial_loss_scale
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.coordinated import CoordinatedStep, UpdateSlot
from cnnbench.run.step.loss_scale import AutoLossScale, LossScale, StaticLossScale
from cnnbench.run.step.optimizers import Optimizer, make_optimizer
from cnnbench.run.step.tower import StepConfig
from cnnbench.run.step.train_step import TrainStep
from cnnbench.run.step.update_counter import UpdateCounter
from cnnbench.variable_mgr import create
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableMgrSpec
from cnnbench.variable_mgr.strategies.parameter_server import ParameterServerStrategyVariableMgr
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable

# Updates in flight per worker: one runs and one waits, so that no worker is idle.
_SLOTS = 2
# Their values set the ranges of 8-bit integers.
_CALIBRATION_EXAMPLES = 8


@dataclass(frozen=True)
class BuiltRun:
    """Everything of a run that lives in TensorFlow.

    Attributes:
      step: the traced training (or forward-only) step; None when only evaluating.
      workers: steps of asynchronous workers by task, of which `step` is the first; or, with a
        coordinator, slots that run the step on any idle worker. Empty where all towers are part
        of one step.
      inputs: training input; None when only evaluating.
      evaluator: None unless something is to be evaluated.
      checkpoints: None without --train_dir.
      slots: the optimizer's by canonical name; empty without one.
      exporter: None without --export_dir.
    """

    devices: runtime.Devices
    manager: VariableMgr
    step: TrainStep | None
    workers: Mapping[str, TrainStep | UpdateSlot]
    inputs: InputSource | None
    evaluator: Evaluator | None
    checkpoints: Checkpoints | None
    slots: Mapping[str, TowerVariable]
    exporter: Exporter | None = None

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """Training input and evaluation input, as far as there are any."""
        evaluated = None if self.evaluator is None else self.evaluator.inputs
        return tuple(source for source in (self.inputs, evaluated) if source is not None)

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines about how the functions were built, for the user."""
        return tuple(
            dict.fromkeys(
                line
                for built in (self.step, self.evaluator)
                if built is not None
                for line in built.notices
            )
        )

    def share_restored(self, global_step: int, examples: int = 0) -> tuple[int, int]:
        """Sends what the chief restored, if anything, to workers with steps of their own.

        Args:
          global_step, examples: of the checkpoint; ignored on workers other than the chief.

        Returns:
          The chief's global step and examples.
        """
        workers = self.manager.workers
        if workers is None:
            return global_step, examples
        scale = {} if self.step is None else self.step.loss_scale.variables()
        state = [TowerVariable(name, [variable]) for name, variable in scale.items()]
        variables = self.manager.savable_variables().values()
        self.manager.share([*variables, *self.slots.values(), *state])
        of_chief = [global_step, examples] if workers.is_chief else [0, 0]
        global_step, examples = map(int, workers.total(of_chief))
        return global_step, examples

    def close(self) -> None:
        """Ends input threads; a second call does nothing."""
        for source in self.sources:
            source.close()


def assemble(params: Params, plan: Plan, devices: runtime.Devices, console: Console) -> BuiltRun:
    """Creates variables and input and traces the functions of a run.

    Args:
      console: is told about each phase.

    Raises:
      FlagError: data that is not there.
      DataError: data that cannot be read.
    """
    console.phase(Phase.GENERATING_EVALUATION if params.eval else Phase.GENERATING_TRAINING)
    manager = create(_manager_spec(params, plan, devices), plan.spec.variables)
    manager.create_variables()
    optimizer = _optimizer(params, manager) if plan.trains else None
    training = _training_parts(params, plan, devices, manager, optimizer)
    evaluator: Evaluator | None = None
    if plan.num_eval_batches:
        if plan.trains:
            console.phase(Phase.GENERATING_EVALUATION)
        evaluator = _evaluator(params, plan, devices, training.evaluated)
    slots = {} if optimizer is None else manager.savable_slots(optimizer)
    exporter = None
    if params.export_dir is not None:
        dtype = COMPUTE_DTYPES[params.precision]
        exporter = Exporter(plan.model, plan.spec, manager, dtype, devices.cpu)
    return BuiltRun(
        devices=devices,
        manager=manager,
        step=training.step,
        workers=training.workers,
        inputs=training.inputs,
        evaluator=evaluator,
        checkpoints=_checkpoints(params, plan, devices, manager, slots, training.step),
        slots=slots,
        exporter=exporter,
    )


@dataclass(frozen=True)
class _TrainingParts:
    """The parts of a run that train; `step` and `inputs` are None when only evaluating.

    Attributes:
      evaluated: holds the variables that an evaluation reads.
      workers: see `BuiltRun`.
    """

    evaluated: VariableMgr
    step: TrainStep | None = None
    workers: Mapping[str, TrainStep | UpdateSlot] = field(default_factory=dict)
    inputs: InputSource | None = None


def _training_parts(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    manager: VariableMgr,
    optimizer: Optimizer | None,
) -> _TrainingParts:
    """The step or steps of a run and their input."""
    if params.eval:
        return _TrainingParts(manager)
    if plan.coordinated:
        assert isinstance(manager, ParameterServerStrategyVariableMgr)
        assert optimizer is not None
        step, inputs = _coordinated_step(params, plan, devices, manager, optimizer)
        workers = {f"slot {n}": step.slot() for n in range(_SLOTS * plan.job.num_workers)}
        evaluated = manager.of_worker(towers_of(devices, plan.job.workers[0]))
        return _TrainingParts(evaluated, step, workers, inputs)
    if plan.asynchronous:
        assert isinstance(manager, ParameterServerVariableMgr)  # validated
        assert optimizer is not None
        steps, sources = _async_steps(params, plan, devices, manager, optimizer)
        evaluated = manager.of_worker(towers_of(devices, plan.job.workers[0]))
        first = next(iter(steps.values()))
        return _TrainingParts(evaluated, first, steps, JoinedInput(sources))
    source = make_inputs(params, plan, devices, "train", manager)
    config = _step_config(params, plan, devices)
    scale = _loss_scale(params, plan, devices)
    if config.frozen:
        manager.after_initialization()  # the values of all copies are about to be fixed
    joint = TrainStep(plan.model, plan.spec, manager, optimizer, source, config, scale)
    joint.build()
    return _TrainingParts(manager, joint, inputs=source)


def _evaluator(
    params: Params, plan: Plan, devices: runtime.Devices, evaluated: VariableMgr
) -> Evaluator:
    return Evaluator(
        plan.model,
        plan.spec,
        evaluated,
        make_inputs(params, plan, devices, "validation"),
        runtime.data_format(params.data_format, devices.kind),
        COMPUTE_DTYPES[params.precision],
        params.display_every,
        _host_metrics(params, plan),
    )


def _checkpoints(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    manager: VariableMgr,
    slots: Mapping[str, TowerVariable],
    step: TrainStep | None,
) -> Checkpoints | None:
    """Checkpoints of --train_dir; None without one."""
    if params.train_dir is None:
        return None
    return Checkpoints(
        manager,
        slots,
        params.max_ckpts_to_keep,
        {} if step is None else step.loss_scale.variables(),
        host=devices.cpu if devices.job.in_cluster else None,
        outlives_others=plan.asynchronous,
        optimizer=params.optimizer if plan.trains else None,
        global_batch=plan.global_batch,
    )


def _async_steps(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    manager: ParameterServerVariableMgr,
    optimizer: Optimizer,
) -> tuple[dict[str, TrainStep], list[InputSource]]:
    """A step and an input for each worker, all on the variables of one manager."""
    counter = UpdateCounter(plan.job.ps_devices[0])
    steps, sources = {}, []
    for worker in plan.job.workers:
        towers = towers_of(devices, worker)
        source = worker_input(params, plan, devices, "train", worker, plan.job.num_workers)
        config = dataclasses.replace(
            _step_config(params, plan, devices),
            first_tower=worker.index * plan.job.towers_per_worker,
        )
        step = TrainStep(
            plan.model,
            plan.spec,
            manager.of_worker(towers),
            optimizer,
            source,
            config,
            _loss_scale(params, plan, devices),
            counter,
        )
        step.build()  # one after the other: tracing is not safe in threads
        steps[str(worker)] = step
        sources.append(source)
    return steps, sources


def _coordinated_step(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    manager: ParameterServerStrategyVariableMgr,
    optimizer: Optimizer,
) -> tuple[CoordinatedStep, InputSource]:
    """A step that runs on any worker, and the inputs of all of them."""
    shards = plan.job.num_workers
    sources = [
        worker_input(
            *(params, plan, devices, "train", worker, shards),
            towers=None if params.data_dir is None else [worker.device("cpu")],
        )
        for worker in plan.job.workers
    ]
    inputs = CoordinatedInput(sources)
    step = CoordinatedStep(
        plan.model,
        plan.spec,
        manager,
        optimizer,
        inputs,
        dataclasses.replace(
            _step_config(params, plan, devices), host=WORKER_HOST, bn_stats="first"
        ),
        _loss_scale(params, plan, devices),
        UpdateCounter(plan.job.ps_devices[0]),
    )
    step.build()
    return step, inputs


def _host_metrics(params: Params, plan: Plan) -> HostMetrics:
    # Without training or further evaluations nothing could run meanwhile.
    if params.collect_eval_results_async and (plan.trains or params.eval_interval_secs):
        return InProcess(
            params.model, plan.dataset.name, params.model_plugin, params.dataset_plugin
        )
    return Immediate(plan.model)


def _optimizer(params: Params, manager: VariableMgr) -> Optimizer:
    optimizer = make_optimizer(params)
    for group in manager.updated_groups():
        optimizer.create_slots(group)
    return optimizer


def _manager_spec(params: Params, plan: Plan, devices: runtime.Devices) -> VariableMgrSpec:
    return VariableMgrSpec(
        variable_update=params.variable_update,
        devices=devices.towers,
        parameter_device="cpu" if params.local_parameter_device == "cpu" else "towers",
        cpu_device=devices.cpu,
        ps_devices=devices.job.ps_devices,
        ps_strategy=params.ps_strategy,
        variable_caching=params.variable_caching,
        variable_dtype="float16" if params.fp16_vars else "float32",
        reduction=plan.update.reduction,
        staged=params.staged_vars and plan.trains,
        aggregation=plan.aggregation,
        cross_device=CrossDeviceSpec(
            ops=params.cross_device_ops,
            bytes_per_pack=params.bytes_per_pack,
            num_packs=params.num_packs,
        ),
        seed=params.tf_random_seed,
        job=devices.job,
    )


def _step_config(params: Params, plan: Plan, devices: runtime.Devices) -> StepConfig:
    job = plan.job
    together = job.towers_per_worker if plan.asynchronous else job.num_towers
    return StepConfig(
        host=devices.cpu,
        data_format=runtime.data_format(params.data_format, devices.kind),
        compute_dtype=COMPUTE_DTYPES[params.precision],
        update=plan.update,
        bn_stats=params.bn_stats if together > 1 else "first",
        label_smoothing=params.label_smoothing,
        report_total_loss=params.loss_type_to_report == "total_loss",
        metrics=params.print_training_accuracy or params.forward_only,
        forward_only=params.forward_only,
        calibration=_calibration(params, plan),
        frozen=params.forward_only and params.freeze_when_forward_only,
        xla_compile=params.xla_compile,
        seed=params.tf_random_seed,
        first_tower=devices.job.own_towers.start,
        training_steps=plan.training_steps,
    )


def _calibration(params: Params, plan: Plan) -> Any:
    """Synthetic examples, as the model takes them, for computing in 8-bit integers."""
    if params.precision != "int8":
        return None
    rows = tf.range(_CALIBRATION_EXAMPLES)
    preprocess = plan.preprocess(training=False)
    drawn = synthetic_rows(rows, params.tf_random_seed, plan.examples, preprocess)
    elements = plan.spec.elements
    return TowerBatch.of(elements, {one.name: drawn[one.name] for one in elements}).features


def _loss_scale(params: Params, plan: Plan, devices: runtime.Devices) -> LossScale:
    initial = initial_loss_scale(params)
    if plan.trains and params.precision == "fp16" and params.fp16_enable_auto_loss_scale:
        return AutoLossScale(initial, params.fp16_inc_loss_scale_every_n, devices.cpu)
    return StaticLossScale(initial)
