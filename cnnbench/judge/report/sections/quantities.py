"""Sections with one quantity: a row per configuration, a chart per network and data set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.document import (
    Content,
    Row,
    TableCell,
    Text,
    interval,
    numeric,
    table,
)
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import first_few, integer, percent
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import BOUNDS
from cnnbench.judge.metrics.speed import median_step_text
from cnnbench.judge.report.results import (
    FEWEST,
    INTERVAL,
    MOST_DRAWN,
    Configured,
    ProcessValues,
    ReportSubject,
    by_family,
    newest,
    newest_text,
    told_apart,
)
from cnnbench.records.run import RunRecord

_MIB = 2**20
_MOST_DOTS = 40
"""Most processes that a row of a chart shows."""
_MOST_NAMED = 5
_exact = partial(percent, digits=2)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A section about one value per run.

    Attributes:
      text: its first paragraph.
      values: values of a configuration, shown in the charts.
      chart: name of the quantity in titles of charts.
      row: further cells of a configuration's row in the table.
      known: whether a configuration has content for the section; by default, whether it has values.
      limit, limit_label: a value marked in the charts.
      remarks: after the first paragraph.
      section: key of the section; a second table has the medians of the metrics that name it.
    """

    text: str
    values: Callable[[Configured], ProcessValues]
    chart: str
    axis: Axis
    row: Callable[[Configured], Row]
    known: Callable[[Configured], bool] | None = None
    limit: float | None = None
    limit_label: str = ""
    remarks: Callable[[Sequence[Configured]], Iterable[Text]] = lambda known: ()
    section: str

    def contents(self, results: ReportSubject) -> Iterable[Content]:
        """Remarks, a chart for each network and data set with values, and the table."""
        known = [one for one in results.configured if (self.known or self._has_values)(one)]
        if not known:
            return
        yield self.text
        yield from self.remarks(known)
        drawn = by_family(filter(self._has_values, known))
        yield [self._chart(*one) for one in islice(drawn.items(), MOST_DRAWN)]
        yield table({"configuration": one.name, **self.row(one)} for one in known)
        if further := [metric for metric in BOUNDS.values() if metric.section == self.section]:
            yield table(
                {
                    "configuration": one.name,
                    **{f"median {metric.title}": _median(one, metric.name) for metric in further},
                }
                for one in known
            )

    def _has_values(self, one: Configured) -> bool:
        return bool(self.values(one).values)

    def _chart(self, family: str, members: Sequence[Configured]) -> Rows:
        """A row per configuration; shared parts of their names are in the title."""
        total = len(members)
        members = newest(members, MOST_DRAWN)
        formats: dict[str, Callable[[float | None], str]]
        formats = {"percent": percent, "bytes": numbers.binary, "number": numbers.number}
        shared, labels = told_apart(members)
        rows = tuple(
            process_row(self.values(one), label, formats[self.axis.format])
            for one, label in zip(members, labels, strict=True)
        )
        return Rows(
            title=f"{shared or family}: {self.chart}{newest_text(len(members), total)}",
            x=self.axis,
            rows=rows,
            limit=self.limit,
            limit_label=self.limit_label,
            note=process_key(rows),
        )


def process_key(rows: Sequence[DistributionRow]) -> str:
    """The legend of rows made by `process_row`."""
    band = f"its {INTERVAL} (from {FEWEST} processes on)"
    return key_of(rows, dot="a process", centre="the median", band=band)


def process_row(
    found: ProcessValues, label: str, text: Callable[[float | None], str], unit: str = ""
) -> DistributionRow:
    """A row of a chart: a dot per process, the median and its interval.

    `unit` stands behind the value in the hint of each dot.
    """
    low, high = found.interval or (None, None)
    processes = [*enumerate(found.values, start=1)]
    if len(processes) > _MOST_DOTS:  # the smallest, the largest, and some between them
        processes.sort(key=lambda one: one[1])
        step = (len(processes) - 1) / (_MOST_DOTS - 1)
        processes = sorted(processes[round(step * place)] for place in range(_MOST_DOTS))
    return DistributionRow(
        label=label,
        values=tuple(
            (value, f"{label}, process {index}: {text(value)}{unit}") for index, value in processes
        ),
        centre=found.median,
        low=low,
        high=high,
        text=text(found.median),
    )


