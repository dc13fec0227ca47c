"""What a record says about the file of another program from which it was imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cnnbench.records.codec import OPTIONAL, to_floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedSpeed:
    """A row of the table of speeds that another program printed, as read from its log.

    Attributes:
      step: number of the timed step.
      images_per_sec: the printed speed. tf_cnn_benchmarks prints the mean speed of the timed steps
        so far, Horovod the speed of one iteration on one device.
      uncertainty, jitter: the printed values, in images per second; None if not printed.
      loss: loss of the step; None if not printed.
    """

    step: int
    images_per_sec: float
    uncertainty: float | None = None
    jitter: float | None = None
    loss: float | None = None


BENCHMARK_SCORE = "benchmark_score"


BENCHMARKS: Mapping[str, str] = {
    "benchmark_seconds": "s",
    "benchmark_bytes": "bytes",
    "benchmark_number": "number",
    BENCHMARK_SCORE: "number",
}
"""Kinds of imported measurements that are not runs of networks, with the units of their values. For
`BENCHMARK_SCORE`, larger values are better.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result file of another program from which `cnnbench import` created a record.

    Attributes:
      program: program that wrote the file.
      kind: kind of the measurement: "run", or a key of `BENCHMARKS`.
      file: name of the file, without its folder.
      sha256: digest of the file's content.
      part: number of the process in the file, from 1.
      values: values in the file, by name of the metric. All other metrics are unknown.
      printed: rows of the table of speeds in the file.
      unknown: names of flags, properties and measurements that the program does not write.
      skipped_lines: numbers of the lines that were not understood, from 1.
    """

    program: str
    kind: str = field(default="run", metadata=OPTIONAL)
    file: str
    sha256: str
    part: int = 1
    values: Mapping[str, float] = field(default_factory=dict)
    printed: tuple[PrintedSpeed, ...] = ()
    unknown: tuple[str, ...] = ()
    skipped_lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", to_floats("imported.values", self.values))
        if self.kind not in ("run", *BENCHMARKS):
            kinds = ", ".join(("run", *BENCHMARKS))
            raise ValueError(f"imported.kind: {self.kind!r} is none of {kinds}")
