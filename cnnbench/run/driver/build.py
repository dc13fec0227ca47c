"""Puts a run's TensorFlow parts together: variables, input, step, evaluator, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cnnbench.base.jobs.job import Task
from cnnbench.data import InputSource, InputSpec, make_input
from cnnbench.data.coordinated import WORKER_HOST, CoordinatedInput
from cnnbench.data.distributed import InputDistribution
from cnnbench.data.joined import JoinedInput
from cnnbench.data.source import TowerBatch
from cnnbench.data.synthetic import synthetic_rows
from cnnbench.flags import Params
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.console import Console, Phase
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.export import Exporter
from cnnbench.run.driver.host_metrics import HostMetrics, Immediate, InProcess
from cnnbench.run.driver.plan import COMPUTE_DTYPES, Plan, initial_loss_scale
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.coordinated import CoordinatedStep, Slot
from cnnbench.run.step.loss_scale import AutoLossScale, LossScale, StaticLossScale
from cnnbench.run.step.optimizers import Optimizer, make_optimizer
from cnnbench.run.step.tower import StepConfig
from cnnbench.run.step.train_step import TrainStep
from cnnbench.run.step.update_counter import UpdateCounter
from cnnbench.variable_mgr import create
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.modes import Reduction
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableMgrSpec
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr
from cnnbench.variable_mgr.strategies.parameter_server import ParameterServerStrategyVariableMgr
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable

# Gradients are added up by operations of ours, for all towers of the job.
_BY_OUR_SUMS = (Reduction.AT_VARIABLE, Reduction.ALL_REDUCE)
# Updates that wait or run for each worker: one waits, so that no worker does.
_SLOTS = 2
# Whose values 8-bit integers are to reach.
_CALIBRATION_EXAMPLES = 8


@dataclass(frozen=True)
class BuiltRun:
    """Everything of a run that lives in TensorFlow.

    Attributes:
      devices: where the towers are.
      manager: holds the variables.
      step: the traced training (or forward-only) step; None when only evaluating.
      workers: steps of workers that do not wait for one another, by task, of which `step` is
        the first; or what has such a step run by whichever worker is free. Empty where all towers
        are part of one step.
      inputs: training input; None when only evaluating.
      evaluator: None unless something is to be evaluated.
      evaluation_inputs: likewise.
      host_metrics: computes those of evaluations that need all examples; likewise.
      checkpoints: None without --train_dir.
      slots: the optimizer's by canonical name; empty without one.
      exporter: None without --export_dir.
    """

    devices: runtime.Devices
    manager: VariableMgr
    step: TrainStep | None
    workers: Mapping[str, TrainStep | Slot]
    inputs: InputSource | None
    evaluator: Evaluator | None
    evaluation_inputs: InputSource | None
    host_metrics: HostMetrics | None
    checkpoints: Checkpoints | None
    slots: Mapping[str, TowerVariable]
    exporter: Exporter | None = None

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
        """Gives what the chief has restored, if anything, to the workers that have own steps.

        Args:
          global_step, examples: of the chief's checkpoint; those of other workers do not count.

        Returns:
          Those of the chief.
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
        for source in (self.inputs, self.evaluation_inputs):
            if source is not None:
                source.close()


