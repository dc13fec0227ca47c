"""Assembly of a run's TensorFlow parts: variables, input, step, evaluator, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from cnnbench.base.jobs.job import Task
from cnnbench.data import InputSource, InputSpec, make_input
from cnnbench.data.distributed import InputDistribution
from cnnbench.data.joined import WORKER_HOST, CoordinatedInput, JoinedInput
from cnnbench.data.source import CLOSE_SECONDS, TowerBatch, close_all
from cnnbench.data.synthetic import synthetic_rows
from cnnbench.flags import Params
from cnnbench.flags.optimizers import OPTIMIZERS
from cnnbench.run.driver.checkpoints import Checkpoints, check_old
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.export import Exporter
from cnnbench.run.driver.host_metrics import HostMetrics, InProcess
from cnnbench.run.driver.input_only import InputStep
from cnnbench.run.driver.plan import COMPUTE_DTYPES, Plan, initial_loss_scale
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.coordinated import CoordinatedStep
from cnnbench.run.step.loss_scale import AutoLossScale, LossScale
from cnnbench.run.step.optimizers import Optimizer
from cnnbench.run.step.tower import StepConfig
from cnnbench.run.step.train_step import TrainStep
from cnnbench.run.step.update import UpdateCounter
from cnnbench.variable_mgr import create
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.spec import VariableMgrSpec
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr
from cnnbench.variable_mgr.strategies.managers import ParameterServerStrategyVariableMgr
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable
from cnnbench.variable_mgr.worker_group import WorkerGroup

# Updates in flight per worker: one runs and one waits, so that no worker is idle.
_SLOTS = 2
# Examples whose values set the ranges of 8-bit integers.
_CALIBRATION_EXAMPLES = 8


@dataclass(frozen=True)
class Trainable:
    """Parts that `Training` runs.

    Attributes:
      step: the training (or forward-only) step; None when only evaluating.
      inputs: training input; None when only evaluating.
      workers: steps of asynchronous workers by task, of which `step` is the first; or, with a
        coordinator, the step by slot, each of which runs it on any idle worker. Empty where all
        towers are part of one step.
      lag: steps launched before the result of the first is awaited; see `StepLoop`.
      group: workers of the job where each runs a step of its own; None for others.
    """

    step: TrainStep | InputStep | None
    inputs: InputSource | None
    workers: Mapping[str, TrainStep] = field(default_factory=dict)
    evaluator: Evaluator | None = None
    checkpoints: Checkpoints | None = None
    lag: int = 0
    group: WorkerGroup | None = None


@dataclass(frozen=True)
class BuiltRun(Trainable):
    """The TensorFlow parts of a run; `slots` are those of the optimizer by canonical name."""

    step: TrainStep | None
    _: dataclasses.KW_ONLY
    devices: runtime.Devices
    manager: VariableMgr
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

        Returns:
          The chief's global step and examples; the arguments count on the chief alone.
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
        """Closes the inputs; a second call does nothing."""
        close_all(self.sources, CLOSE_SECONDS)


class Assembly:
    """Makes the parts of one run; raises FlagError or DataError for data that cannot be used."""

    def __init__(self, params: Params, plan: Plan, devices: runtime.Devices) -> None:
        self.params = params
        self.plan = plan
        self.devices = devices

    def build(self, console: Console) -> BuiltRun:
        """Creates variables and input and traces the functions of the run."""
        params, plan, devices = self.params, self.plan, self.devices
        if params.train_dir is not None and devices.job.is_chief:
            check_old(params.train_dir, plan.spec)
        console.lines(f"Generating {'evaluation' if params.eval else 'training'} model")
        manager = create(self._manager_spec(), plan.spec.variables)
        manager.create_variables()
        optimizer = None
        if plan.trains:
            spec = OPTIMIZERS[params.optimizer]
            optimizer = Optimizer(spec, spec.values(params))
            for variables in manager.updated_groups():
                optimizer.create_slots(variables)
        evaluated, step, inputs, workers = self._training(manager, optimizer)
        if plan.trains and plan.num_eval_batches:
            console.lines("Generating evaluation model")
        evaluator = self._evaluator(evaluated) if plan.num_eval_batches else None
        slots = {} if optimizer is None else manager.savable_slots(optimizer)
        checkpoints = None
        if params.train_dir is not None:
            checkpoints = Checkpoints(
                manager,
                slots,
                params.max_ckpts_to_keep,
                {} if step is None else step.loss_scale.variables(),
                host=devices.cpu if devices.job.in_cluster else None,
                outlives_others=plan.asynchronous,
                optimizer=params.optimizer if plan.trains else None,
                global_batch=plan.global_batch,
                # A worker with a step of its own knows only its own input.
                inputs=None if plan.asynchronous or manager.workers is not None else inputs,
                spec=plan.spec,
            )
        exporter = None
        if params.export_dir is not None:
            dtype = COMPUTE_DTYPES[params.precision]
            exporter = Exporter(plan.model, plan.spec, manager, dtype, devices.cpu)
        return BuiltRun(
            step,
            inputs,
            workers,
            evaluator,
            checkpoints,
            lag=1 if devices.kind == "gpu" else 0,
            group=manager.workers,
            devices=devices,
            manager=manager,
            slots=slots,
            exporter=exporter,
        )

    def _evaluator(self, manager: VariableMgr) -> Evaluator:
        params, plan = self.params, self.plan
        host = HostMetrics(plan.model)
        # Without training or a next evaluation, nothing would run beside the child process.
        if params.collect_eval_results_async and (plan.trains or params.eval_interval_secs):
            named = (params.model, plan.dataset.name)
            host = InProcess(*named, params.model_plugin, params.dataset_plugin)
        layout = runtime.data_format(params.data_format, self.devices.kind)
        return Evaluator(params, plan, manager, self.inputs("validation"), layout, host)

    def inputs(self, subset: str, manager: VariableMgr | None = None) -> InputSource:
        """The input of the run, a pipeline per worker.

        Args:
          subset: "train" or "validation".
          manager: the one whose strategy may distribute the batches; None distributes none.
        """
        workers, shards = self.devices.job.own_workers, self.devices.job.num_workers
        if self.plan.asynchronous and subset != "train":
            # The others may be lost by the time of the evaluation.
            workers, shards = workers[:1], 1
        distribution = None if manager is None else self._distribution(manager)
        if distribution is not None and not distribution.by_pipeline:
            shards = 1  # TensorFlow distributes the batches
        sources = [self._worker_input(subset, one, shards, distribution) for one in workers]
        return sources[0] if len(sources) == 1 else JoinedInput(sources)

    def _worker_input(
        self,
        subset: str,
        worker: Task,
        shards: int,
        distribution: InputDistribution | None = None,
        towers: Sequence[str] | None = None,
    ) -> InputSource:
        """The input of one worker's towers, made on its CPU, from its part of `shards` of the data.

        Batches go to the devices `towers`, by default those of the worker's towers.
        """
        params, plan, devices = self.params, self.plan, self.devices
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
        return make_input(spec, towers or devices.job.devices_of(worker), distribution)

    def _distribution(self, manager: VariableMgr) -> InputDistribution | None:
        params = self.params
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

    def _training(
        self, manager: VariableMgr, optimizer: Optimizer | None
    ) -> tuple[VariableMgr, TrainStep | None, InputSource | None, Mapping[str, TrainStep]]:
        """The manager whose variables an evaluation reads; step, inputs, workers of `Trainable`."""
        plan, job = self.plan, self.plan.job
        if self.params.eval:
            return manager, None, None, {}
        first = self.devices.job.devices_of(job.workers[0])
        if plan.coordinated:
            assert isinstance(manager, ParameterServerStrategyVariableMgr)
            on_host = None if self.params.data_dir is None else "cpu"
            source: InputSource = CoordinatedInput(
                [
                    self._worker_input(
                        *("train", worker, job.num_workers),
                        towers=on_host and [worker.device(on_host)],
                    )
                    for worker in job.workers
                ]
            )
            config = dataclasses.replace(self._step_config(), host=WORKER_HOST, bn_stats="first")
            counter = UpdateCounter(job.ps_devices[0])
            step = self._step(CoordinatedStep, manager, optimizer, source, config, counter)
            slots = dict.fromkeys((f"slot {n}" for n in range(_SLOTS * job.num_workers)), step)
            return manager.of_worker(first), step, source, slots
        if plan.asynchronous:
            assert isinstance(manager, ParameterServerVariableMgr)  # validated
            steps, sources = self._async_steps(manager, optimizer)
            return manager.of_worker(first), next(iter(steps.values())), JoinedInput(sources), steps
        source = self.inputs("train", manager)
        config = self._step_config()
        if config.frozen:
            manager.after_initialization()  # before the values of all copies become constants
        return manager, self._step(TrainStep, manager, optimizer, source, config), source, {}

    def _async_steps(
        self, manager: ParameterServerVariableMgr, optimizer: Optimizer | None
    ) -> tuple[dict[str, TrainStep], list[InputSource]]:
        """A step and an input for each worker, all on the variables of one manager."""
        job = self.plan.job
        counter = UpdateCounter(job.ps_devices[0])
        steps, sources = {}, []
        for worker in job.workers:
            source = self._worker_input("train", worker, job.num_workers)
            config = dataclasses.replace(
                self._step_config(), first_tower=worker.index * job.towers_per_worker
            )
            own = manager.of_worker(self.devices.job.devices_of(worker))
            # One after the other: tracing is not safe in threads.
            steps[str(worker)] = self._step(TrainStep, own, optimizer, source, config, counter)
            sources.append(source)
        return steps, sources

    def _step(
        self,
        kind: type[TrainStep],
        manager: VariableMgr,
        optimizer: Optimizer | None,
        inputs: InputSource,
        config: StepConfig,
        counter: UpdateCounter | None = None,
    ) -> TrainStep:
        params, plan = self.params, self.plan
        initial = initial_loss_scale(params)
        scale = LossScale(initial)
        if plan.trains and params.precision == "fp16" and params.fp16_enable_auto_loss_scale:
            every = params.fp16_inc_loss_scale_every_n
            scale = AutoLossScale(initial, every, self.devices.cpu)
        return kind(plan.model, plan.spec, manager, optimizer, inputs, config, scale, counter)

    def _manager_spec(self) -> VariableMgrSpec:
        return VariableMgrSpec(
            variable_update=self.params.variable_update,
            devices=self.devices.towers,
            parameter_device="cpu" if self.params.local_parameter_device == "cpu" else "towers",
            cpu_device=self.devices.cpu,
            ps_devices=self.devices.job.ps_devices,
            ps_strategy=self.params.ps_strategy,
            variable_caching=self.params.variable_caching,
            variable_dtype="float16" if self.params.fp16_vars else "float32",
            reduction=self.plan.update.reduction,
            staged=self.params.staged_vars and self.plan.trains,
            aggregation=self.plan.aggregation,
            cross_device=CrossDeviceSpec(
                ops=self.params.cross_device_ops,
                bytes_per_pack=self.params.bytes_per_pack,
                num_packs=self.params.num_packs,
            ),
            seed=self.params.tf_random_seed,
            job=self.devices.job,
        )

    def _step_config(self) -> StepConfig:
        job = self.plan.job
        together = job.towers_per_worker if self.plan.asynchronous else job.num_towers
        return StepConfig(
            host=self.devices.cpu,
            data_format=runtime.data_format(self.params.data_format, self.devices.kind),
            compute_dtype=COMPUTE_DTYPES[self.params.precision],
            update=self.plan.update,
            bn_stats=self.params.bn_stats if together > 1 else "first",
            label_smoothing=self.params.label_smoothing,
            report_total_loss=self.params.loss_type_to_report == "total_loss",
            metrics=self.params.print_training_accuracy or self.params.forward_only,
            forward_only=self.params.forward_only,
            calibration=self._calibration(),
            frozen=self.params.forward_only and self.params.freeze_when_forward_only,
            xla_compile=self.params.xla_compile,
            seed=self.params.tf_random_seed,
            first_tower=self.devices.job.own_towers.start,
            training_steps=self.plan.training_steps,
        )

    def _calibration(self) -> Any:
        """Synthetic examples, as the model takes them, for computing in 8-bit integers."""
        if self.params.precision != "int8":
            return None
        rows = tf.range(_CALIBRATION_EXAMPLES)
        preprocess = self.plan.preprocess(training=False)
        drawn = synthetic_rows(rows, self.params.tf_random_seed, self.plan.examples, preprocess)
        elements = self.plan.spec.elements
        return TowerBatch.of(elements, {one.name: drawn[one.name] for one in elements}).features
