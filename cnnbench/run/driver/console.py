"""The text that a run prints: log, notices and warnings.

Scripts parse these lines, so standard output must contain nothing else. Other lines are written to
standard error with `cnnbench.base.terminal`. tests/golden/ contains recorded output of
tf_cnn_benchmarks.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from cnnbench.base.stats import Speed
from cnnbench.base.terminal import LineWriter, MessageWriter, ProgressLine
from cnnbench.base.text import (
    Duration,
    exact_number,
    format_interval,
    milliseconds,
    number,
    percent,
)
from cnnbench.base.time_series import SeriesShape, SteadyState, StepTimeLevel
from cnnbench.records.metric import SUMMARY
from cnnbench.records.run import (
    LossScaling,
    RunRecord,
    find_steady_state_of_run,
    single_speed_text,
)

if TYPE_CHECKING:
    from cnnbench.records.result_files import ResultFiles


# The standard output of a run, byte for byte as tf_cnn_benchmarks prints it.

_RULE = "-" * 64
# Printed names of two metrics, as in tf_cnn_benchmarks. Other metrics keep their own names.
_TITLES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_RESULTS = {"top_1": "Accuracy @ 1", "top_5": "Accuracy @ 5"}


class DisplayInterval:
    """Determines after which steps a line of progress is printed.

    Args:
      every: number of steps between two lines, or a duration after which the next step prints a
        line. The duration begins with the previous line, or at first with the creation of this
        object.
    """

    def __init__(self, every: int | Duration) -> None:
        self._every = every
        self._last = time.monotonic()
        self._step = 0

    def is_display_due(self, step: int) -> bool:
        """Returns whether to print a line after this step (from 1), and begins the next interval.

        If the interval is a number of steps, a line is printed if a multiple of this number is
        among the steps since the previous call.
        """
        if not isinstance(self._every, Duration):
            before, self._step = self._step, step
            return step // self._every > before // self._every
        now = time.monotonic()
        is_due = now - self._last >= self._every.seconds
        self._last = now if is_due else self._last
        return is_due


class Console:
    """Writes a run's standard output, and flushes each line.

    If the pipe is closed (`| head`), the output ends, but the run continues and writes its record
    and checkpoint.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Creates a console that writes to a stream; to standard output if `stream` is None."""
        self._writer = LineWriter(sys.stdout if stream is None else stream)

    @classmethod
    def silent(cls) -> Console:
        """A console that prints nothing."""
        return cls(io.StringIO())

    def lines(self, *lines: str) -> None:
        """Prints lines, such as the header of a run."""
        self._writer.write_lines(lines)

    def table_header(self, loss_name: str = "total_loss", metrics: Sequence[str] = ()) -> None:
        """Prints the titles of the table's columns. `row` prints the rows."""
        titles = [_TITLES.get(name, name) for name in metrics]
        self.lines("\t".join(["Step", "Img/sec", loss_name.replace("/", " "), *titles]))

    def row(self, step: int, speed: Speed, loss: float, metrics: Sequence[float] = ()) -> None:
        """Prints one row of the table.

        Args:
          speed: speed of all timed steps so far, in images per second.
          loss: loss of this step; 0 in forward-only runs.
          metrics: metrics of this step (accuracies from 0 to 1), if the table has columns for them.
        """
        mean, uncertainty, jitter = f"{speed.mean:.1f}", speed.uncertainty, speed.jitter
        rate = f"images/sec: {mean} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"
        values = "\t".join(f"{value:.3f}" for value in (loss, *metrics))
        self.lines(f"{step}\t{rate}\t{values}")

    def footer(self, images_per_sec: float) -> None:
        """Prints the total images/sec, which are the last lines of a successful run.

        Runs that train and evaluate have no total, because one rate for both would have no meaning.
        """
        self.lines(_RULE, f"total images/sec: {images_per_sec:.2f}", _RULE)

    def evaluation_row(self, step: int, examples_per_sec: float) -> None:
        """Prints the rate of the evaluation steps since the previous evaluation row."""
        self.lines(f"{step}\t{examples_per_sec:.1f} examples/sec")

    def evaluation_result(self, metrics: Mapping[str, float], examples: int) -> None:
        """Prints the metrics of an evaluation over all its examples. Accuracies are from 0 to 1."""
        values = [f"{_RESULTS.get(name, name)} = {value:.4f}" for name, value in metrics.items()]
        self.lines(" ".join([*values, f"[{examples} examples]"]))


class RunOutput(NamedTuple):
    """The outputs of a run: its log, messages, progress line, and result files."""

    console: Console
    messages: MessageWriter
    progress_line: ProgressLine
    files: ResultFiles


# Notices about the results of a run, which are printed on standard error at its end.


def print_notices(record: RunRecord, messages: MessageWriter) -> None:
    """Prints notices and warnings about the results of a run that has ended."""
    for text, warning in ended_run_notices(record):
        if warning:
            messages.warning(text, warning)
        else:
            messages.notice(text)


