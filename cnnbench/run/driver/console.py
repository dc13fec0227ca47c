"""What a run prints, and the parts that every scenario uses.

Scripts parse these lines, so nothing else may go to standard output; everything
new goes to standard error through `cnnbench.base.terminal`. tests/golden/ holds the captured
originals.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from cnnbench.base.stats import Speed
from cnnbench.base.terminal import LineWriter, Messages, Progress
from cnnbench.base.text import Duration, exact, number, percent
from cnnbench.base.time_series import Shape, SteadyState, StepTimeLevel
from cnnbench.machine.watch import Watch
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.records.metric import SUMMARY, Summary
from cnnbench.records.run import RunRecord, run_steady_state
from cnnbench.run.runtime.activity import Activity
from cnnbench.run.runtime.turns import Turns

if TYPE_CHECKING:
    from cnnbench.run.driver.step_profile import StepProfiler


# Standard output of a run, byte for byte as tf_cnn_benchmarks printed it.

_RULE = "-" * 64
# Names of the two metrics of tf_cnn_benchmarks; others have their own names.
_TITLES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_RESULTS = {"top_1": "Accuracy @ 1", "top_5": "Accuracy @ 5"}


class DisplayInterval:
    """Steps after which a line of progress is due.

    Args:
      every: number of steps, or the time since the line before (at first, since this object was
        made) after which the next step prints one.
    """

    def __init__(self, every: int | Duration) -> None:
        self._every = every
        self._last = time.monotonic()

    def is_over(self, step: int) -> bool:
        """Whether a line is due after this step, counted from 1; the next interval then begins."""
        if not isinstance(self._every, Duration):
            return step % self._every == 0
        now = time.monotonic()
        is_over = now - self._last >= self._every.seconds
        self._last = now if is_over else self._last
        return is_over


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

    def lines(self, *lines: str) -> None:
        """Prints lines: the header, the name of a phase."""
        self._writer.lines(lines)

    def table_header(self, loss_name: str = "total_loss", metrics: Sequence[str] = ()) -> None:
        """Titles of the columns that `row` fills."""
        titles = [_TITLES.get(name, name) for name in metrics]
        self.lines("\t".join(["Step", "Img/sec", loss_name.replace("/", " "), *titles]))

    def row(self, step: int, speed: Speed, loss: float, metrics: Sequence[float] = ()) -> None:
        """One row of the table.

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
        """The total: the last lines of a successful run; a failed one does not print them.

        Runs that train and evaluate have none: one rate for both would mean nothing.
        """
        self.lines(_RULE, f"total images/sec: {images_per_sec:.2f}", _RULE)

    def evaluation_row(self, step: int, examples_per_sec: float) -> None:
        """Rate over the evaluation steps since the last such row."""
        self.lines(f"{step}\t{examples_per_sec:.1f} examples/sec")

    def evaluation_result(self, metrics: Mapping[str, float], examples: int) -> None:
        """Metrics over all examples of one evaluation; accuracies are from 0 to 1."""
        values = [f"{_RESULTS.get(name, name)} = {value:.4f}" for name, value in metrics.items()]
        self.lines(" ".join([*values, f"[{examples} examples]"]))


# Parts of a run that every scenario uses; without TensorFlow.


@dataclass(frozen=True)
class ScenarioContext:
    """Parts that every scenario uses.

    Attributes:
      measurements: filled during the run.
      watch: entered before the timed loop and left after it.
      gone: returns workers that no longer answer, with the reasons; for runs that survive their
        loss.
      profiler: of the last steps of the warm-up.
      turns: turns of this process, where several processes step in turn.
      activity: what the loop is doing, for the watchdog.
    """

    plan: RunPlan
    console: Console
    messages: Messages
    progress: Progress
    measurements: Measurements
    watch: Watch
    gone: Callable[[], Mapping[str, str]] = dict
    profiler: StepProfiler | None = None
    turns: Turns = field(default_factory=Turns)
    activity: Activity = field(default_factory=Activity)


# Notices about the results of a run, printed on standard error at its end.


def steps_notice(plan: RunPlan) -> str | None:
    """The numbers of steps of a run that has very many, most of all in its silent warm-up."""
    warm_up, timed = plan.length.warm_up.most, plan.length.num_batches
    evaluated = plan.length.num_eval_batches * (len(plan.length.eval_steps) + 1) * plan.work.trains
    if warm_up <= 1000 and max(timed, evaluated) <= 1_000_000:
        return None
    return f"a long run: steps of the warm-up {warm_up}, timed {timed}, of evaluations {evaluated}"


def summary_lines(summary: Summary) -> list[str]:
    """The lines of the metrics that have one, as far as known."""
    lines = (metric.line(summary) for metric in SUMMARY.values() if metric.line is not None)
    return [*filter(None, lines)]


