"""Standard output of a run, byte for byte as tf_cnn_benchmarks printed it.

Scripts parse these lines, so nothing else may go to standard output; everything
new goes to standard error through `cnnbench.base.text.progress`. The functions make lines,
`Console` writes them. tests/golden/ holds the captured originals.
"""

from __future__ import annotations

import enum
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from cnnbench.base.stats.descriptive import Speed
from cnnbench.base.text.terminal import LineWriter
from cnnbench.records.target import Target

_RULE = "-" * 64
# What tf_cnn_benchmarks called the two metrics that it had; others go by their own names.
_TITLES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_RESULTS = {"top_1": "Accuracy @ 1", "top_5": "Accuracy @ 5"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderInfo:
    """Values of the header.

    Attributes:
      tensorflow_version: full version; major and minor are printed.
      model, dataset: names.
      synthetic: whether images are generated instead of read.
      mode: "training", "evaluation", "training + evaluation" or "forward only".
      global_batch: images per step of the whole job.
      per_device_batch: images per step of one device.
      num_batches: steps of the timed loop.
      num_epochs: epochs they make.
      devices: one per tower.
      data_format: "NHWC" or "NCHW".
      optimizer, variable_update: names.
      all_reduce: how gradients are reduced; None where that is not between towers.
      staged_vars: printed if true.
      single_session: whether one process drives the towers of several.
      sync: whether workers wait for one another in every step; None in a run of one process.
    """

    tensorflow_version: str
    model: str
    dataset: str
    synthetic: bool
    mode: str
    global_batch: int
    per_device_batch: int
    num_batches: int
    num_epochs: float
    devices: Sequence[str]
    data_format: str
    optimizer: str
    variable_update: str
    all_reduce: str | None = None
    staged_vars: bool = False
    single_session: bool = False
    sync: bool | None = None


class Phase(enum.Enum):
    """Lines that announce the phases of a run."""

    GENERATING_TRAINING = "Generating training model"
    GENERATING_EVALUATION = "Generating evaluation model"
    INITIALIZING = "Initializing graph"
    WARM_UP = "Running warm up"
    WARM_UP_DONE = "Done warm up"
    RESUMING = "Resuming training"
    DONE = "Done with training"


def header_lines(info: HeaderInfo) -> list[str]:
    """The header, from the TensorFlow version to the line of equals signs."""
    major, minor = info.tensorflow_version.split(".")[:2]
    dataset = f"{info.dataset} (synthetic)" if info.synthetic else info.dataset
    lines = [
        f"TensorFlow:  {major}.{minor}",
        f"Model:       {info.model}",
        f"Dataset:     {dataset}",
        f"Mode:        {info.mode}",
        f"SingleSess:  {info.single_session}",
        f"Batch size:  {info.global_batch} global",
        f"             {info.per_device_batch} per device",
        f"Num batches: {info.num_batches}",
        f"Num epochs:  {info.num_epochs:.2f}",
        f"Devices:     {list(info.devices)}",
        "NUMA bind:   False",
        f"Data format: {info.data_format}",
        f"Optimizer:   {info.optimizer}",
        f"Variables:   {info.variable_update}",
    ]
    if info.all_reduce is not None:
        lines.append(f"AllReduce:   {info.all_reduce}")
    if info.sync is not None:
        lines.append(f"Sync:        {info.sync}")
    if info.staged_vars:
        lines.append("Staged vars: True")
    return [*lines, "=========="]


def table_header_line(loss_name: str = "total_loss", metrics: Sequence[str] = ()) -> str:
    """Titles of the columns that `row_line` fills."""
    titles = [_TITLES.get(name, name) for name in metrics]
    return "\t".join(["Step", "Img/sec", loss_name.replace("/", " "), *titles])


def row_line(step: int, speed: Speed, loss: float, metrics: Sequence[float] = ()) -> str:
    """One row of the table: statistics since the end of warm-up, loss of this step.

    Args:
      speed: of all of them, images per second.
      loss: of this step; 0 in forward-only runs.
      metrics: of this step, accuracies from 0 to 1, where the table has such columns.
    """
    cells = [
        f"{step}",
        f"images/sec: {speed.mean:.1f} +/- {speed.uncertainty:.1f} (jitter = {speed.jitter:.1f})",
        f"{loss:.3f}",
    ]
    return "\t".join([*cells, *(f"{metric:.3f}" for metric in metrics)])


def footer_lines(images_per_sec: float) -> list[str]:
    """The total between two rules; the lower one ends a successful run."""
    return [_RULE, f"total images/sec: {images_per_sec:.2f}", _RULE]


def evaluation_result_line(metrics: Mapping[str, float], examples: int) -> str:
    """Metrics over all examples of one evaluation; accuracies are from 0 to 1."""
    values = [f"{_RESULTS.get(name, name)} = {value:.4f}" for name, value in metrics.items()]
    return " ".join([*values, f"[{examples} examples]"])


class Console:
    """Writes a run's standard output, each line flushed.

    A closed pipe (`| head`) ends the output, not the run, which still writes its record and
    checkpoint.
    """

    def __init__(
        self, stream: TextIO | None = None, before_line: Callable[[], None] | None = None
    ) -> None:
        """Writes to a stream.

        Args:
          stream: text stream; standard output if None.
          before_line: called before each write; clears a progress bar.
        """
        self._writer = LineWriter(sys.stdout if stream is None else stream, before_line)

    @classmethod
    def silent(cls) -> Console:
        """A console that prints nothing."""
        return cls(io.StringIO())

    def header(self, info: HeaderInfo) -> None:
        """The header; see `header_lines`."""
        self._writer.lines(header_lines(info))

    def phase(self, phase: Phase) -> None:
        """Prints the line of a phase."""
        self._writer.lines([phase.value])

    def table_header(self, loss_name: str = "total_loss", metrics: Sequence[str] = ()) -> None:
        """Column titles; see `table_header_line`."""
        self._writer.lines([table_header_line(loss_name, metrics)])

    def row(self, step: int, speed: Speed, loss: float, metrics: Sequence[float] = ()) -> None:
        """One row of the table; see `row_line`."""
        self._writer.lines([row_line(step, speed, loss, metrics)])

    def footer(self, images_per_sec: float) -> None:
        """The total: the last lines of a successful run; a failed one does not print them.

        Runs that train and evaluate have none: one rate for both would mean nothing.
        """
        self._writer.lines(footer_lines(images_per_sec))

    def evaluation_row(self, step: int, examples_per_sec: float) -> None:
        """Rate over the evaluation steps since the last such row."""
        self._writer.lines([f"{step}\t{examples_per_sec:.1f} examples/sec"])

    def evaluation_result(self, metrics: Mapping[str, float], examples: int) -> None:
        """Result of one evaluation; see `evaluation_result_line`."""
        self._writer.lines([evaluation_result_line(metrics, examples)])

    def running_evaluation(self, global_step: int) -> None:
        """Training pauses for an evaluation."""
        self._writer.lines([f"Running evaluation at global_step {global_step}"])

    def running_final_evaluation(self, global_step: int) -> None:
        """Training is over and the last evaluation begins."""
        self._writer.lines([f"Running final evaluation at global_step {global_step}"])

    def stopping(self, target: Target, called: str) -> None:
        """Training ends early: a metric, under the name it is called by, has reached its target."""
        bound = "at most" if target.lower_is_better else "at least"
        self._writer.lines([f"Stopping, as eval {called} {bound} {target.value} was reached"])

    def checkpoint_loaded(self, path: str) -> None:
        """An evaluation uses this checkpoint; a resumed training says nothing here."""
        self._writer.lines([f"Successfully loaded model from {path}."])

    def checkpoint_not_found(self, directory: str) -> None:
        """There is nothing to evaluate."""
        self._writer.lines([f"Checkpoint not found in {directory}"])
