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
from cnnbench.run.driver.variables import create_optimizer, create_variables
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    TrainingWork,
    Work,
)
from cnnbench.run.runtime import tensorflow as runtime


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
        checkpoints=make_checkpoints(plan, devices.job, manager),
        exporters=make_exporters(plan, devices.job, manager, {}),
        folder=plan.params.train_dir or "",  # --eval is refused without this flag.
    )


def _build_forward(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    console.lines("Generating training model")
    manager = create_variables(plan, devices)
    made = make_steps(plan, devices, manager, None)
    return ForwardWork(
        devices=devices,
        manager=manager,
        step=made.step,
        inputs=made.inputs,
        workers=made.workers,
        lag=_steps_in_flight(devices),
        checkpoints=make_checkpoints(plan, devices.job, manager, step=made.step),
        exporters=make_exporters(plan, devices.job, manager, {}),
    )


def _build_training(plan: RunPlan, devices: runtime.Devices, console: Console) -> Work:
    console.lines("Generating training model")
    manager = create_variables(plan, devices)
    optimizer = create_optimizer(plan, manager)
    made = make_steps(plan, devices, manager, optimizer)
    slots = manager.savable_slots(optimizer)
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
        lag=_steps_in_flight(devices),
        checkpoints=make_checkpoints(plan, devices.job, manager, slots, made.step, made.inputs),
        exporters=make_exporters(plan, devices.job, manager, averages),
    )
    return work if evaluator is None else EvaluatedTrainingWork(**vars(work), evaluator=evaluator)


def _steps_in_flight(devices: runtime.Devices) -> int:
    """Returns the `lag` of the step loop: a GPU works on a step while the next is launched."""
    return 1 if devices.kind == "gpu" else 0
