"""TensorBoard summaries of training and evaluations, by --summary_verbosity.

An event file is a TFRecord file of `Event` messages. The dashboard's name and the tensor's form
make a value a scalar, histogram or image. `tf.summary` is not used: it cannot write the events that
hide the values of an earlier run, and its `scalar` and the like need the package tensorboard, which
TensorFlow no longer installs.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from cnnbench.base.urls import place
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.files import writing_output
from cnnbench.records.parts import Evaluation
from cnnbench.run.driver.observer import Moment, Observer
from cnnbench.run.observe.protobuf import message
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr

_BUCKETS = 30
_MOST_IMAGES = 3
# Values of DataClass.
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3
# Value of SessionLog.SessionStatus.
_SESSION_START = 1


class EventFile:
    """An event file, created in the folder of a flag when the first value is written."""

    def __init__(self, flag: str, folder: str) -> None:
        self._flag = flag
        self._folder = folder
        self._writer: Any = None
        self._start: int | None = None

    def hide(self, step: int) -> None:
        """Makes the next value hide those of this step and later ones in all earlier events."""
        self._start = step if self._start is None else min(step, self._start)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Writes a number."""
        self._write(tag, np.float32(value), step, "scalars", _SCALAR)

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Writes a histogram of the finite values."""
        self._write(tag, buckets(values), step, "histograms", _TENSOR)

    def images(self, tag: str, images: npt.ArrayLike, step: int) -> None:
        """Writes the first images of a batch, [n, height, width, channels] of 1, 3 or 4 channels.

        Each is scaled so that its least value is black and its greatest white.
        """
        rows = np.asarray(images, np.float64)[:_MOST_IMAGES]
        height, width = rows.shape[1:3]
        content = [str(width).encode(), str(height).encode()]
        for row in rows:
            shown = np.nan_to_num(row)
            low, high = shown.min(), shown.max()
            scaled = np.round((shown - low) * (255.0 / max(high - low, 1e-12)))
            content.append(tf.io.encode_png(scaled.astype(np.uint8)).numpy())
        self._write(tag, content, step, "images", _BLOBS)

    def flush(self) -> None:
        """Writes buffered values to disk."""
        if self._writer is not None:
            with writing_output(self._flag, self._folder, tf.errors.OpError):
                self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            with writing_output(self._flag, self._folder, tf.errors.OpError):
                self._writer.close()

    def _write(self, tag: str, value: Any, step: int, dashboard: str, data_class: int) -> None:
        tensor = tf.make_tensor_proto(value).SerializeToString()
        metadata = {"plugin": {"name": dashboard.encode()}, "data_class": data_class}
        summary = message("Summary")()
        summary.values.add(tag=tag.encode(), metadata=metadata).tensor.MergeFromString(tensor)
        with writing_output(self._flag, self._folder, tf.errors.OpError):
            if self._writer is None:
                place(self._folder).mkdir(parents=True, exist_ok=True)
                # The dashboard reads the files of a folder in order of their names.
                host = f"{socket.gethostname()}.{os.getpid()}"
                name = f"events.out.tfevents.{time.time():017.6f}.{host}"
                self._writer = tf.io.TFRecordWriter(os.path.join(self._folder, name))
                self._event(file_version=b"brain.Event:2")
            if self._start is not None:
                self._event(step=min(self._start, step), session={"status": _SESSION_START})
                self._start = None
            self._event(step=step, summary=summary)

    def _event(self, **fields: Any) -> None:
        self._writer.write(message("Event")(wall_time=time.time(), **fields).SerializeToString())


def buckets(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The histogram of finite values: rows of left edge, right edge and count."""
    # Without copies in double precision, for which the system would have to map memory.
    flat = np.asarray(values).ravel()
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return np.zeros((0, 3))
    one = flat.min() == flat.max()
    counts, edges = np.histogram(flat, 1 if one else _BUCKETS)
    columns = (edges[:-1], edges[1:], counts)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)


_GRADIENTS, _VARIABLES = 2, 3
_CHANNELS = (1, 3, 4)


class _Summaries(Observer):
    """Writes an event file into the folder of a flag."""

    def __init__(self, flag: str, folder: str) -> None:
        self._file = EventFile(flag, folder)

    def begins(self, global_step: int, steps: int) -> None:
        """Hides what an earlier run wrote after the checkpoint that this one continues from."""
        del steps
        self._file.hide(global_step + 1)

    def close(self) -> None:
        """Ends the event file."""
        self._file.close()


class TrainingSummaries(_Summaries):
    """Writes summaries of a training into --train_dir.

    The gradients of the step are traced here once more, if they are wanted.
    """

    def __init__(self, plan: RunPlan, step: TrainStep, manager: VariableMgr) -> None:
        assert plan.outputs.train_dir is not None
        super().__init__("train_dir", plan.outputs.train_dir)
        self._every = plan.outputs.save_summaries_steps
        self._verbosity = plan.outputs.summary_verbosity
        self._loss = plan.numerics.loss_type_to_report
        self._step = step
        self._manager = manager
        if self._verbosity >= _GRADIENTS:
            self._last_gradients = step.last_gradients()

    def due(self, global_step: int) -> bool:
        """Every --save_summaries_steps global steps."""
        return global_step % self._every == 0

    def paused(self, moment: Moment) -> None:
        """Writes scalars, and statistics that only summaries need."""
        step = moment.global_step
        for tag, value in self._scalars(moment).items():
            self._file.scalar(tag, value, step)
        if self._verbosity >= _GRADIENTS:
            gradients, batch = self._last_gradients()
            for name, gradient in gradients.items():
                self._file.histogram(f"gradients/{name}", _values(gradient), step)
            if self._verbosity >= _VARIABLES:
                for name, variable in self._manager.savable_variables().items():
                    self._file.histogram(f"variables/{name}", _values(variable.primary), step)
                for part in batch:
                    if part.shape.rank == 4 and part.shape[-1] in _CHANNELS:
                        self._file.images("images", _values(part), step)
        self._file.flush()

    def _scalars(self, moment: Moment) -> dict[str, float]:
        scalars = {
            "learning_rate": moment.learning_rate,
            self._loss: moment.loss,
            "images_per_sec": moment.images_per_sec,
            **{f"metrics/{name}": value for name, value in moment.metrics.items()},
            "loss_scale": self._step.loss_scale.value,
        }
        return {tag: value for tag, value in scalars.items() if value is not None}


class EvaluationSummaries(_Summaries):
    """Writes the results of evaluations into --eval_dir.

    Args:
      newest: whether newest checkpoints are evaluated: results of later steps are obsolete then.
    """

    def __init__(self, folder: str, newest: bool) -> None:
        super().__init__("eval_dir", folder)
        self._newest = newest
        self._last: int | None = None

    def evaluated(self, evaluation: Evaluation) -> None:
        """Writes the result of an evaluation."""
        step = evaluation.global_step
        if self._newest and (self._last is None or step <= self._last):
            self._file.hide(step)
        self._last = step
        scalars = {
            "eval/Accuracy@1": evaluation.top_1,
            "eval/Accuracy@5": evaluation.top_5,
            "eval/loss": evaluation.loss,
            "eval/examples_per_sec": evaluation.images_per_sec,
            **{f"eval/{name}": value for name, value in evaluation.metrics.items()},
        }
        for tag, value in scalars.items():
            if value is not None:
                self._file.scalar(tag, value, step)
        self._file.flush()


def _values(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32).numpy()