def assemble(params: Params, plan: Plan, devices: runtime.Devices, console: Console) -> BuiltRun:
    """Creates variables and input and traces the functions of a run.

    Args:
      params, plan: what to run.
      devices: where.
      console: is told about each phase.

    Raises:
      FlagError: data that is not there.
      DataError: data that cannot be read.
    """
    console.phase(Phase.GENERATING_EVALUATION if params.eval else Phase.GENERATING_TRAINING)
    manager = create(_manager_spec(params, plan, devices), plan.spec.variables)
    manager.create_variables()
    optimizer = _optimizer(params, manager) if plan.trains else None
    step: TrainStep | None = None
    workers: dict[str, TrainStep | Slot] = {}
    inputs: InputSource | None = None
    evaluated = manager
    if plan.coordinated:
        assert isinstance(manager, ParameterServerStrategyVariableMgr)
        assert optimizer is not None
        step, inputs = _coordinated_step(params, plan, devices, manager, optimizer)
        workers = {f"slot {n}": step.slot() for n in range(_SLOTS * plan.job.num_workers)}
        evaluated = manager.of_worker(_towers_of(devices, plan.job.workers[0]))
    elif plan.asynchronous:
        assert isinstance(manager, ParameterServerVariableMgr)  # validated
        assert optimizer is not None
        steps, sources = _async_steps(params, plan, devices, manager, optimizer)
        step = next(iter(steps.values()))
        workers = dict(steps)
        inputs = JoinedInput(sources)
        evaluated = manager.of_worker(_towers_of(devices, plan.job.workers[0]))
    elif not params.eval:
        inputs = make_inputs(params, plan, devices, "train", manager)
        config = _step_config(params, plan, devices)
        scale = _loss_scale(params, plan, devices)
        if config.frozen:
            manager.after_initialization()  # the values of all copies are about to be fixed
        step = TrainStep(plan.model, plan.spec, manager, optimizer, inputs, config, scale)
        step.build()
    evaluator: Evaluator | None = None
    evaluation_inputs: InputSource | None = None
    host_metrics: HostMetrics | None = None
    if plan.num_eval_batches:
        if plan.trains:
            console.phase(Phase.GENERATING_EVALUATION)
        evaluation_inputs = make_inputs(params, plan, devices, "validation")
        host_metrics = _host_metrics(params, plan)
        evaluator = Evaluator(
            plan.model,
            plan.spec,
            evaluated,
            evaluation_inputs,
            runtime.data_format(params.data_format, devices.kind),
            COMPUTE_DTYPES[params.precision],
            params.display_every,
            host_metrics,
        )
    slots = {} if optimizer is None else manager.savable_slots(optimizer)
    checkpoints = None
    if params.train_dir is not None:
        scale_state = {} if step is None else step.loss_scale.variables()
        checkpoints = Checkpoints(
            manager,
            slots,
            params.max_ckpts_to_keep,
            scale_state,
            host=devices.cpu if devices.job.in_cluster else None,
            outlives_others=plan.asynchronous,
            optimizer=params.optimizer if plan.trains else None,
            global_batch=plan.global_batch,
        )
    exporter = None
    if params.export_dir is not None:
        dtype = COMPUTE_DTYPES[params.precision]
        exporter = Exporter(plan.model, plan.spec, manager, dtype, devices.cpu)
    return BuiltRun(
        devices,
        manager,
        step,
        workers,
        inputs,
        evaluator,
        evaluation_inputs,
        host_metrics,
        checkpoints,
        slots,
        exporter,
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
        towers = _towers_of(devices, worker)
        source = _worker_input(params, plan, devices, "train", worker, plan.job.num_workers)
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
        _worker_input(
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
    # An evaluation that nothing follows has nothing to go on meanwhile.
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
        reduction=_reduction(params, plan),
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


def _reduction(params: Params, plan: Plan) -> str:
    """What the manager does: for some means a sum, where the learning rate is divided instead.

    An update by plain descent is the same, and all gradients are gone over once less. Not where
    something between reduction and update looks at their size, or 16 bits have to hold the sum.
    """
    rate_has_mean = (
        params.optimizer == "sgd"
        and params.gradient_reduction == "mean"
        and params.update_mode.reduction in _BY_OUR_SUMS
        and not plan.asynchronous
        and params.gradient_clip is None
        and plan.aggregation.compact_dtype is None
        and not params.fp16_vars
    )
    return "sum" if rate_has_mean else params.gradient_reduction


def _step_config(params: Params, plan: Plan, devices: runtime.Devices) -> StepConfig:
    job = plan.job
    reduction = _reduction(params, plan)
    together = job.towers_per_worker if plan.asynchronous else job.num_towers
    return StepConfig(
        host=devices.cpu,
        data_format=runtime.data_format(params.data_format, devices.kind),
        compute_dtype=COMPUTE_DTYPES[params.precision],
        weight_decay=params.weight_decay,
        gradient_clip=params.gradient_clip,
        gradient_reduction=reduction,
        rate_factor=1.0 if reduction == params.gradient_reduction else 1.0 / job.num_towers,
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
    """Some synthetic examples, as the model takes them, if it is to compute in 8-bit integers."""
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


def _distribution(params: Params, manager: VariableMgr) -> InputDistribution | None:
    if params.input_distribution == "towers" or params.data_dir is None:
        return None
    assert isinstance(manager, StrategyVariableMgr)
    per_replica = params.input_replication == "per_replica"
    on_device = params.prefetch_on_device
    strategy = manager.strategy
    return InputDistribution(
        strategy=make.for_input_per_replica(strategy) if per_replica else strategy,
        manual=params.input_sharding == "manual",
        per_replica=per_replica,
        auto_shard_policy=params.auto_shard_policy,
        prefetch_on_device=not per_replica if on_device is None else on_device,
    )


def make_inputs(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    subset: str,
    manager: VariableMgr | None = None,
) -> InputSource:
    """The input of a run.

    Args:
      params, plan: what to run.
      devices: where batches go.
      subset: "train" or "validation".
      manager: one whose strategy takes batches to the devices, if that is asked for.

    Raises:
      FlagError: data that is not there.
      DataError: data that cannot be read.
    """
    workers = devices.job.own_workers
    shards = devices.job.num_workers
    if plan.asynchronous and subset != "train":
        # Which of the others is left when it is evaluated is not known beforehand.
        workers, shards = workers[:1], 1
    distribution = None if manager is None else _distribution(params, manager)
    if distribution is not None and not distribution.by_pipeline:
        shards = 1  # TensorFlow shares the batches out
    sources = [
        _worker_input(params, plan, devices, subset, worker, shards, distribution)
        for worker in workers
    ]
    return sources[0] if len(sources) == 1 else JoinedInput(sources)


def _worker_input(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    subset: str,
    worker: Task,
    shards: int,
    distribution: InputDistribution | None = None,
    towers: Sequence[str] | None = None,
) -> InputSource:
    """What the towers of one worker get, made on its CPU, of data cut into so many shards."""
    training = subset == "train"
    spec = InputSpec.from_flags(
        params,
        dataset=plan.dataset,
        data_dir=params.data_dir,
        subset=subset,
        batch_per_device=plan.batch_per_device if training else plan.eval_batch_per_device,
        num_devices=devices.job.towers_per_worker,
        num_shards=shards,
        shard_index=worker.index if shards > 1 else 0,
        shard_files=training and params.auto_shard_policy == "file",
        host=worker.device("cpu"),
        image_size=getattr(plan.model, "image_size", 0),
        channels=plan.model.channels,
        num_classes=plan.spec.num_classes,
        examples=plan.examples,
        elements=plan.spec.elements,
        preprocess=plan.preprocess(training=training),
        seed=params.tf_random_seed,
        dtype=COMPUTE_DTYPES[params.precision],
        datasets_num_private_threads=runtime.input_threads(
            runtime.Settings.of(params), devices.kind
        ),
    )
    return make_input(spec, towers or _towers_of(devices, worker), distribution)


def _towers_of(devices: runtime.Devices, worker: Task) -> list[str]:
    job = devices.job
    return [job.tower_device(tower) for tower in job.own_towers if job.worker_of(tower) == worker]
