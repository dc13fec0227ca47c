"""Gives the variables of a run their first values, and continues the input after a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cnnbench.data.dataset import InputSource
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.plan import RunPlan
from cnnbench.plan.length import round_up_steps
from cnnbench.records import checkpoints
from cnnbench.run.driver.checkpoints import RestoredState, reset_averages
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.stored_checkpoint import StoredCheckpoint, key_of
from cnnbench.run.driver.work import ForwardWork, NetworkWork


def begin(run: RunContext, work: ForwardWork) -> tuple[int, int]:
    """Initializes or restores the variables of all workers, and continues the input.

    Returns the number of training steps before this run (warm-up steps are included, because they
    train), and the number of timed steps of this run.
    """
    restored, steps = restore_or_initialize(run, work)
    # Only the chief reads the checkpoint, so it sends the counts of steps and examples to the
    # workers.
    global_step, examples, steps, *passed_over = broadcast_from_chief(
        work, restored.global_step, restored.examples, steps, *restored.passed_over
    )
    if run.plan.work.trains:
        run.plan = run.plan.resumed(global_step, examples)
    for step in (work.step, *work.workers.values()):
        step.resume(global_step)
    if run.plan.work.trains and examples and not work.inputs.synthetic:
        resume_input(run, work.inputs, examples, passed_over)
    work.manager.wait_for_assignments(work.inputs.devices)
    return global_step, steps


def restore_or_initialize(run: RunContext, work: ForwardWork) -> tuple[RestoredState, int]:
    """Initializes the variables, or restores a checkpoint if there is one.

    Returns the state of the checkpoint and the number of steps to run.
    """
    plan, messages = run.plan, run.messages
    run.console.lines("Initializing graph")
    work.manager.after_initialization()
    folder = plan.params.train_dir
    if folder is not None and plan.work.trains:
        checkpoints.delete_incomplete_files(folder)
    path = None if folder is None else checkpoints.find_latest_checkpoint(folder)
    if folder is None or path is None:
        _restore_backbone(run, work)
        return RestoredState(0, 0, ()), plan.length.batches
    restored = work.checkpoints.restore(path)
    messages.notice(f"resuming from {path} at global step {restored.global_step}")
    for notice in restored.notices:
        messages.notice(notice)
    if restored.warning:
        messages.warning(restored.warning, "nonfinite")
    if not plan.work.trains:
        return restored, plan.length.batches
    for state in _unsaved_state(plan):
        messages.notice(f"the training continues differently: {state}")
    if not restored.counts_examples:
        _refuse_lengths_in_epochs(plan, path)
    # --num_batches also counts the steps before the checkpoint, as in tf_cnn_benchmarks.
    length = plan.resumed(restored.global_step, restored.examples).length
    steps = length.batches - restored.global_step
    length.check_steps_left(plan.params, restored.global_step)
    if steps < 1:
        flag = "num_epochs" if plan.params.num_epochs else "num_batches"
        messages.notice(
            "no training steps remain; only the last evaluation and files follow. To continue the "
            f"training, increase --{flag}"
        )
    return restored, round_up_steps(max(0, steps), plan.params.steps_per_execution)


def _refuse_lengths_in_epochs(plan: RunPlan, path: str) -> None:
    """Raises FlagError if a length in epochs was given, but the checkpoint has no examples."""
    in_steps = {
        "num_epochs": "num_batches",
        "eval_during_training_every_n_epochs": "eval_during_training_every_n_steps",
        "eval_during_training_at_specified_epochs": "eval_during_training_at_specified_steps",
    }
    for flag, instead in in_steps.items():
        if value := getattr(plan.given, flag):
            why = f"{path} does not contain the number of examples it was trained on"
            raise FlagError(flag, value, f"{why}; use --{instead}, which counts steps")


def _restore_backbone(run: RunContext, work: ForwardWork) -> None:
    """Restores --backbone_model_path, if the flag is given and this process trains as the chief.

    The first layers of a classification network are the backbone of a detector. Their variables
    have the same names as in the detector, without the scope of the backbone.

    Raises:
      BenchmarkError: the checkpoint is unreadable, or it does not fit the layers of the backbone.
    """
    plan, folder = run.plan, run.plan.params.backbone_model_path
    if folder is None or not plan.work.trains or not plan.place.job.is_chief:
        return
    path = checkpoints.find_latest_checkpoint(folder)
    if path is None:
        raise BenchmarkError(f"no checkpoint in --backbone_model_path={folder}")
    scope = f"{plan.network.model.backbone}/"
    backbone = {
        key_of("model", name.removeprefix(scope)): variable.primary
        for name, variable in work.manager.savable_variables().items()
        if name.startswith(scope)
    }
    stored = StoredCheckpoint(path, "it is not from a network with the layers of this backbone")
    stored.check_shapes(backbone)
    stored.assign_stored_values(backbone)
    work.manager.after_restore()
    run.messages.notice(f"backbone of {len(backbone)} variables restored from {path}")
    reset_averages(work.manager, work.slots)


def _unsaved_state(plan: RunPlan) -> Iterator[str]:
    """Yields what a checkpoint does not contain, although the next steps depend on it."""
    if not plan.place.mode.in_sync and plan.place.job.num_towers > 1:
        yield "a checkpoint contains the variables of the first device only, for all devices"
    if plan.params.staged_vars:
        yield "with --staged_vars, the first step uses the saved variables, not those before them"
    if plan.exchange.aggregation.applies_gradients_late:
        yield "with --variable_consistency=relaxed, the first step applies gradients of zero"


def broadcast_from_chief(work: NetworkWork, *numbers: int) -> list[int]:
    """Sends the chief's variables and numbers to all workers that run their own steps.

    Args:
      numbers: numbers that depend on the checkpoint, such as the global step and the number of
        steps left. Only the chief has the correct numbers.

    Returns:
      The chief's numbers.
    """
    if work.worker_group is None:
        return [*numbers]
    work.manager.broadcast_from_chief(work.restored_variables())
    of_chief, *_ = work.worker_group.gather_bytes(np.array(numbers, np.int64).tobytes())
    return [*map(int, np.frombuffer(of_chief, np.int64))]


def resume_input(
    run: RunContext, inputs: InputSource, examples: int, passed_over: Sequence[int]
) -> None:
    """Continues the input after the examples that earlier runs have used.

    Args:
      examples: number of examples.
      passed_over: number of skipped records, see `RestoredState`.
    """
    plan = run.plan
    # The number of examples that each asynchronous worker has used is unknown; equal numbers are
    # assumed.
    workers = plan.place.job.num_workers if plan.place.asynchronous else 1
    if inputs.resume(examples, plan.length.global_batch * workers, passed_over):
        # Skipping examples takes time, so a notice explains why the first batch arrives late.
        notice = f"the input continues after the {examples} examples trained on"
    else:
        notice = "the input starts over: its data set cannot be resumed in the middle"
    run.messages.notice(notice)
