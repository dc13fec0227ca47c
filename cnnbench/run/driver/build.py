"""Builds the work of a run from its plan: variables, steps, inputs, evaluator and checkpoints."""

from __future__ import annotations

from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.driver.checkpoints import (
    check_tf_cnn_benchmarks_checkpoint,
    make_checkpoints,
    select_moving_averages,
)
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import make_evaluator
from cnnbench.run.driver.inputs import InputOnlyStep, make_inputs
from cnnbench.run.driver.saved_model import make_exporters
from cnnbench.run.driver.steps import make_steps
from cnnbench.run.driver.variables import create_variables
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    TrainingWork,
    Work,
)
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.update import Optimizer


def build(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    """Creates the variables and the input of a run, and traces its functions.

    Raises:
      FlagError, DataError: the data cannot be used.
    """
    if plan.work is WorkKind.INPUT:
        inputs = make_inputs(plan, devices, "train")
        return InputWork(devices=devices, step=InputOnlyStep(inputs), inputs=inputs)
    if plan.params.train_dir is not None and devices.job.is_chief:
        check_tf_cnn_benchmarks_checkpoint(plan.params.train_dir, plan.network.spec)
    make = {WorkKind.EVALUATION: _build_evaluation, WorkKind.FORWARD: _build_forward}
    return make.get(plan.work, _build_training)(plan, devices, console)


def _build_evaluation(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    console.lines("Generating evaluation model")
    manager = create_variables(plan, devices)
    return EvaluationWork(
        devices=devices,
        manager=manager,
        evaluator=make_evaluator(plan, devices, manager, {}),
        checkpoints=make_checkpoints(plan, devices.job, manager, {}, {}),
        exporters=make_exporters(plan, devices.job, manager, {}),
        folder=plan.params.train_dir or "",  # --eval is refused without this flag.
    )


def _build_forward(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    console.lines("Generating training model")
    manager = create_variables(plan, devices)
    made = make_steps(plan, devices, manager, None)
    scale = made.step.loss_scale.variables()
    return ForwardWork(
        devices=devices,
        manager=manager,
        step=made.step,
        inputs=made.inputs,
        workers=made.workers,
        lag=int(devices.kind == "gpu"),
        checkpoints=make_checkpoints(plan, devices.job, manager, {}, scale),
        exporters=make_exporters(plan, devices.job, manager, {}),
    )


def _build_training(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    console.lines("Generating training model")
    manager = create_variables(plan, devices)
    numerics = plan.numerics
    optimizer = Optimizer(numerics.optimizer_spec, numerics.constants, plan.params.ema_decay)
    for variables in manager.updated_groups():
        optimizer.create_slots(variables)
    made = make_steps(plan, devices, manager, optimizer)
    slots, scale = manager.savable_slots(optimizer), made.step.loss_scale.variables()
    averages = select_moving_averages(slots)
    evaluator = None
    if plan.work.evaluates:
        console.lines("Generating evaluation model")
        evaluator = make_evaluator(plan, devices, made.evaluated, averages)
    work = TrainingWork(
        devices=devices,
        manager=manager,
        slots=slots,
        step=made.step,
        inputs=made.inputs,
        workers=made.workers,
        lag=int(devices.kind == "gpu"),
        checkpoints=make_checkpoints(plan, devices.job, manager, slots, scale, made.inputs),
        exporters=make_exporters(plan, devices.job, manager, averages),
    )
    return work if evaluator is None else EvaluatedTrainingWork(**vars(work), evaluator=evaluator)