def _median(
    one: Configured,
    value: str | Callable[[RunRecord], float | None],
    text: Callable[[float], str] = numbers.number,
    scale: float = 1.0,
) -> TableCell:
    return numeric(one.sample(value).median, text, scale=scale)


def _throughput(one: Configured) -> Row:
    mode = "" if one.work == "training" else one.work
    placed = (run.placement for run in one.good if run.placement is not None)
    return {
        "median images/sec": _median(one, "throughput"),
        INTERVAL: interval(one.throughput.interval),
        "range": interval(one.throughput.range),
        "spread": numeric(one.throughput.spread, percent),
        "mode": mode or next((place.variable_update for place in placed), ""),
        "devices": numeric(one.devices or None, f"{one.devices} {one.device}"),
        "images per step": _median(
            one, lambda run: run.batch.global_ if run.batch else None, integer
        ),
        "median step, ms": _median(one, "step_seconds", scale=1000),
        "waits for input": _median(one, "input_wait_fraction", percent),
        "input alone, mean images/sec": _median(one, "input_images_per_sec"),
        "processes": numeric(len(one.good), integer),
    }


def _pauses(known: Sequence[Configured]) -> Iterable[Text]:
    """What median steps hide, a remark per configuration."""
    for one in known:
        if text := median_step_text(one.good, Policy.threshold):
            yield Text(f"{one.name}: {text}.", "unsure")


THROUGHPUT = Quantity(
    section="throughput",
    text="One value per process: images over the time of the timed steps, without disturbances "
    "that few of the processes have; for evaluating runs of their evaluations. Images of all "
    "devices of the job together. The interval "
    "is of the median over processes, and needs six of them; the range is from the slowest "
    "process to the fastest, the spread its width as a share of the median.",
    values=lambda one: one.throughput,
    chart="throughput",
    axis=Axis(label="images/sec over the timed steps", zero=True, better=HIGHER),
    row=_throughput,
    remarks=_pauses,
)


# Use of the hardware


def _doubtful_peaks(known: Sequence[Configured]) -> Iterable[Text]:
    if not any(one.sample(one.peak).values for one in known):
        yield Text("No run has the peak of its devices; --peak_flops sets it.", "unsure")
    runs = ((one.peak(run), run) for one in known for run in one.good)
    if any((run.summary().achieved_flops_per_sec or 0.0) > peak for peak, run in runs if peak):
        message = "Shares above 100 % are left out: all peaks of a machine were measured while it "
        yield Text(f"{message}was busy, or --peak_flops is too low.", "unsure")


def _hardware(one: Configured) -> Row:
    return {
        "MFU": _median(one, one.mfu, percent),
        "achieved, GFLOP/s": _median(one, "achieved_flops_per_sec", scale=1e-9),
        "peak, GFLOP/s": _median(one, one.peak, scale=1e-9),
        "GFLOP per image": _median(one, RunRecord.flops_per_image, scale=1e-9),
        "parameters": _median(
            one, lambda run: run.model.parameters if run.model else None, integer
        ),
        "CPU time per step, ms": _median(one, "cpu_time", scale=1000),
        "images per CPU second": _median(one, "images_per_cpu_second"),
        "busy CPUs": _median(one, "busy_cpus"),
        "joules per image": _median(one, "joules_per_image"),
        "source of the peak": TableCell(one.peak_source, kinds="prose"),
    }


HARDWARE = Quantity(
    section="mfu",
    text="Model FLOP/s utilisation (MFU): two FLOPs per multiply-add of convolutions and affine "
    "layers that training an image needs (inference: the forward pass), times images/sec at "
    "the mean step, over the peak of all devices of the job. Where processes measured the peak, it "
    "is the highest on that machine in that number format: one for all of them. Energy is that of "
    "processors and GPUs over the timed loop, where counters can be read. CPU time is that of the "
    "recording process, all its threads. Medians over processes.",
    values=lambda one: one.sample(one.mfu),
    chart="share of the peak",
    axis=Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER),
    known=lambda one: bool(one.sample("achieved_flops_per_sec").values),
    limit=1.0,
    limit_label="limit: the peak of all devices",
    remarks=_doubtful_peaks,
    row=_hardware,
)


# Memory


def _mebibytes(size: float) -> str:
    return numbers.number(size / _MIB)


