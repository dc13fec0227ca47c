"""TensorBoard summaries of training and evaluations, by --summary_verbosity."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cnnbench.flags import Params
from cnnbench.records.parts import Evaluation
from cnnbench.run.driver.observer import Moment, Observer
from cnnbench.run.observe.events import EventFile
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr

_GRADIENTS, _VARIABLES = 2, 3
_CHANNELS = (1, 3, 4)


class TrainingSummaries(Observer):
    """Writes summaries of a training into --train_dir.

    The gradients of the step are traced here once more, if they are wanted.
    """

    def __init__(self, params: Params, step: TrainStep, manager: VariableMgr) -> None:
        assert params.train_dir is not None
        self._file = EventFile(params.train_dir)
        self._every = params.save_summaries_steps
        self._verbosity = params.summary_verbosity
        self._loss = params.loss_type_to_report
        self._step = step
        self._manager = manager
        if self._verbosity >= _GRADIENTS:
            step.build_gradients()

    def due(self, step: int) -> bool:
        """Every --save_summaries_steps timed steps."""
        return step % self._every == 0

    def paused(self, moment: Moment) -> None:
        """Writes scalars, and statistics that only summaries need."""
        step = moment.global_step
        for tag, value in self._scalars(moment).items():
            self._file.scalar(tag, value, step)
        if self._verbosity >= _GRADIENTS:
            gradients, batch = self._step.last_gradients()
            for name, gradient in gradients.items():
                self._file.histogram(f"gradients/{name}", _values(gradient), step)
            if self._verbosity >= _VARIABLES:
                for name, variable in self._manager.savable_variables().items():
                    self._file.histogram(f"variables/{name}", _values(variable.primary), step)
                for part in batch:
                    if part.shape.rank == 4 and part.shape[-1] in _CHANNELS:
                        self._file.images("images", _values(part), step)
        self._file.flush()

    def close(self) -> None:
        """Ends the event file."""
        self._file.close()

    def _scalars(self, moment: Moment) -> dict[str, float]:
        scalars = {
            "learning_rate": moment.learning_rate,
            self._loss: moment.loss,
            "images_per_sec": moment.images_per_sec,
            **{f"metrics/{name}": value for name, value in moment.metrics.items()},
        }
        scale = self._step.loss_scale.value
        return scalars if scale is None else {**scalars, "loss_scale": scale}


class EvaluationSummaries(Observer):
    """Writes the results of evaluations into --eval_dir."""

    def __init__(self, folder: str) -> None:
        self._file = EventFile(folder)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Writes the result of an evaluation."""
        scalars = {
            "eval/Accuracy@1": evaluation.top_1,
            "eval/Accuracy@5": evaluation.top_5,
            "eval/loss": evaluation.loss,
            "eval/examples_per_sec": evaluation.images_per_sec,
            **{f"eval/{name}": value for name, value in evaluation.metrics.items()},
        }
        for tag, value in scalars.items():
            if value is not None:
                self._file.scalar(tag, value, evaluation.global_step)
        self._file.flush()

    def close(self) -> None:
        """Ends the event file."""
        self._file.close()


def _values(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32).numpy()