def ended_run_notices(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yields texts about the results of a run that has ended, each with the name of its warning.

    The name is "" if a text is only a notice. For a failed run, the texts are only about its loss
    scale and its skipped records.
    """
    if record.loss_scaling is not None:
        yield from ((line, "") for line in _loss_scaling_lines(record, record.loss_scaling))
    if record.skipped_records is not None:
        skipped = record.skipped_records
        yield from ((f"skipped {line}", "examples") for line in skipped.first)
        rest = skipped.count - len(skipped.first)
        if rest > 0:
            yield f"skipped {rest} more records, {skipped.count} in all", "examples"
    if record.status != "ok":
        return
    requested = record.batch and record.batch.requested_per_device
    if record.batch and requested:
        used = record.batch.per_device
        fits = f"{used} images per device fit" if used > 1 else "1 image per device fits"
        yield f"--find_batch_size: {fits} into memory, {requested} were requested", ""
    summary = record.summary()
    for metric in SUMMARY.values():
        line = None if metric.line is None else metric.line(summary)
        if line:
            yield line, ""
    if record.input_stages:
        rates = {stage.name: stage.examples_per_sec for stage in record.input_stages}
        *parts, (_, pipeline_rate) = rates.items()
        yield f"the input pipeline without training reads {number(pipeline_rate)} images/s", ""
        if parts:
            stages = ", ".join(f"{name} {number(rate)}" for name, rate in parts)
            yield f"images/s of the pipeline up to and including each stage: {stages}", ""
    if record.warmup_status == "limit":
        steps = record.warmup_steps
        text = f"step times were not steady after {steps} warm-up steps, the most that "
        yield text + "--max_warmup_batches allows; timing began nevertheless", "steady"
    achieved, peak = summary.achieved_flops_per_sec, summary.peak_flops_per_sec
    if achieved and peak and achieved > peak:
        source = record.measured.peak_flops_source or ""
        advice = "--peak_flops would correct it"
        if source.startswith("measured"):
            advice = "it was measured while other programs used the machine; measure again on a "
            advice += "quiet machine"
        text = f"MFU would be {percent(achieved / peak, 0)} and is left out: the peak ({source}) "
        yield f"{text}is too low; {advice}", "peak"
    if record.step_seconds:
        yield f"the speed is of {single_speed_text(record.cluster is not None)}", ""
    steady = find_steady_state_of_run(record)
    if steady.shape is not SeriesShape.TOO_SHORT and record.step_seconds:
        yield _steady_state_notice(record, steady)


def _loss_scaling_lines(record: RunRecord, scaling: LossScaling) -> list[str]:
    """Returns lines about skipped steps and changes of an automatic loss scale; may be empty."""
    warmup = len(scaling.warmup_skipped_steps)
    skipped = warmup + len(scaling.skipped_steps)
    moved = f"the loss scale went from {exact_number(scaling.start)} to {exact_number(scaling.end)}"
    if not skipped:
        return [] if scaling.start == scaling.end else [moved]
    steps = record.warmup_steps + record.steps
    line = f"{skipped} of {steps} steps skipped for gradients that were not finite"
    if warmup:
        line += f" ({warmup} of them in the warm-up)"
    line += f"; {moved}"
    if scaling.end <= 1.0:
        line += ", its minimum: the range of fp16 is an unlikely cause"
    return [line]


def _steady_state_notice(record: RunRecord, steady: SteadyState) -> tuple[str, str]:
    """Returns a text about the first steady step, and the name of its warning ("" for a notice)."""
    if steady.start is None:
        text = "step times reached no steady state"
        if len(steady.levels) > 1:
            before, last = steady.levels[-2:]
            place = _step_name(record, steady, last.start)
            text += f": the last change, {_step_time_change_text(before, last)}, came at {place}"
        return f"{text}; a longer run or a quieter machine would give a clearer result", "steady"
    if not steady.unsteady_timed_steps:
        where = _step_name(record, steady, steady.start)
        return f"step times are steady from {where} on", ""
    unsteady = steady.unsteady_timed_steps * record.steps_per_execution
    text = (
        f"step times are steady only from {_step_name(record, steady, steady.start)} on, after "
        f"{unsteady} of {record.steps} timed steps"
    )
    earlier = [level for level in steady.levels if level.stop <= steady.start]
    if steady.shape is SeriesShape.SLOWDOWN and earlier:
        text += (
            f", and slower than before: {_step_time_change_text(earlier[-1], steady.levels[-1])}"
        )
    elif record.warmup_status == "fixed":
        needed = record.warmup_steps + unsteady
        text += f"; --num_warmup_batches={needed} or --warmup=auto would leave them out"
    return text, "steady"


def _step_name(record: RunRecord, steady: SteadyState, index: int) -> str:
    per_execution = record.steps_per_execution
    if index < steady.warmup_steps:
        return f"warm-up step {index * per_execution + 1}"
    return f"step {(index - steady.warmup_steps) * per_execution + 1}"


def _step_time_change_text(before: StepTimeLevel, after: StepTimeLevel) -> str:
    return f"from {format_interval(before.seconds, after.seconds, milliseconds)} ms"
