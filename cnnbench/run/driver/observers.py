"""Observers write the benchmark log, the MLPerf log, summaries and profiles of a run.

`benchmark_run.log` is one JSON object about the run, which is replaced atomically. `metric.log` has
one JSON object per line; lines are appended.

The MLPerf log has the keys and the format of MLCommons' logging package for training (mllog 1.0 and
later), as its compliance checker requires for resnet and ssd. docs/observability.md lists the
omitted keys.

An event file is a TFRecord file of `Event` messages. The dashboard's name and the shape of the
tensor determine whether a value is a scalar, histogram or image. `tf.summary` is not used, because
it cannot write the events that hide the values of an earlier run. Functions such as
`tf.summary.scalar` also need the package tensorboard, which TensorFlow no longer installs.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from cnnbench.base.files import TemporaryFolder, local_or_url_path
from cnnbench.base.terminal import MessageWriter
from cnnbench.data.coco import CROP_TRIES
from cnnbench.errors import BenchmarkError
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.files import collecting_write_errors, write_bytes, write_text
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.preflight import partition_file
from cnnbench.run.observe import work
from cnnbench.run.observe.graphs import collecting_partitions, write_graph
from cnnbench.run.observe.operations import (
    XPlane,
    divide_wall_time_of_step,
    operation_table,
    protobuf_message_class,
    read_profile,
    sorted_operations,
)
from cnnbench.run.observe.work import make_operation_work_finder
from cnnbench.run.runtime.loading import without_info_lines
from cnnbench.run.step.train_step import TrainStep
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.version import __version__

# Callbacks of a run, which are called outside timed steps.


class TrainingState(NamedTuple):
    """The state of a training after a step of the warm-up or of the timed loop.

    Attributes:
      global_step: global step of the weights.
      metrics: metrics of the step's batch by name; empty unless they are computed.
      images_per_sec: speed in the row of the step; None in the warm-up.
    """

    global_step: int
    learning_rate: float
    loss: float
    metrics: Mapping[str, float]
    images_per_sec: float | None


class Observer:
    """Base class of objects that are called at the events of a run. It ignores all events."""

    def training_begins(self, global_step: int, steps: int) -> None:
        """Called when the training begins, which runs a warm-up and at most `steps` timed steps."""

    def table_row_printed(
        self, step: int, images_per_sec: float, metrics: Mapping[str, float]
    ) -> None:
        """Called when the table's row for a timed step was printed. The first step is 1.

        `metrics` is as in `TrainingState`.
        """

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns whether to call `training_paused` after this step (warm-up or timed loop)."""
        del global_step
        return False

    def training_paused(self, state: TrainingState) -> None:
        """Called while no step is running, so that the call may take a long time."""

    def evaluation_begins(self, global_step: int) -> None:
        """Called when an evaluation begins. The training is paused or has ended."""

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Called when the metrics of an evaluation are complete."""

    def training_resumes_after_evaluation(self, global_step: int) -> None:
        """Called when the training continues after an evaluation."""

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Called when the training and its last evaluation have ended.

        `steps` is the number of timed steps. `total` is the speed over the timed loop, `mean` the
        speed at the mean step, in images per second.
        """

    def close(self) -> None:
        """Called when the run has ended, successfully or not."""


# The benchmark log, as TensorFlow's official models and tf_cnn_benchmarks write it.