def _memory(one: Configured) -> Row:
    peaks = one.sample("peak_memory_bytes")
    return {
        "median peak memory, MiB": numeric(peaks.median, _mebibytes),
        "range, MiB": interval(peaks.range, _mebibytes),
        "of": "one device" if one.device == "gpu" else "the process",
        "processes": numeric(len(peaks.values), integer),
    }


MEMORY = Quantity(
    section="memory",
    text="Peak memory: of one device on GPUs, without what TensorFlow reserves in advance; of the "
    "whole process on a CPU. Medians over processes.",
    values=lambda one: one.sample("peak_memory_bytes"),
    chart="peak memory",
    axis=Axis(label="peak memory", format="bytes", zero=True, better=LOWER),
    row=_memory,
)


# Accuracy and losses


def _accuracy(one: Configured) -> Row:
    broken = sum(not all(map(math.isfinite, record.losses)) for record in one.good)
    text = f"not finite in {broken} of {len(one.good)}" if broken else ""
    return {
        "top-1": _median(one, "top_1", _exact),
        "range": interval(one.sample("top_1").range, _exact),
        "top-5": _median(one, "top_5", _exact),
        "median evaluation images/sec": _median(
            one, lambda run: run.evaluations[-1].images_per_sec if run.evaluations else None
        ),
        "first loss": _median(one, lambda run: None if run.last_loss is None else run.losses[0]),
        "last loss": _median(one, "final_loss"),
        "losses": TableCell(text, tone="bad" if broken else ""),
    }


ACCURACY = Quantity(
    section="accuracy",
    text="Accuracy is that of the last evaluation, losses those of the first and last timed step; "
    "medians over processes. Losses on synthetic images only show that training works at all.",
    values=lambda one: one.sample("top_1"),
    chart="top-1 accuracy",
    axis=Axis(label="top-1 of the last evaluation", format="percent", zero=True, better=HIGHER),
    known=lambda one: (
        bool(one.sample("top_1").values) or any(run.last_loss is not None for run in one.good)
    ),
    row=_accuracy,
)


# Start-up and warm-up


def _is_unsteady(one: Configured) -> bool:
    return any(state.unsteady_timed_steps != 0 for state in one.steady_states)


def _warmup(one: Configured) -> Row:
    counts = sorted({len(record.warmup_step_seconds) for record in one.good})
    starts = [
        max(1, state.start - state.warmup_steps + 1)
        for state in one.steady_states
        if state.start is not None
    ]
    ends = dict.fromkeys((min(starts), max(starts))) if starts else ()
    shapes = Counter(state.shape.value for state in one.steady_states)
    order = ", ".join(f"{count} {shape}" for shape, count in shapes.most_common())
    tone = "unsure" if _is_unsteady(one) else ""
    return {
        "start-up, s": _median(one, "startup_seconds"),
        "import, s": _median(one, lambda run: run.startup_seconds.import_),
        "build, s": _median(one, lambda run: run.startup_seconds.build),
        "first step, s": _median(one, lambda run: run.startup_seconds.first_step),
        "warm-up steps": numeric(counts[-1], " or ".join(map(str, counts))),
        "steady from timed step": numeric(max(ends, default=None), " to ".join(map(str, ends))),
        "steps in order": TableCell(order or "too few steps to tell", tone=tone),
    }


def _unsteady(known: Sequence[Configured]) -> Iterable[Text]:
    names = [one.name for one in known if _is_unsteady(one)]
    if names:
        message = "Not steady, or not from the first timed step on, in at least one process: "
        message += first_few(names, _MOST_NAMED)
        advice = "More --num_warmup_batches or a quieter machine would help."
        yield Text(f"{message}. {advice}", "unsure")


WARMUP = Quantity(
    section="warmup",
    text="Start-up is the import of TensorFlow, the building of the run and its very first step, "
    "medians over processes. Warm-up and timed steps together are tested for a steady state: "
    "1 means that all timed steps were steady.",
    values=lambda one: one.sample("startup_seconds"),
    chart="start-up",
    axis=Axis(label="seconds to the end of the first step", zero=True, better=LOWER),
    known=lambda one: bool(one.sample("startup_seconds").values or one.steady_states),
    remarks=_unsteady,
    row=_warmup,
)
