"""Builds the work of a run from its plan: variables, inputs, steps, evaluator and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cnnbench.data.dataset import InputSource
from cnnbench.data.joined_input import WORKER_HOST, CoordinatedInput
from cnnbench.plan import RunPlan, WorkKind
from cnnbench.run.driver.checkpoints import make_checkpoints, select_moving_averages
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.host_metrics import make_host_metrics
from cnnbench.run.driver.inputs import InputOnlyStep, make_inputs
from cnnbench.run.driver.saved_model import make_exporters
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    TrainingWork,
    Work,
)
from cnnbench.run.runtime.devices import Devices
from cnnbench.run.step.optimizer import Optimizer, make_optimizer
from cnnbench.run.step.train_step import CoordinatedStep, TrainStep, UpdateCounter
from cnnbench.variable_mgr import VariableMgrSpec, create
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.strategies import ParameterServerStrategyVariableMgr

# Number of updates in flight per worker: while one runs, the next one waits, so that no worker
# idles.
_UPDATES_PER_WORKER = 2


def build(plan: RunPlan, devices: Devices, console: Console) -> Work:
    """Creates the variables and the inputs of a run, and traces its functions.

    Raises:
      FlagError, DataError: the data cannot be used.
    """
    if plan.work is WorkKind.INPUT:
        inputs = make_inputs(plan, devices)["train"]
        return InputWork(devices=devices, step=InputOnlyStep(inputs), inputs=inputs)
    if plan.work is WorkKind.EVALUATION:
        return _build_evaluation(plan, devices, console)
    return _build_steps(plan, devices, console)


def _build_evaluation(plan: RunPlan, devices: Devices, console: Console) -> EvaluationWork:
    console.lines("Generating evaluation model")
    manager = _create_variables(plan, devices)
    inputs = make_inputs(plan, devices)["validation"]
    evaluator = Evaluator(plan, manager, inputs, make_host_metrics(plan), {})
    return EvaluationWork(
        devices=devices,
        manager=manager,
        notices=tuple(evaluator.notices),
        evaluator=evaluator,
        checkpoints=make_checkpoints(plan, devices.job, manager, {}, {}),
        exporters=make_exporters(plan, devices.job, manager, {}),
        folder=plan.params.train_dir or "",  # --eval requires this flag.
    )


def _build_steps(plan: RunPlan, devices: Devices, console: Console) -> ForwardWork:
    """Builds a training or forward passes: both run the same steps, with or without updates."""
    console.lines("Generating training model")
    manager = _create_variables(plan, devices)
    optimizer = make_optimizer(plan, manager) if plan.work.trains else None
    inputs = make_inputs(plan, devices, manager)
    step, workers, evaluated = _make_steps(plan, devices, manager, optimizer, inputs["train"])
    slots = {} if optimizer is None else manager.savable_slots(optimizer)
    averages, scale = select_moving_averages(slots), step.loss_scale.variables()
    work = (TrainingWork if plan.work.trains else ForwardWork)(
        devices=devices,
        manager=manager,
        slots=slots,
        notices=tuple(step.notices),
        warnings=step.warnings,
        step=step,
        inputs=inputs["train"],
        workers=workers,
        lag=int(devices.kind == "gpu"),
        checkpoints=make_checkpoints(plan, devices.job, manager, slots, scale, inputs["train"]),
        exporters=make_exporters(plan, devices.job, manager, averages),
    )
    if not plan.work.evaluates:
        return work
    console.lines("Generating evaluation model")
    host = make_host_metrics(plan)
    evaluator = Evaluator(plan, evaluated, inputs["validation"], host, averages)
    parts = {**vars(work), "notices": (*work.notices, *evaluator.notices)}
    return EvaluatedTrainingWork(**parts, evaluator=evaluator)


def _create_variables(plan: RunPlan, devices: Devices) -> VariableMgr:
    """Creates the variable manager of the run's mode, and the variables of the network."""
    spec = VariableMgrSpec(
        mode=plan.place.mode,
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


_Steps: TypeAlias = "tuple[TrainStep, Mapping[str, TrainStep], VariableMgr]"
"""The step of a run, `LoopWork.workers`, and the manager whose variables an evaluation reads."""


def _make_steps(
    plan: RunPlan,
    devices: Devices,
    manager: VariableMgr,
    optimizer: Optimizer | None,
    inputs: InputSource,
) -> _Steps:
    """Creates the step of a run: one for all towers, or one for each asynchronous worker.

    Without an optimizer, a step only computes outputs.
    """
    job = devices.job
    host = job.cpu_device
    if isinstance(inputs, CoordinatedInput):  # A coordinator runs the step on any idle worker.
        assert isinstance(manager, ParameterServerStrategyVariableMgr)
        counter = UpdateCounter(job.ps_devices[0])
        step = CoordinatedStep(plan, manager, optimizer, inputs, host=WORKER_HOST, counter=counter)
        slots = {f"slot {n}": step for n in range(_UPDATES_PER_WORKER * job.num_workers)}
        return step, slots, manager.make_worker_manager(job.devices_of(job.workers[0]))
    if plan.place.asynchronous:
        # In modes with another variable manager, flags for asynchronous updates are refused.
        assert isinstance(manager, ParameterServerVariableMgr)
        counter = UpdateCounter(job.ps_devices[0])
        workers = {}
        # Steps are traced one after another, because tracing is not thread-safe.
        for worker, source in zip(job.workers, inputs.of_workers, strict=True):
            own = manager.make_worker_manager(job.devices_of(worker))
            first = worker.index * job.towers_per_worker
            workers[str(worker)] = TrainStep(
                plan, own, optimizer, source, host=host, first_tower=first, counter=counter
            )
        evaluated = manager.make_worker_manager(job.devices_of(job.workers[0]))
        return next(iter(workers.values())), workers, evaluated
    if plan.numerics.frozen:
        # Frozen variables become constants when tracing reads them, so they need their initial
        # values before.
        manager.after_initialization()
    first = job.own_towers.start
    together = TrainStep(plan, manager, optimizer, inputs, host=host, first_tower=first)
    return together, {}, manager
