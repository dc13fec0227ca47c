"""Sections of a report about one quantity each, such as throughput or memory: a table with a row
per configuration, and charts.

The last section has a table of the fastest configuration of each network, compared with measured
limits.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, RowChart, legend_text
from cnnbench.base.document import (
    Content,
    Paragraph,
    Row,
    TableCell,
    counted_remarks,
    interval_cell,
    make_table,
    numeric_cell,
    prepend_docstring,
    quantity_cell,
)
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import alternatives, first_few, integer, number, percent
from cnnbench.judge.compare.median_step import median_step_text
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.report.results import (
    MOST_DRAWN,
    ReportSubject,
    RunGroup,
    interval_cells,
    newest_groups,
    peak_flops_per_sec,
    shown_count_text,
    split_names,
)
from cnnbench.records.metric import BOUNDS
from cnnbench.records.run import RunRecord

_MOST_DOTS = 40
"""Maximum number of processes with a dot in a row of a chart."""
_MOST_NAMED = 5
_exact = functools.partial(percent, digits=2)


@dataclass(frozen=True, kw_only=True)
class QuantitySection:
    """A report section with one value per run. An instance decorates the function that returns the
    table cells for a configuration.

    The docstring of the function is the first paragraph of the section. A second table contains the
    medians of the metrics whose declarations contain the name of the function as their section.

    Attributes:
      values: function that returns the values of a configuration, which the charts show.
      chart: name of the quantity in titles of charts.
      known: whether a configuration has content for the section; by default, whether it has values.
      limit: a value that the charts mark, and its name.
      remarks: function that yields remarks, which follow the first paragraph, about the
        configurations with content.
    """

    values: Callable[[RunGroup], ValuesByProcess]
    chart: str
    axis: Axis
    known: Callable[[RunGroup], bool] | None = None
    limit: tuple[float, str] | None = None
    remarks: Callable[[Sequence[RunGroup]], Iterable[Content]] = lambda known: ()

    def __call__(
        self, row: Callable[[RunGroup], Row]
    ) -> Callable[[ReportSubject], Iterable[Content]]:
        """Returns the function that yields the section: remarks, a chart for each network and data
        set, and the tables.
        """

        @functools.wraps(row)
        def contents(results: ReportSubject) -> Iterable[Content]:
            valued = {group for group in results.configured if self.values(group).values}
            known = [
                group
                for group in results.configured
                if (group in valued if self.known is None else self.known(group))
            ]
            further = [metric for metric in BOUNDS.values() if metric.section == row.__name__]
            yield from self.remarks(known) if known else ()
            drawn = group_by(filter(valued.__contains__, known), lambda group: group.workload)
            yield [self._chart(*item) for item in islice(drawn.items(), MOST_DRAWN)]
            yield make_table({"configuration": group.name, **row(group)} for group in known)
            yield make_table(
                {
                    "configuration": group.name,
                    **{
                        f"median {metric.title}": _median_cell(group, metric.name)
                        for metric in further
                    },
                }
                for group in known
                if further
            )

        return prepend_docstring(contents)

    def _chart(self, workload: str, members: Sequence[RunGroup]) -> RowChart:
        """Returns a chart with a row for each configuration. The title contains the parts that the
        names of the configurations have in common.
        """
        shown = newest_groups(members, MOST_DRAWN)
        shared, labels = split_names(shown)
        return process_chart(
            f"{shared or workload}: {self.chart}{shown_count_text(len(shown), len(members))}",
            self.axis,
            zip(labels, map(self.values, shown), strict=True),
            limit=self.limit,
        )


def process_chart(
    title: str,
    axis: Axis,
    values: Iterable[tuple[str, ValuesByProcess]],
    unit: str = "",
    **layout: Any,
) -> RowChart:
    """Returns a chart with a row for each label that has values: a dot for each process, the median
    and its interval.

    `unit` follows the value in the hover text of each dot. `layout` contains further attributes of
    `RowChart`.
    """
    rows = tuple(
        _distribution_row(label, values_of_row, axis, unit)
        for label, values_of_row in values
        if values_of_row.values
    )
    band = f"its {ValuesByProcess.INTERVAL} (from {ValuesByProcess.FEWEST} processes on)"
    note = legend_text(rows, dot="a process", centre="the median", band=band)
    return RowChart(title=title, x=axis, rows=rows, note=note, **layout)


def _distribution_row(
    label: str, of_processes: ValuesByProcess, axis: Axis, unit: str
) -> DistributionRow:
    low, high = of_processes.interval or (None, None)

    def hint(number: int, value: float) -> str:
        return f"{label}, process {number}: {axis.format_value(value)}{unit}"

    return DistributionRow(
        label=label,
        values=dots_of(of_processes.values, hint),
        centre=of_processes.median,
        low=low,
        high=high,
        text=axis.format_value(of_processes.median),
    )


def dots_of(
    values: Sequence[float], hint: Callable[[int, float], str]
) -> tuple[tuple[float, str], ...]:
    """Returns the dots of a row with their hints, which `hint` makes from the number of a value,
    from 1, and the value. If there are more values than dots, the dots are the smallest, the
    largest, and some in between.
    """
    numbered = [*enumerate(values, start=1)]
    if len(numbered) > _MOST_DOTS:
        numbered.sort(key=lambda item: item[1])
        step = (len(numbered) - 1) / (_MOST_DOTS - 1)
        numbered = sorted(numbered[round(step * place)] for place in range(_MOST_DOTS))
    return tuple((value, hint(number, value)) for number, value in numbered)


def _median_cell(
    group: RunGroup,
    value: str | Callable[[RunRecord], float | None],
    text: Callable[[float], str] = number,
    scale: float = 1.0,
) -> TableCell:
    median = group.process_values(value).median
    return numeric_cell(median, text, scale=scale, why="no process recorded it")


def _slow_remarks(known: Sequence[RunGroup]) -> Iterable[Content]:
    """Yields remarks on configurations with slow steps that the median step time does not show."""
    texts = ((group.name, median_step_text(group.successful, Policy.threshold)) for group in known)
    slow = [f"{name}: {text}." for name, text in texts if text]
    return counted_remarks(slow, "configurations with slow steps", "unsure")


def _requested_images(run: RunRecord) -> int | None:
    """Returns the number of images per step that the user requested with --find_batch_size; None if
    the flag was not used.
    """
    batch = run.batch
    if batch is None or batch.requested_per_device is None:
        return None
    return batch.global_ * batch.requested_per_device // batch.per_device


@QuantitySection(
    values=lambda group: group.throughput,
    chart="throughput",
    axis=Axis(label="images/sec over the timed steps", zero=True, better=HIGHER),
    remarks=_slow_remarks,
)
def throughput(group: RunGroup) -> Row:
    """Throughput has one value per process: images divided by the time of the timed steps, after
    rare disturbances are removed. For evaluation runs, it is the speed of the evaluations. The
    images of all devices of the job are counted. The interval is a confidence interval of the
    median over processes and needs six processes. The range goes from the slowest to the fastest
    process. The spread is the width of the range as a share of the median.
    """
    mode = "" if group.work_kind == "training" else group.work_kind
    placed = (run.placement for run in group.successful if run.placement is not None)
    return {
        "median images/sec": _median_cell(group, "throughput"),
        **interval_cells(group.throughput),
        "spread": numeric_cell(group.throughput.relative_range, percent),
        "mode": mode or next((place.variable_update for place in placed), ""),
        "devices": numeric_cell(
            group.device_count or None, f"{group.device_count} {group.device_kind}"
        ),
        "images per step": _median_cell(
            group, lambda run: run.batch.global_ if run.batch else None, integer
        ),
        "images per step asked for": _median_cell(group, _requested_images, integer),
        "median step, ms": _median_cell(group, "step_seconds", scale=1000),
        "waits for input": _median_cell(group, "input_wait_fraction", percent),
        "input without training, mean images/sec": _median_cell(group, "input_images_per_sec"),
        "processes": numeric_cell(len(group.successful)),
    }


def _peak_remarks(known: Sequence[RunGroup]) -> Iterable[Paragraph]:
    if not any(group.process_values(peak_flops_per_sec).values for group in known):
        text = "The peak FLOP/s of the devices is unknown; set it with --peak_flops."
        yield Paragraph(text, "unsure")
    runs = (run for group in known for run in group.successful)
    rates = ((run.summary().achieved_flops_per_sec or 0.0, peak_flops_per_sec(run)) for run in runs)
    if any(peak and rate > peak for rate, peak in rates):
        text = "Shares above 100 % are left out: all peaks of a machine were measured while it "
        yield Paragraph(f"{text}was busy, or --peak_flops is too low.", "unsure")


@QuantitySection(
    values=lambda group: group.process_values("mfu"),
    chart="share of the peak",
    axis=Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER),
    known=lambda group: bool(group.process_values("achieved_flops_per_sec").values),
    limit=(1.0, "limit: the peak of all devices"),
    remarks=_peak_remarks,
)
def mfu(group: RunGroup) -> Row:
    """Model FLOP/s utilisation (MFU) is images/sec at the mean step, times the FLOPs per image,
    divided by the peak FLOP/s of all devices of the job. A multiply-add of convolutions and affine
    layers counts as two FLOPs; for inference, only the forward pass counts. If processes measured
    the peak, all processes use the highest value that was measured on their machine in their number
    format. Energy is the energy of processors and GPUs during the timed loop, if counters can be
    read. CPU time includes all threads of the recording process. Values are medians over processes.
    """
    return {
        "MFU": _median_cell(group, "mfu", percent),
        "achieved, GFLOP/s": _median_cell(group, "achieved_flops_per_sec", scale=1e-9),
        "peak, GFLOP/s": _median_cell(group, peak_flops_per_sec, scale=1e-9),
        "GFLOP per image": _median_cell(group, RunRecord.flops_per_image, scale=1e-9),
        "parameters": _median_cell(
            group, lambda run: run.model.parameters if run.model else None, integer
        ),
        "CPU time per step, ms": _median_cell(group, "cpu_time", scale=1000),
        "images per CPU second": _median_cell(group, "images_per_cpu_second"),
        "busy CPUs": _median_cell(group, "busy_cpus"),
        "joules per image": _median_cell(group, "joules_per_image"),
        "source of the peak": TableCell(group.peak_source, kinds="prose"),
    }


@QuantitySection(
    values=lambda group: group.process_values("peak_memory_bytes"),
    chart="peak memory",
    axis=Axis(label="peak memory", format="bytes", zero=True, better=LOWER),
)
def memory(group: RunGroup) -> Row:
    """Peak memory of one device on GPUs, without the memory that TensorFlow reserves in advance; on
    a CPU, peak memory of the whole process. Values are medians over processes.
    """
    sample = group.process_values("peak_memory_bytes")
    return {
        "median peak memory, MiB": quantity_cell(sample.median, "bytes"),
        "range, MiB": interval_cell(sample.range, scale=2**-20),
        "of": "one device" if group.device_kind == "gpu" else "the process",
        "processes": numeric_cell(len(sample.values)),
    }


@QuantitySection(
    values=lambda group: group.process_values("top_1"),
    chart="top-1 accuracy",
    axis=Axis(label="top-1 of the last evaluation", format="percent", zero=True, better=HIGHER),
    known=lambda group: (
        bool(group.process_values("top_1").values)
        or any(run.last_loss is not None for run in group.successful)
    ),
)
def accuracy(group: RunGroup) -> Row:
    """The top-1 and top-5 accuracy is from the last evaluation. The losses are from the first and
    the last timed step. All values are medians over processes. Losses on synthetic images only show
    that training works at all.
    """
    broken = sum(not all(map(math.isfinite, record.losses)) for record in group.successful)
    text = f"not finite in {broken} of {len(group.successful)}" if broken else ""
    return {
        "top-1": _median_cell(group, "top_1", _exact),
        "range": interval_cell(group.process_values("top_1").range, _exact),
        "top-5": _median_cell(group, "top_5", _exact),
        "median evaluation images/sec": _median_cell(
            group, lambda run: run.evaluations[-1].images_per_sec if run.evaluations else None
        ),
        "first loss": _median_cell(
            group, lambda run: None if run.last_loss is None else run.losses[0]
        ),
        "last loss": _median_cell(group, "final_loss"),
        "losses": TableCell(text, tone="bad" if broken else ""),
    }


def _unsteady_remarks(known: Sequence[RunGroup]) -> Iterable[Paragraph]:
    names = [group.name for group in known if group.is_unsteady]
    if names:
        message = "In at least one process, not all timed steps were in a steady state: "
        message += first_few(names, _MOST_NAMED)
        advice = "Use more --num_warmup_batches, or a machine with less load."
        yield Paragraph(f"{message}. {advice}", "unsure")


@QuantitySection(
    values=lambda group: group.process_values("startup_seconds"),
    chart="start-up",
    axis=Axis(label="seconds to the end of the first step", zero=True, better=LOWER),
    known=lambda group: bool(group.process_values("startup_seconds").values or group.steady_states),
    remarks=_unsteady_remarks,
)
def warmup(group: RunGroup) -> Row:
    """Start-up time includes the import of TensorFlow, the building of the run and its first step
    (median over processes). A test for a steady state uses warm-up and timed steps together. In the
    column "steady from timed step", 1 means that all timed steps were steady.
    """
    counts = sorted({record.warmup_steps for record in group.successful})
    starts = [
        max(1, state.start - state.warmup_steps + 1)
        for state in group.steady_states
        if state.start is not None
    ]
    ends = dict.fromkeys((min(starts), max(starts))) if starts else ()
    shapes = Counter(state.shape.value for state in group.steady_states)
    order = ", ".join(f"{count} {shape}" for shape, count in shapes.most_common())
    tone = "unsure" if group.is_unsteady else ""
    return {
        "start-up, s": _median_cell(group, "startup_seconds"),
        "import, s": _median_cell(group, lambda run: run.startup_seconds.import_),
        "build, s": _median_cell(group, lambda run: run.startup_seconds.build),
        "first step, s": _median_cell(group, lambda run: run.startup_seconds.first_step),
        "warm-up steps": numeric_cell(counts[-1], alternatives([str(count) for count in counts])),
        "steady from timed step": numeric_cell(
            max(ends, default=None), " to ".join(map(str, ends))
        ),
        "steps in order": TableCell(order or "too few steps to tell", tone=tone),
    }


_Reached: TypeAlias = tuple[RunGroup, float | None, tuple[RunGroup, ...]]
"""The fastest configuration of a network in one number format, the images/sec of its roofline
estimate, and other configurations that may be as fast.
"""


def best_configurations(results: ReportSubject) -> list[_Reached]:
    """Returns the fastest configuration by network, work, format, kind of device and origin."""
    measured = (
        group
        for group in results.configured
        # Runs of A and of B are left out, because the verdict of their experiment already compares
        # them.
        if group.throughput.values and not (group.origin.side or group.flag("input_only"))
    )
    alike = group_by(
        measured, lambda group: (group.workload, group.precision, group.device_kind, group.origin)
    )
    profiled = ((results.profiled[one.run.run_id], one) for one in results.rooflines)
    estimates = {_estimate_key(group): (group, one.bound_images_per_sec) for group, one in profiled}
    reached: list[_Reached] = []
    for members in alike.values():
        best, *others = sorted(members, key=lambda member: -(member.throughput.median or 0.0))
        low, _ = best.throughput.interval or (math.inf, math.inf)
        ends = ((other, other.throughput.interval or (0.0, 0.0)) for other in others)
        as_fast = tuple(other for other, (_, high) in ends if high >= low)
        _, estimate = estimates.pop(_estimate_key(best), (best, None))
        reached.append((best, estimate, as_fast))
    reached += [(group, estimate, ()) for group, estimate in estimates.values()]
    return sorted(reached, key=lambda row: row[0].order)


def _estimate_key(group: RunGroup) -> object:
    """Returns a key that is equal if two configurations have the same roofline estimate."""
    images = next((run.batch.global_ for run in group.successful if run.batch is not None), None)
    devices = (group.device_kind, group.device_count)
    return (group.workload, group.precision, *devices, images, group.origin.machine)


@prepend_docstring
def best_section(results: ReportSubject) -> Iterable[Content]:
    """The configuration with the highest median images/sec over processes, for each network and
    number format. MFU is the share of the peak rate of matrix products. The roofline estimate is
    the images/sec if every layer ran at the machine's own rates of matrix products and of copying
    memory (cnnbench roofline).
    """
    rows = best_configurations(results)
    if not rows:
        return
    if any(group.throughput.interval is None for group, _, _ in rows):
        text = f"A row without an interval has fewer than {ValuesByProcess.FEWEST} processes, so "
        yield Paragraph(f"{text}another configuration may be faster.", "unsure")
    yield make_table(_best_row(*row) for row in rows)


def _best_row(group: RunGroup, estimate: float | None, others: tuple[RunGroup, ...]) -> Row:
    _, (_, *as_fast) = split_names([group, *others])
    middle = group.throughput.median
    share = None if middle is None or not estimate else middle / estimate
    return {
        "configuration": group.name,
        "format": group.precision,
        "median images/sec": numeric_cell(middle),
        **interval_cells(group.throughput),
        "as fast as": TableCell(first_few(as_fast, 2), kinds="prose"),
        "MFU": numeric_cell(group.process_values("mfu").median, percent),
        "peak, GFLOP/s": numeric_cell(group.process_values(peak_flops_per_sec).median, scale=1e-9),
        "roofline estimate, images/sec": numeric_cell(estimate),
        "of the estimate": numeric_cell(share, percent),
        "processes": numeric_cell(len(group.successful)),
    }
