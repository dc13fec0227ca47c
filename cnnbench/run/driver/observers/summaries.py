"""TensorBoard summaries of training and evaluations (--summary_verbosity)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cnnbench.plan import RunPlan
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.observers.observer import Observer, PausingObserver, TrainingState
from cnnbench.run.observe.event_file import EventFile
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr

_GRADIENTS, _VARIABLES = 2, 3
_CHANNELS = (1, 3, 4)


class _SummaryWriter(Observer):
    """Base class of observers that write an event file into the folder that a flag names."""

    def __init__(self, flag: str, folder: str) -> None:
        self._file = EventFile(flag, folder)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Hides events that an earlier run wrote for steps after this run's first global step."""
        del steps
        self._file.hide_events_from(global_step + 1)

    def close(self) -> None:
        """Closes the event file."""
        self._file.close()


class TrainingSummaries(_SummaryWriter, PausingObserver):
    """Writes summaries of a training into a folder, --train_dir.

    If gradients are requested, they are traced as a separate function.
    """

    def __init__(self, folder: str, plan: RunPlan, step: TrainStep, manager: VariableMgr) -> None:
        super().__init__("train_dir", folder)
        self._every = plan.params.save_summaries_steps
        self._verbosity = plan.params.summary_verbosity
        self._loss = plan.params.loss_type_to_report
        self._step = step
        self._manager = manager
        if self._verbosity >= _GRADIENTS:
            self._last_gradients = step.trace_last_gradients()

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns True after every --save_summaries_steps global steps."""
        return global_step % self._every == 0

    def training_paused(self, state: TrainingState) -> None:
        """Writes scalars, and the requested histograms of gradients and variables, and images."""
        step = state.global_step
        scalars = {
            "learning_rate": state.learning_rate,
            self._loss: state.loss,
            "images_per_sec": state.images_per_sec,
            **{f"metrics/{name}": value for name, value in state.metrics.items()},
            "loss_scale": self._step.loss_scale.value,
        }
        for tag, value in scalars.items():
            self._file.scalar(tag, value, step)
        if self._verbosity >= _GRADIENTS:
            gradients, batch = self._last_gradients()
            for name, gradient in gradients.items():
                self._file.histogram(f"gradients/{name}", _array(gradient), step)
            if self._verbosity >= _VARIABLES:
                for name, variable in self._manager.savable_variables().items():
                    self._file.histogram(f"variables/{name}", _array(variable.primary), step)
                for part in batch:
                    if part.shape.rank == 4 and part.shape[-1] in _CHANNELS:
                        self._file.images("images", _array(part), step)
        self._file.flush()


class EvaluationSummaries(_SummaryWriter):
    """Writes the results of evaluations into --eval_dir.

    Args:
      newest: whether the newest checkpoints are evaluated. If so, earlier results for later steps
        are obsolete.
    """

    def __init__(self, folder: str, newest: bool) -> None:
        super().__init__("eval_dir", folder)
        self._newest = newest
        self._last: int | None = None

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Writes the result of an evaluation."""
        step = evaluation.global_step
        if self._newest and (self._last is None or step <= self._last):
            self._file.hide_events_from(step)
        self._last = step
        scalars = {
            "eval/Accuracy@1": evaluation.top_1,
            "eval/Accuracy@5": evaluation.top_5,
            "eval/loss": evaluation.loss,
            "eval/examples_per_sec": evaluation.images_per_sec,
            **{f"eval/{name}": value for name, value in evaluation.metrics.items()},
        }
        for tag, value in scalars.items():
            self._file.scalar(tag, value, step)
        self._file.flush()


def _array(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32).numpy()
