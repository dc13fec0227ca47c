"""TensorBoard summaries of training and evaluations (--summary_verbosity).

An event file is a TFRecord file of `Event` messages. The dashboard's name and the shape of the
tensor determine whether a value is a scalar, histogram or image. `tf.summary` is not used, because
it cannot write the events that hide the values of an earlier run. Functions such as
`tf.summary.scalar` also need the package tensorboard, which TensorFlow no longer installs.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from cnnbench.base.files import local_or_url_path
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.files import collecting_write_errors
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.observers.observer import Observer, PausingObserver, TrainingState
from cnnbench.run.observe.messages import message_class
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr

_BUCKETS = 30
_MOST_IMAGES = 3
# Values of the enumeration DataClass in TensorBoard's protocol buffers.
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3
# Value of the enumeration SessionLog.SessionStatus in TensorFlow's protocol buffers.
_SESSION_START = 1


class EventFile:
    """Writes a TensorBoard event file, which is created with its first value."""

    def __init__(self, flag: str, folder: str) -> None:
        self._flag = flag
        self._folder = folder
        self._writer: Any = None
        self._start: int | None = None

    def hide_events_from(self, step: int) -> None:
        """Hides events of an earlier run from this step on, when the next value is written."""
        self._start = step if self._start is None else min(step, self._start)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Writes a number with a tag, which is the name of its chart."""
        self._write(tag, np.float32(value), step, "scalars", _SCALAR)

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Writes a histogram of the finite values."""
        self._write(tag, histogram_buckets(values), step, "histograms", _TENSOR)

    def images(self, tag: str, images: npt.ArrayLike, step: int) -> None:
        """Writes the first images of a batch, [n, height, width, channels] with 1, 3 or 4 channels.

        Each image is scaled so that its smallest value is black and its largest value is white.
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
            with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
                self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
                self._writer.close()

    def _write(self, tag: str, value: Any, step: int, dashboard: str, data_class: int) -> None:
        tensor = tf.make_tensor_proto(value).SerializeToString()
        metadata = {"plugin": {"name": dashboard.encode()}, "data_class": data_class}
        summary = message_class("Summary")()
        summary.values.add(tag=tag.encode(), metadata=metadata).tensor.MergeFromString(tensor)
        with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
            if self._writer is None:
                local_or_url_path(self._folder).mkdir(parents=True, exist_ok=True)
                # TensorBoard reads the files of a folder in the order of their names.
                host = f"{socket.gethostname()}.{os.getpid()}"
                name = f"events.out.tfevents.{time.time():017.6f}.{host}"
                self._writer = tf.io.TFRecordWriter(os.path.join(self._folder, name))
                self._write_event(file_version=b"brain.Event:2")
            if self._start is not None:
                self._write_event(step=min(self._start, step), session={"status": _SESSION_START})
                self._start = None
            self._write_event(step=step, summary=summary)

    def _write_event(self, **fields: Any) -> None:
        event = message_class("Event")(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())


def histogram_buckets(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Counts finite values in buckets: rows with left edge, right edge and count."""
    # Copies in double precision are avoided, because allocating memory for them takes time.
    flat = np.asarray(values).ravel()
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return np.zeros((0, 3))
    is_constant = flat.min() == flat.max()
    counts, edges = np.histogram(flat, 1 if is_constant else _BUCKETS)
    columns = (edges[:-1], edges[1:], counts)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)


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
        for tag, value in self._training_scalars(state).items():
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

    def _training_scalars(self, state: TrainingState) -> dict[str, float]:
        scalars = {
            "learning_rate": state.learning_rate,
            self._loss: state.loss,
            "images_per_sec": state.images_per_sec,
            **{f"metrics/{name}": value for name, value in state.metrics.items()},
            "loss_scale": self._step.loss_scale.value,
        }
        return {tag: value for tag, value in scalars.items() if value is not None}


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
            if value is not None:
                self._file.scalar(tag, value, step)
        self._file.flush()


def _array(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32).numpy()
