"""Saves checkpoints during a training (--save_model_steps, --save_model_secs) and at its end."""

from __future__ import annotations

import time

from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.records.files import collecting_write_errors
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.observers.observer import PausingObserver, TrainingState
from cnnbench.run.runtime.progress import ProcessActivity


class CheckpointSaver(PausingObserver):
    """Saves the checkpoints of a training into a folder, --train_dir."""

    def __init__(self, folder: str, run: RunContext, checkpoints: Checkpoints) -> None:
        self._folder = folder
        self._run = run
        self._checkpoints = checkpoints
        self._last = time.monotonic()
        self._began = False

    def training_begins(self, global_step: int, steps: int) -> None:
        """Starts the first interval of --save_model_secs."""
        self._last = time.monotonic()
        self._began = True

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns True after every --save_model_steps global steps or --save_model_secs seconds."""
        flags = self._run.plan.params
        if flags.save_model_steps:
            return global_step % flags.save_model_steps == 0
        if flags.save_model_secs:
            return time.monotonic() - self._last >= flags.save_model_secs
        return False

    def training_paused(self, state: TrainingState) -> None:
        """Saves a checkpoint. Raises BenchmarkError if it cannot be written."""
        self._save(state.global_step)

    def training_stopped(self, global_step: int) -> None:
        """Saves the last checkpoint, unless the run has made no step."""
        if not self._began:
            return
        # In a job of several processes, a lost process may be the cause of the error, which
        # `JobMembership` then reports.
        if self._run.plan.place.job.in_cluster:
            self._save(global_step)
            return
        with collecting_write_errors("train_dir", self._folder):
            self._save(global_step)

    def _save(self, global_step: int) -> None:
        with (
            self._run.membership.marking_activity(ProcessActivity.CHECKPOINT),
            delaying_interrupts(),
        ):
            self._checkpoints.save(self._folder, global_step)
        self._last = time.monotonic()