def input_lines(record: RunRecord) -> list[str]:
    """Throughput of the input pipeline alone, where it was measured."""
    if not record.input_stages:
        return []
    rates = {stage.name: stage.examples_per_sec for stage in record.input_stages}
    *parts, (_, whole) = rates.items()
    lines = [f"the input pipeline alone gives {number(whole)} images/s"]
    if parts:
        stages = ", ".join(f"{name} {number(rate)}" for name, rate in parts)
        lines.append(f"its stages, each with those before it, in images/s: {stages}")
    return lines


def skipped_lines(record: RunRecord) -> list[str]:
    """The first records that were skipped, and how many there are; empty without any."""
    skipped = record.skipped_records
    if skipped is None:
        return []
    rest = skipped.count - len(skipped.first)
    more = [f"skipped {rest} more records, {skipped.count} in all"] if rest > 0 else []
    return [*(f"skipped {line}" for line in skipped.first), *more]


def loss_scaling_lines(record: RunRecord) -> list[str]:
    """Skipped steps and changes of an automatic loss scale; empty without any."""
    scaling = record.loss_scaling
    if scaling is None:
        return []
    warmup = len(scaling.warmup_skipped_steps)
    skipped = warmup + len(scaling.skipped_steps)
    moved = f"the loss scale went from {exact(scaling.start)} to {exact(scaling.end)}"
    if not skipped:
        return [] if scaling.start == scaling.end else [moved]
    steps = len(record.warmup_step_seconds) + len(record.step_seconds)
    line = f"{skipped} of {steps} steps skipped for gradients that were not finite"
    if warmup:
        line += f" ({warmup} of them in the warm-up)"
    line += f"; {moved}"
    if scaling.end <= 1.0:
        line += ", its minimum: the range of fp16 is an unlikely cause"
    return [line]


def warm_up_warning(record: RunRecord) -> str | None:
    """A warning if --warmup=auto has reached its limit."""
    if record.warmup_status != "limit":
        return None
    return (
        f"step times were not steady after {len(record.warmup_step_seconds)} warm-up steps, the "
        "most that --max_warmup_batches allows; timing began nevertheless"
    )


def peak_warning(record: RunRecord) -> str | None:
    """A warning if the achieved FLOP rate exceeds the peak of the devices."""
    summary = record.summary()
    achieved, peak = summary.achieved_flops_per_sec, summary.peak_flops_per_sec
    if not achieved or not peak or achieved <= peak:
        return None
    source = record.measured.peak_flops_source or ""
    advice = (
        "it was measured while other programs used the machine; measure again on a quiet machine"
        if source.startswith("measured")
        else "--peak_flops would correct it"
    )
    share = percent(achieved / peak, 0)
    return f"MFU would be {share} and is left out: the peak ({source}) is too low; {advice}"


def steady_state_notice(record: RunRecord) -> tuple[str, bool] | None:
    """Text about the start of the steady state, and whether it is a warning.

    None where the series is too short to tell.
    """
    found = run_steady_state(record)
    if found.shape is Shape.TOO_SHORT or not record.step_seconds:
        return None
    if found.start is None:
        text = "step times reached no steady state"
        if len(found.levels) > 1:
            before, last = found.levels[-2:]
            place = _place(found, last.start)
            text += f": the last change, {_change(before, last)}, came at {place}"
        return f"{text}; a longer run or a quieter machine would give a clearer result", True
    unsteady = found.unsteady_timed_steps
    if not unsteady:
        where = _place(found, found.start)
        return f"step times are steady from {where} on", False
    return _late(record, found, unsteady), True


def _late(record: RunRecord, found: SteadyState, unsteady: int) -> str:
    assert found.start is not None
    text = (
        f"step times are steady only from {_place(found, found.start)} on, after "
        f"{unsteady} of {len(record.step_seconds)} timed steps"
    )
    earlier = [level for level in found.levels if level.stop <= found.start]
    if found.shape is Shape.SLOWDOWN and earlier:
        return f"{text}, and slower than before: {_change(earlier[-1], found.levels[-1])}"
    if record.warmup_status == "fixed":
        needed = found.warmup_steps + unsteady
        text += f"; --num_warmup_batches={needed} or --warmup=auto would leave them out"
    return text


def _place(found: SteadyState, index: int) -> str:
    if index < found.warmup_steps:
        return f"warm-up step {index + 1}"
    return f"step {index - found.warmup_steps + 1}"


def _change(before: StepTimeLevel, after: StepTimeLevel) -> str:
    return f"from {number(before.seconds * 1e3)} to {number(after.seconds * 1e3)} ms"
