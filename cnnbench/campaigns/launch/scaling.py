"""Scaling of a job: images per second over the number of workers, beside the cost model.

Weak scaling: every worker has the same batch. A step without any exchange is measured by one
process whose towers do not exchange gradients, on the processors of one process of the largest job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, Lines
from cnnbench.base.document import Row, numeric, table, terminal
from cnnbench.base.stats.slow_steps import mean_step_seconds
from cnnbench.base.text.numbers import integer, percent
from cnnbench.errors import BenchmarkError
from cnnbench.flags.groups.all_reduce import model_gradients
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.workload import NotPredictedError, gradient_tensors
from cnnbench.plan import Setup
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr.all_reduce.cost import Link
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.modes import Processes, Reduction

_ITEMSIZE = 4
_FREE = Link("memory", 0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One number of workers; the fields are the columns of the CSV file.

    Attributes:
      images_per_sec: images/sec of the job over its timed steps; the median over the runs.
      step_seconds: seconds of the mean step; the median over the runs.
      compute_seconds: seconds of a step without exchange, on the same processors.
      efficiency: images per second over those of as many workers without exchange.
      communication: share of the step that is not computation.
      predicted_images_per_sec, predicted_efficiency: predictions of the cost model; None without a
        link or for an unknown reduction.
      efficiency_low, efficiency_high: efficiency of the slowest run of the job against the fastest
        without exchange, and of the fastest against the slowest; None with one run of each.
    """

    workers: int
    towers: int
    images_per_sec: float
    step_seconds: float
    compute_seconds: float
    efficiency: float
    communication: float
    predicted_images_per_sec: float | None = None
    predicted_efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None


def points(
    alone: Sequence[RunRecord],
    jobs: Mapping[int, Sequence[RunRecord]],
    *,
    towers: int,
    shared: bool,
    predicted: Mapping[int, float] | None = None,
) -> list[ScalingPoint]:
    """The table; BenchmarkError if a run has no steps.

    Args:
      alone: runs of one process without exchange, with the towers of one worker.
      jobs: runs by number of workers.
      shared: whether all processes run on the same processors, so that the computation of n workers
        takes n times as long as that of one.
      predicted: seconds of the exchange by number of workers.
    """
    computed = _step_seconds(alone)
    computing = median(computed)
    found = []
    for workers, records in jobs.items():
        step = median(_step_seconds(records))
        speeds = [speed or 0.0 for speed in throughputs(records)]
        speed = median(speeds)
        compute = computing * workers if shared else computing
        images = speed * step  # of a step of the whole job
        exchange = (predicted or {}).get(workers)
        ideal = images / computing
        forecast = None if exchange is None else images / (compute + exchange)
        scatters = len(records) > 1 or len(alone) > 1
        found.append(
            ScalingPoint(
                workers=workers,
                towers=workers * towers,
                images_per_sec=speed,
                step_seconds=step,
                compute_seconds=compute,
                efficiency=speed / ideal,
                communication=max(0.0, 1 - compute / step),
                predicted_images_per_sec=forecast,
                predicted_efficiency=None if forecast is None else forecast / ideal,
                efficiency_low=min(speeds) * min(computed) / images if scatters else None,
                efficiency_high=max(speeds) * max(computed) / images if scatters else None,
            )
        )
    return found


def exchange_seconds(
    setup: Setup, link: Link, ps: int, counts: Sequence[int]
) -> tuple[dict[int, float], str]:
    """Seconds of the gradient exchange by number of workers, and why some are missing, or ""."""
    params = setup.params
    _, shapes = model_gradients(params.model, params.data_name)
    tensors = gradient_tensors(shapes, _ITEMSIZE)
    towers, packing = params.num_gpus, setup.exchange.aggregation
    model = Interconnect(link)
    if towers > 1:  # within a process they share memory
        model = Interconnect(_FREE, link, towers)
    found: dict[int, float] = {}
    reason = ""
    for workers in counts:
        try:
            devices = workers * towers
            spec = _spec(setup, min(ps, devices))
            found[workers] = model.seconds(spec, tensors, devices, packing)
        except NotPredictedError as error:
            reason = str(error)
    return found, reason


def _spec(setup: Setup, ps: int) -> AllReduceSpec:
    """The all-reduce algorithm with the traffic of the mode."""
    mode, spec = setup.place.mode, setup.exchange.all_reduce_spec
    if mode.processes is Processes.CLIENT_PER_WORKER:
        return parse_all_reduce_spec("collective")
    if mode.reduction is Reduction.ALL_REDUCE and spec is not None:
        return spec
    # Gradients go to the servers, and new values come back.
    return parse_all_reduce_spec(f"pscpu#{ps}" if ps > 1 else "pscpu")


def table_text(found: Sequence[ScalingPoint]) -> str:
    """The points as text."""
    return terminal.text_of([[table(map(_cells, found))]])


def _cells(point: ScalingPoint) -> Row:
    low, high = point.efficiency_low, point.efficiency_high
    span = f"{percent(low)} to {percent(high)}"
    return {
        "workers": numeric(point.workers, integer),
        "towers": numeric(point.towers, integer),
        "median images/sec": numeric(point.images_per_sec),
        "mean step, ms": numeric(point.step_seconds, scale=1e3),
        "efficiency": numeric(point.efficiency, percent),
        "of single runs": numeric(point.efficiency_low, span),
        "communication": numeric(point.communication, percent),
        "predicted images/sec": numeric(point.predicted_images_per_sec),
        "predicted efficiency": numeric(point.predicted_efficiency, percent),
    }


def chart(found: Sequence[ScalingPoint], title: str) -> Lines:
    """Images per second over workers: measured, predicted, and without exchange."""
    first = found[0]
    ideal = first.images_per_sec / first.efficiency / first.workers
    curves = (
        ("measured", [(point.workers, point.images_per_sec) for point in found]),
        ("cost model", [(p.workers, p.predicted_images_per_sec) for p in found]),
        ("no exchange", [(point.workers, ideal * point.workers) for point in found]),
    )
    series = tuple(
        ChartSeries(
            name=name,
            points=tuple((float(x), y) for x, y in curve if y is not None),
            marks=name == "measured",
            reference=name == "no exchange",
        )
        for name, curve in curves
        if any(y is not None for _, y in curve)
    )
    return Lines(
        title=title,
        x=Axis(label="workers", log=True, base=2),
        y=Axis(label="median images/sec", zero=True, better=HIGHER),
        series=series,
    )


def _step_seconds(records: Sequence[RunRecord]) -> list[float]:
    for record in records:
        if not record.step_seconds:
            raise BenchmarkError(f"run {record.run_id} has no steps: it ended as {record.status}")
    return mean_step_seconds([record.step_seconds for record in records])