_RUN, _METRICS = "benchmark_run.log", "metric.log"
_RATE = "examples per second"
_KINDS = {bool: "bool_value", int: "long_value", float: "float_value"}
_ACCURACIES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class BenchmarkLog(Observer):
    """Creates a folder, and writes `benchmark_run.log` and `metric.log` into it.

    Args:
      config: resolved values of all flags of the run, as plain JSON values.
      parameters: `cnnbench.run.driver.describe.benchmark_log_parameters`.
      facts: recorded properties of machine and software, without unknown properties.
      record: the record of the run before its first step, as JSON. It describes the run exactly,
        so that `cnnbench import` can create the record of the run from the two files.
    """

    def __init__(
        self,
        folder: str,
        config: Mapping[str, Any],
        parameters: Mapping[str, Any],
        facts: Mapping[str, Any],
        test_id: str | None,
        record: Mapping[str, Any],
    ) -> None:
        self._folder, self._last_row = Path(folder), 0
        about = benchmark_run_info(config, parameters, facts, test_id) | {"record": record}
        with collecting_write_errors("benchmark_log_dir", folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_text("benchmark_log_dir", str(self._folder / _RUN), json.dumps(about) + "\n")

    def table_row_printed(
        self, step: int, images_per_sec: float, metrics: Mapping[str, float]
    ) -> None:
        """Logs the values of a row of the table, with the row's step number."""
        self._last_row = step
        self._log_metric("current_examples_per_sec", images_per_sec, step, _RATE)
        for name, value in metrics.items():
            self._log_metric(_ACCURACIES.get(name, name), value, step)

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Logs the accuracies and the rate of an evaluation."""
        step = evaluation.global_step
        accuracies = {"top_1": evaluation.top_1, "top_5": evaluation.top_5}
        for name, value in {**accuracies, **evaluation.metrics}.items():
            if value is not None:
                self._log_metric(f"eval_{_ACCURACIES.get(name, name)}", value, step)
        rate = evaluation.images_per_sec
        self._log_metric("eval_average_examples_per_sec", rate, step, _RATE)

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Logs the speed of all timed steps, unless the last row has it, and of the timed loop."""
        if self._last_row < steps:
            self._log_metric("current_examples_per_sec", mean, steps, _RATE)
        self._log_metric("average_examples_per_sec", total, steps, _RATE)

    def _log_metric(self, name: str, value: float, step: int, unit: str | None = None) -> None:
        line: dict[str, Any] = {
            "name": name,
            # JSON cannot represent NaN and infinities.
            "value": value if math.isfinite(value) else str(value),
            "unit": unit,
            "global_step": step,
            "timestamp": datetime.now(timezone.utc).strftime(_TIME),
            "extras": [],
        }
        with collecting_write_errors("benchmark_log_dir", str(self._folder)):
            with (self._folder / _METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def benchmark_run_info(
    config: Mapping[str, Any],
    parameters: Mapping[str, Any],
    facts: Mapping[str, Any],
    test_id: str | None,
) -> dict[str, Any]:
    """The content of benchmark_run.log. The arguments are the arguments of `BenchmarkLog`."""
    gpus = facts.get("gpu_names") or []
    cpu = {"num_cores": facts.get("logical_cpus"), "cpu_info": facts.get("cpu_model")}
    parameters = {**config, **parameters}
    return {
        "model_name": parameters["model"],
        "dataset": {"name": parameters["dataset"]},
        "test_id": test_id,
        "run_date": datetime.now(timezone.utc).strftime(_TIME),
        "tensorflow_version": {
            "version": facts.get("tensorflow_version"),
            "git_hash": facts.get("tensorflow_git_version"),
        },
        "machine_config": {
            "cpu_info": {**cpu, "mhz_per_cpu": facts.get("cpu_max_mhz")},
            "gpu_info": {"count": len(gpus), "model": gpus[0] if gpus else None},
            "memory_total": facts.get("memory_bytes"),
        },
        "run_parameters": [_parameter_entry(name, parameters[name]) for name in sorted(parameters)],
    }


def _parameter_entry(name: str, value: Any) -> dict[str, Any]:
    key = _KINDS.get(type(value))
    return {"name": name, "string_value": str(value)} if key is None else {"name": name, key: value}


# MLPerf's compliance log: `:::MLLOG` lines on standard error.

_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"

_BENCHMARKS = {"resnet50_v1.5": "resnet", "ssd300": "ssd"}
"""MLPerf's names of the networks that were MLPerf benchmarks."""


class MLPerfLog(Observer):
    """Logs a training for MLPerf: its settings, the blocks between evaluations, and its end."""

    def __init__(self, plan: RunPlan, write: Callable[[str], None]) -> None:
        self._plan, self._target, model = plan, plan.length.target, plan.network.model
        names = (*model.host_metric_names, *model.metric_names)
        # Chooses the metric that is logged as the accuracy.
        if plan.length.target is not None:
            self._accuracy = plan.length.target.metric
        elif model.top_1_accuracy in names:
            self._accuracy = model.top_1_accuracy
        else:
            self._accuracy = (*names, "loss")[0]
        self._write = write
        self._lengths: Iterator[int] = iter(())
        self._block: float | None = None
        self._reached = False
        self._started = self._finished = False
        self._log_event(_START, "init_start", None)
        settings = {
            "submission_benchmark": _BENCHMARKS.get(
                plan.network.model.name, plan.network.model.name
            ),
            "seed": plan.params.tf_random_seed,
            "global_batch_size": plan.length.global_batch,
            "train_samples": plan.length.train_examples,
            "eval_samples": plan.length.eval_examples,
            "gradient_accumulation_steps": plan.length.passes,
            **_mlperf_network_settings(plan),
            **_mlperf_optimizer_settings(plan),
        }
        for key, value in settings.items():
            self._log_event(_POINT, key, value)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Logs the start of the training, which includes the warm-up."""
        self._log_event(_END, "init_stop", None)
        self._log_event(_START, "run_start", None)
        self._started = True
        last = global_step + self._plan.length.warm_up.least + steps
        evaluations = sorted(
            step for step in self._plan.length.eval_steps if global_step < step < last
        )
        edges = [global_step, *evaluations, last]
        self._lengths = iter([end - begin for begin, end in itertools.pairwise(edges)])
        self.training_resumes_after_evaluation(global_step)

    def evaluation_begins(self, global_step: int) -> None:
        """Logs that a block of training steps has ended, and that an evaluation begins."""
        self._log_block_end()
        self._log_event(_START, "eval_start", None, **self._epoch_and_samples(global_step))

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Logs the metric of --stop_at or, without this flag, the model's accuracy."""
        position = self._epoch_and_samples(evaluation.global_step)
        value = evaluation.metric_value(self._accuracy)
        if value is not None:
            self._log_event(_POINT, "eval_accuracy", value, **position)
        if self._target is not None and self._target.is_reached_by(value):
            self._reached = True
        self._log_event(_END, "eval_stop", None, **position)

    def training_resumes_after_evaluation(self, global_step: int) -> None:
        """Logs the start of the next block of training, if steps are left."""
        length = next(self._lengths, 0)
        if not length:
            return
        self._block = self._epochs_of_steps(global_step)
        self._log_event(
            *(_START, "block_start", None),
            first_epoch_num=self._block,
            epoch_count=self._epochs_of_steps(length),
            samples_count=global_step * self._plan.length.global_batch,
        )

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Records that the training has ended after its last evaluation, for `close`."""
        self._finished = True

    def close(self) -> None:
        """Logs the end of the run, and whether it reached the target of --stop_at."""
        if self._started:
            self._log_block_end()
            done = self._finished if self._target is None else self._reached
            status = "success" if done else "aborted"
            self._log_event(_END, "run_stop", None, status=status)

    def _epochs_of_steps(self, steps: int) -> float:
        return steps * self._plan.length.global_batch / self._plan.length.train_examples

    def _epoch_and_samples(self, global_step: int) -> dict[str, float]:
        samples = global_step * self._plan.length.global_batch
        return {"epoch_num": self._epochs_of_steps(global_step), "samples_count": samples}

    def _log_block_end(self) -> None:
        if self._block is not None:
            self._log_event(_END, "block_stop", None, first_epoch_num=self._block)
            self._block = None

    def _log_event(self, kind: str, key: str, value: Any, **metadata: Any) -> None:
        line = {
            "namespace": "",
            "time_ms": round(time.time() * 1e3),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        self._write(f":::MLLOG {json.dumps(line)}")


def _mlperf_network_settings(plan: RunPlan) -> dict[str, Any]:
    """Returns the values of MLPerf's keys about batch norm and training images."""
    settings: dict[str, Any] = {}
    if plan.network.spec.statistics:
        sync = plan.params.bn_stats == "sync"
        settings["model_bn_span"] = (
            plan.length.global_batch if sync else plan.length.batch_per_device
        )
    if plan.network.dataset.name == "coco" and plan.params.data_dir is not None:
        settings["max_samples"] = CROP_TRIES
    return settings


def _mlperf_optimizer_settings(plan: RunPlan) -> dict[str, Any]:
    """Returns the values of MLPerf's keys about the optimizer and its learning rate."""
    rate = plan.rates.outline
    optimizer = plan.numerics.optimizer_spec
    settings: dict[str, Any] = {
        "opt_name": optimizer.mlperf_name or optimizer.name,
        "opt_base_learning_rate": rate.base,
        "opt_learning_rate_warmup_epochs": rate.warmup_epochs,
        "opt_learning_rate_warmup_steps": rate.warmup_steps,
        "opt_learning_rate_warmup_factor": 0.0,
        "opt_weight_decay": plan.params.weight_decay,
    }
    if rate.boundaries_epochs:
        settings["opt_learning_rate_decay_boundary_epochs"] = rate.boundaries_epochs
    values = {
        **plan.numerics.constants,
        "base_rate": rate.base,
        "end_rate": plan.rates.schedule(plan.length.training_steps),
        "warmup_epochs": rate.warmup_epochs,
        "weight_decay": plan.params.weight_decay,
    }
    for key, value in optimizer.mlperf.items():
        settings[key] = values[value] if isinstance(value, str) else value
    return settings


# TensorBoard summaries of training and evaluations (--summary_verbosity).

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

    def hide_earlier_events_from_step(self, step: int) -> None:
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
        summary = protobuf_message_class("Summary")()
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
        self._writer.write(
            protobuf_message_class("Event")(wall_time=time.time(), **fields).SerializeToString()
        )


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
        self._file.hide_earlier_events_from_step(global_step + 1)

    def close(self) -> None:
        """Closes the event file."""
        self._file.close()


class TrainingSummaries(_SummaryWriter):
    """Writes summaries of a training into --train_dir.

    If gradients are requested, they are traced as a separate function.
    """

    def __init__(self, plan: RunPlan, step: TrainStep, manager: VariableMgr) -> None:
        assert plan.params.train_dir is not None
        super().__init__("train_dir", plan.params.train_dir)
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
                self._file.histogram(f"gradients/{name}", _float32_array(gradient), step)
            if self._verbosity >= _VARIABLES:
                for name, variable in self._manager.savable_variables().items():
                    self._file.histogram(
                        f"variables/{name}", _float32_array(variable.primary), step
                    )
                for part in batch:
                    if part.shape.rank == 4 and part.shape[-1] in _CHANNELS:
                        self._file.images("images", _float32_array(part), step)
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
            self._file.hide_earlier_events_from_step(step)
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


def _float32_array(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32).numpy()


# Profilers of single steps of the warm-up.

_MICROSECONDS = 1e-6
"""Microseconds per picosecond."""
# A profile includes all operations of the host and all GPU kernels, but no Python functions.
_OPTIONS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1}


Probe = tuple[int, AbstractContextManager[None]]
"""A profiler of a warm-up step: the number of the step (from 1), and a context manager.

The context manager is entered before the step and left after it, outside of the step's time.
"""


def make_warm_up_profilers(plan: RunPlan, graph: Any, messages: MessageWriter) -> Iterator[Probe]:
    """Creates the profilers of warm-up steps that the flags request."""
    flags = plan.params
    partitions: list[Any] = []
    if flags.trace_file or flags.tfprof_file or flags.profile_layers:
        # As in tf_cnn_benchmarks, there is one step between the profiled step and the timed steps.
        step = max(1, plan.length.warm_up.least - 1)
        folder = None if flags.use_chrome_trace_format else flags.trace_file or None
        yield (
            step,
            profiling_step(
                step, folder, partial(_write_profile_files, plan, graph, partitions, step)
            ),
        )
    if flags.tfprof_file or flags.profile_layers or flags.partitioned_graph_file_prefix:
        # TensorFlow partitions a graph when it runs for the first time, so in the first step.
        # This context is entered last and left first, because reading profiles needs partitions.
        yield 1, _writing_partitions(partitions, flags.partitioned_graph_file_prefix, messages)


@contextmanager
def profiling_step(
    step: int, folder: str | None, on_profile: Callable[[tuple[XPlane, ...]], None]
) -> Iterator[None]:
    """A context that profiles its block, which runs the warm-up step with the number `step`.

    Copies the profile to `folder` (if given) for `tensorboard --logdir`, and passes its planes to
    `on_profile`. An event with the number marks the step, because TensorBoard's pages about steps
    need it.
    """
    with TemporaryFolder("cnnbench-profile-") as own:
        scratch = own.path / "profile"
        with without_info_lines():
            options = tf.profiler.experimental.ProfilerOptions(**_OPTIONS)
            tf.profiler.experimental.start(os.fspath(scratch), options)
        try:
            # TensorBoard recognizes a step by the name "train" and the root mark `_r`.
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                yield
        except BaseException:
            tf.profiler.experimental.stop(save=False)
            raise
        with without_info_lines():
            tf.profiler.experimental.stop()
        written = sorted(scratch.glob("plugins/profile/*/*.xplane.pb"))
        if not written:
            raise BenchmarkError("TensorFlow's profiler wrote no profile")
        if folder is not None:
            with collecting_write_errors("trace_file", folder):
                shutil.copytree(scratch, folder, dirs_exist_ok=True)
        on_profile(tuple(plane for path in written for plane in read_profile(path.read_bytes())))


def _write_profile_files(
    plan: RunPlan, graph: Any, partitions: Sequence[Any], step: int, planes: tuple[XPlane, ...]
) -> None:
    """Writes a profile of a step to --trace_file, --tfprof_file and --profile_layers."""
    model, batch = plan.network.model, plan.length.batch_per_device
    together = plan.params.steps_per_execution
    before = (step - 1) // together * together
    steps = f"step {step}" if together == 1 else f"steps {before + 1} to {before + together}"
    title = f"warm-up {steps} of {model.name}, {batch} images per device"
    if plan.params.trace_file and plan.params.use_chrome_trace_format:
        trace = chrome_trace(planes, {"step": title, "cnnbench": __version__})
        content = json.dumps(trace, allow_nan=False).encode("ascii")
        if plan.params.trace_file.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        write_bytes("trace_file", plan.params.trace_file, content)
    if not plan.params.tfprof_file and not plan.params.profile_layers:
        return
    works = make_operation_work_finder(plan, graph, partitions)
    ran = sorted_operations(planes, works.is_of_step)
    if plan.params.tfprof_file:
        write_text(
            "tfprof_file", plan.params.tfprof_file, operation_table(ran, f"operations of {title}")
        )
    if plan.params.profile_layers:
        flops = {
            name: batch * plan.length.passes * flops_of_image.training
            for name, flops_of_image in works.image_flops.items()
        }
        layers = work.layers_of_step(divide_wall_time_of_step(ran), works, graph, flops)
        for path in plan.params.profile_layers.split(","):
            work.write_layers("profile_layers", path, layers, f"layers of {title}")


@contextmanager
def _writing_partitions(
    partitions: list[Any], prefix: str | None, messages: MessageWriter
) -> Iterator[None]:
    """A context that appends the graph partitions of the function called inside to `partitions`.

    If `prefix` is given, writes the partitions to numbered paths that begin with `prefix`.
    """
    with collecting_partitions(partitions):
        yield
    if not prefix:
        return
    for number, graph_def in enumerate(partitions):
        path = partition_file(prefix, number)
        write_graph("partitioned_graph_file_prefix", path, graph_def)
        device = next((node.device for node in graph_def.node if node.device), "no device")
        messages.notice(f"{path}: {len(graph_def.node)} operations on {device}")


def chrome_trace(planes: Iterable[XPlane], run_info: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a profile to Chrome's trace format: planes are processes, their lines are threads.

    `run_info` describes the run. Events without a duration are omitted, because they only show the
    management of thread pools.
    """
    planes = tuple(planes)
    origin = min((e.start for p in planes for _, line in p.lines for e in line), default=0)
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(planes):
        events.append(_name_event("process_name", process, 0, plane.name))
        for thread, (name, line) in enumerate(plane.lines):
            events.append(_name_event("thread_name", process, thread, name))
            for event in line:
                if event.duration:
                    events.append(
                        {
                            "ph": "X",
                            "name": event.name,
                            "pid": process,
                            "tid": thread,
                            "ts": (event.start - origin) * _MICROSECONDS,
                            "dur": event.duration * _MICROSECONDS,
                            "args": dict(event.stats),
                        }
                    )
    return {"displayTimeUnit": "ms", "otherData": dict(run_info), "traceEvents": events}


def _name_event(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
