"""The standard output of a run, byte for byte as tf_cnn_benchmarks prints it.

Scripts parse these lines, so standard output must contain nothing else. Other lines are written to
standard error with `cnnbench.base.terminal`. tests/golden/ contains recorded output of
tf_cnn_benchmarks.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from cnnbench.base.stats import Speed
from cnnbench.base.terminal import LineWriter
from cnnbench.base.values import Duration

_RULE = "-" * 64
# Names of two metrics as tf_cnn_benchmarks prints them. All other metrics are printed with their
# own names.
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

    def advance_if_due(self, step: int) -> bool:
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

    def print_titles(self, loss_name: str = "total_loss", metrics: Sequence[str] = ()) -> None:
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

    def print_footer(self, images_per_sec: float) -> None:
        """Prints the total images/sec, the last lines of a successful run.

        Runs that train and evaluate have no total, because one rate for both would have no meaning.
        """
        self.lines(_RULE, f"total images/sec: {images_per_sec:.2f}", _RULE)

    def print_evaluation_row(self, step: int, examples_per_sec: float) -> None:
        """Prints the rate of the evaluation steps since the previous evaluation row."""
        self.lines(f"{step}\t{examples_per_sec:.1f} examples/sec")

    def print_evaluation(self, metrics: Mapping[str, float], examples: int) -> None:
        """Prints the metrics of an evaluation over all its examples. Accuracies are from 0 to 1."""
        values = [f"{_RESULTS.get(name, name)} = {value:.4f}" for name, value in metrics.items()]
        self.lines(" ".join([*values, f"[{examples} examples]"]))
