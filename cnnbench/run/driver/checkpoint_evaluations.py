"""Evaluates checkpoints (--eval): one, or every new checkpoint until the training ends."""

from __future__ import annotations

import time

from cnnbench.base.interrupts import raise_if_interrupted
from cnnbench.errors import BenchmarkError
from cnnbench.records import checkpoints
from cnnbench.records.files import report_failed_writes
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.evaluation import EvaluationPublisher
from cnnbench.run.driver.restore import broadcast_from_chief
from cnnbench.run.driver.saved_model import export_weights
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.driver.step_loop import LoopTimer
from cnnbench.run.driver.work import EvaluationWork
from cnnbench.run.runtime.progress import ProcessActivity

_NO_CHECKPOINT = -1
"""Number that is sent instead of a global step if no further evaluation follows."""


def evaluate_checkpoints(
    run: RunContext, work: EvaluationWork, results: EvaluationPublisher
) -> float | None:
    """Evaluates one checkpoint, or all new checkpoints until the training ends, as the chief.

    Returns examples/sec; None after evaluations of several checkpoints.
    """
    folder, pause = work.folder, run.plan.params.eval_interval_secs
    interrupts = SharedInterrupts(work.worker_group)
    end = TrainingEndDetector(folder, run.plan.params.eval_timeout_secs)
    done: str | None = None
    while True:
        raise_if_interrupted()
        # The status is read first, so that the search finds all checkpoints of an ended training.
        end.read_training_status()
        path = checkpoints.find_latest_checkpoint(folder)
        if path is None:
            run.console.lines(f"Checkpoint not found in {folder}")
            if not pause:
                raise BenchmarkError(f"no checkpoint in --train_dir={folder}")
        elif path != done:
            try:
                restored = work.checkpoints.restore(path)
            except BenchmarkError:
                if pause and checkpoints.find_latest_checkpoint(folder) != path:
                    continue  # The training has replaced this checkpoint by a newer checkpoint.
                raise
            broadcast_from_chief(work, restored.global_step)
            run.console.lines(f"Successfully loaded model from {path}.")
            if restored.warning:
                run.messages.warning(restored.warning, "nonfinite")
            speed = _evaluate_restored(run, work, results, restored.global_step, interrupts)
            if not pause:
                return speed
            # In repeated evaluations, each evaluation reports failed outputs and prints a total.
            report_failed_writes(run.messages.warning)
            run.console.footer(speed)
            end.restart_time_limit()
            done = path
        if reason := end.explain_end():
            results.publish_all()
            broadcast_from_chief(work, _NO_CHECKPOINT)
            if done is None:
                raise BenchmarkError(f"no checkpoint in --train_dir={folder}, and {reason}")
            run.messages.notice(f"the evaluation ends: {reason}")
            return None
        wake = time.monotonic() + end.seconds_to_wait(pause)
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            results.publish_all(wake - time.monotonic())
            time.sleep(max(0.0, wake - time.monotonic()))


def _evaluate_restored(
    run: RunContext,
    work: EvaluationWork,
    results: EvaluationPublisher,
    global_step: int,
    interrupts: SharedInterrupts,
) -> float:
    """Evaluates the restored variables and records the result. Returns examples/sec."""
    timer = LoopTimer()
    evaluating = run.membership.marking_activity(ProcessActivity.EVALUATION)
    with run.watch, evaluating, interrupts.sharing_interrupts():
        evaluated = work.evaluator.run(global_step, run.console, interrupts)
    results.add(evaluated)
    images = evaluated.evaluation.examples
    figures = timer.elapsed().record_fields()
    run.measurements.update_record("measured", **figures, loop_images=images)
    export_weights(work.exporters, run.messages)
    return evaluated.evaluation.images_per_sec


def evaluate_with_the_chief(
    run: RunContext, work: EvaluationWork, results: EvaluationPublisher
) -> float | None:
    """Evaluates the same checkpoints as the chief. Returns examples/sec, or None as the chief."""
    interrupts = SharedInterrupts(work.worker_group)
    while True:
        # The chief waits for a checkpoint, so this worker may wait for the chief for a long time.
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            (global_step,) = broadcast_from_chief(work, 0)
        if global_step == _NO_CHECKPOINT:
            return None
        with interrupts.sharing_interrupts():
            evaluated = work.evaluator.run(global_step, run.console, interrupts)
        results.add(evaluated)
        if not run.plan.params.eval_interval_secs:
            return evaluated.evaluation.images_per_sec
        results.publish_all(0.0)


class TrainingEndDetector:
    """Determines when an evaluation with --eval_interval_secs stops waiting for checkpoints."""

    def __init__(self, folder: str, timeout: float) -> None:
        """Starts the time limit, --eval_timeout_secs. `timeout` 0 means no limit."""
        self._folder, self._timeout = folder, timeout
        self._since = time.monotonic()
        self._before, self._status, self._is_new = "", "", False

    def read_training_status(self) -> None:
        """Reads the status of the training from a file in the checkpoint folder."""
        self._before, self._status = self._status, checkpoints.read_training_status(self._folder)
        self._is_new |= self._status == checkpoints.RUNNING

    def restart_time_limit(self) -> None:
        """Records that a new checkpoint was evaluated, which restarts the time limit."""
        self._since = time.monotonic()

    def seconds_to_wait(self, pause: float) -> float:
        """Returns the seconds until the next search: `pause`, or less near --eval_timeout_secs."""
        remaining = self._since + self._timeout - time.monotonic()
        return min(pause, max(0.0, remaining)) if self._timeout else pause

    def explain_end(self) -> str:
        """Returns why no further checkpoint is expected; "" if a checkpoint may follow."""
        ended = self._status not in ("", checkpoints.RUNNING)
        # The first status may be left from an earlier training, which is about to be resumed.
        if ended and (self._is_new or self._before == self._status):
            return f"the training has ended ({self._status})"
        if self._timeout and time.monotonic() - self._since >= self._timeout:
            return f"there was no new checkpoint for --eval_timeout_secs={self._timeout}"
        return ""
