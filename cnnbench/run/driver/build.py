"""Builds the work of a run from its plan: variables, inputs, steps, evaluator and checkpoints."""

from __future__ import annotations

from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.driver.checkpoints import make_checkpoints, select_moving_averages
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.host_metrics import make_host_metrics
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
from cnnbench.run.step.optimizer import make_optimizer


def build(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
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


def _build_evaluation(plan: RunPlan, devices: runtime.Devices, console: Console) -> EvaluationWork:
    console.lines("Generating evaluation model")
    manager = create_variables(plan, devices)
    inputs = make_inputs(plan, devices)["validation"]
    evaluator = Evaluator(plan, manager, inputs, make_host_metrics(plan), {})
    return EvaluationWork(
        devices=devices,
        manager=manager,
        notices=tuple(evaluator.notices),
        evaluator=evaluator,
        checkpoints=make_checkpoints(plan, devices.job, manager, {}, {}),
        exporters=make_exporters(plan, devices.job, manager, {}),
        folder=plan.params.train_dir or "",  # --eval is refused without this flag.
    )


def _build_steps(plan: RunPlan, devices: runtime.Devices, console: Console) -> ForwardWork:
    """Builds a training or forward passes: both run the same steps, with or without updates."""
    console.lines("Generating training model")
    manager = create_variables(plan, devices)
    optimizer = make_optimizer(plan, manager) if plan.work.trains else None
    inputs = make_inputs(plan, devices, manager)
    made = make_steps(plan, devices, manager, optimizer, inputs["train"])
    slots = {} if optimizer is None else manager.savable_slots(optimizer)
    averages, scale = select_moving_averages(slots), made.step.loss_scale.variables()
    work = (TrainingWork if plan.work.trains else ForwardWork)(
        devices=devices,
        manager=manager,
        slots=slots,
        notices=tuple(made.step.notices),
        warnings=made.step.warnings,
        step=made.step,
        inputs=inputs["train"],
        workers=made.workers,
        lag=int(devices.kind == "gpu"),
        checkpoints=make_checkpoints(plan, devices.job, manager, slots, scale, inputs["train"]),
        exporters=make_exporters(plan, devices.job, manager, averages),
    )
    if not plan.work.evaluates:
        return work
    console.lines("Generating evaluation model")
    host = make_host_metrics(plan)
    evaluator = Evaluator(plan, made.evaluated, inputs["validation"], host, averages)
    parts = {**vars(work), "notices": (*work.notices, *evaluator.notices)}
    return EvaluatedTrainingWork(**parts, evaluator=evaluator)
