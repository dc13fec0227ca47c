"""Standard output of a run, byte for byte as tf_cnn_benchmarks printed it.

Scripts parse these lines, so nothing else may go to standard output; everything
new goes to standard error through `cnnbench.base.text.progress`. tests/golden/ holds the captured
originals.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from cnnbench.base.stats.descriptive import Speed
from cnnbench.base.text.numbers import Duration
from cnnbench.base.text.terminal import LineWriter

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
