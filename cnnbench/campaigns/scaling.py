"""Measures how the speed of a job grows with the number of workers, and predicts the growth.

A step without communication is measured in one process whose towers do not exchange gradients. It
uses as many processors as one process of the largest job.

Weak scaling: the batch size per worker is constant. Strong scaling: the total batch size is
constant and is divided among the workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Answer, Row, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.slow_steps import undisturbed_mean_seconds
from cnnbench.base.text import count_text, number, percent
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import JobLayout, TaskCommand, flags_to_arguments
from cnnbench.campaigns.processes import (
    CampaignIdentity,
    CampaignKind,
    ConfigurationIdentity,
    ProcessRequests,
    ResolvedRun,
    ResultsFolder,
    identity_values,
    make_rounds,
    run_process,
    store_answer,
)
from cnnbench.errors import BenchmarkError
from cnnbench.lab.predict.predict import Interconnect, NotPredictedError, gradient_tensors
from cnnbench.plan import RunPlan
from cnnbench.records.files import OutputFile, check_outputs
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr.all_reduce.cost import Link
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.modes import Processes, Reduction

WEAK, STRONG = "weak", "strong"

_A_DAY = 86400.0
_ITEMSIZE = 4
_FREE = Link("memory", 0.0, 0.0, 0.0)
_WEAK_BATCH = "every worker has the same batch"
_MOST_NAMED = 3

SCALING = CampaignKind(
    command="scaling",
    noun="measurement",
    shared=True,
    log="{}/command.log",
    pending="{}/command.pending",
)
"""Kind of campaign for scaling. Each job and repeat has a record and a folder of logs."""


@dataclass(frozen=True, kw_only=True)
class ScalingJobs:
    """Jobs with different numbers of workers, whose speeds are measured and compared.

    Attributes:
      layouts, chiefs: processes of each job, and plan of its chief, by number of workers.
      command: the command that all processes run.
      kind: "weak" or "strong".
      towers: number of towers of each worker; None if not set.
      cores: number of processors for each process; 0 if all processes share all processors.
      records: records of the runs so far, by number of workers. Number 0 means one process without
        communication.
    """

    layouts: Mapping[int, JobLayout]
    chiefs: Mapping[int, RunPlan]
    command: TaskCommand
    kind: str = WEAK
    towers: int | None = None
    cores: int = 0
    records: dict[int, list[RunRecord]] = field(default_factory=dict)

    def identity(self, facts: Mapping[str, Any]) -> CampaignIdentity:
        """The identity that a resumed scaling measurement must match. Repeats may be added."""
        return CampaignIdentity(
            plans={
                f"{n} workers": ConfigurationIdentity(
                    identity_values(plan.identity),
                    plan.to_json(),
                    parts=plugins.files_used_by_plugins(plan.config),
                )
                for n, plan in self.chiefs.items()
            },
            facts=facts,
            policy={
                **{"name": "scaling", "towers": self.towers, "shared": not self.cores},
                **({} if self.kind == WEAK else {"kind": self.kind}),
            },
        )

    def requests(self, folder: ResultsFolder, repeats: int) -> ProcessRequests[None]:
        """Yields the processes to run for all jobs. After each process, adds its record to
        `records`.
        """
        self.records.update({n: [] for n in (0, *self.layouts)})
        # The jobs are interleaved, so that a slowdown of the machine affects all jobs equally.
        rounds = make_rounds(self.records, repeats, seed=None)
        targets = {}
        for count, repeat in rounds.order:
            name = f"workers-{count}" if count else "alone"
            targets[count, repeat] = folder.folder / f"{name}-{repeat}.json"
        outputs = [OutputFile("results", str(path), RunRecord.kind) for path in targets.values()]
        check_outputs(outputs)
        for count, repeat, later_keys in rounds:
            target = targets[count, repeat]
            name = target.stem
            logs = folder.log_path(name).parent
            side = self._job_side(folder.unfinished_path(logs), count)
            request = make_process_request(
                folder, name, side, key=(count, False), target=target, leaves=logs
            )
            ended = yield from run_process(folder, request, _A_DAY, later_keys)
            if ended.status != "ok":
                raise BenchmarkError(f"{name} failed; its logs are in {logs}")
            self.records[count].append(ended.record)

    def points(self, predicted: Mapping[int, float] | None = None) -> list[ScalingPoint]:
        """Computes the speed and efficiency of the jobs that were measured so far.

        `predicted` are predicted seconds of the gradient exchange, by number of workers. Raises
        BenchmarkError if a run has no steps.
        """
        alone, towers = self.records[0], self.chiefs[max(self.chiefs)].params.num_gpus
        computed = _mean_step_seconds(alone)
        computing = median(computed)
        points = []
        for workers in (n for n in self.records if n and self.records[n]):
            records = self.records[workers]
            step = median(_mean_step_seconds(records))
            speeds = [speed or 0.0 for speed in throughputs(records)]
            speed = median(speeds)
            # In strong scaling, a worker computes only its share of the batch of a single process.
            share = 1.0 / workers if self.kind == STRONG else 1.0
            # If all processes share the processors, n workers need n times as long as one worker.
            compute = computing * share * (1 if self.cores else workers)
            images = speed * step  # `images` is the number of images per step of the whole job.
            exchange = (predicted or {}).get(workers)
            ideal = images / (computing * share)
            forecast = None if exchange is None else images / (compute + exchange)
            low = high = None
            if len(records) > 1 or len(alone) > 1:
                low = min(speeds) * min(computed) * share / images
                high = max(speeds) * max(computed) * share / images
            points.append(
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
                    efficiency_low=low,
                    efficiency_high=high,
                    kind=self.kind,
                    images_per_step=round(images),
                )
            )
        return points

    def _job_side(self, logs: Path, count: int) -> AbSide:
        """Creates an `AbSide`, which describes the command of a job with `count` workers.

        With 0 workers, this is a single process on the processors of one worker.
        """
        chief = self.chiefs.get(count) or next(iter(self.chiefs.values()))
        side = AbSide(flags=self.command.single_process_flags(chief.params.num_gpus))
        layout = self.layouts.get(count, JobLayout())
        if count:
            own = {"log_dir": logs, "towers": self.towers, "affinity": self.cores > 0}
            options = flags_to_arguments({name: value for name, value in own.items() if value})
            side = AbSide(flags=self.command.words, layout=layout._replace(options=options))
        free = sorted(os.sched_getaffinity(0))[: self.cores * layout.size]
        return replace(side, resolved=ResolvedRun(config=chief.to_json()), cores=free or None)


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """Speed and efficiency of a job with a certain number of workers: a row of the table of
    results.

    The fields are the columns of the CSV file.

    Attributes:
      kind: "weak" or "strong".
      images_per_step: images in one step of the whole job.
      images_per_sec: images/sec of the job in its timed steps; median over the runs.
      step_seconds: mean seconds per step; median over the runs.
      compute_seconds: seconds per step without communication, on the same processors.
      efficiency: images/sec divided by the images/sec of the same number of workers without
        communication. For "strong", divided by n times the images/sec of one worker with the whole
        batch.
      communication: share of the step time that is not computation.
      predicted_images_per_sec, predicted_efficiency: predictions of the cost model; None without
        --link or if the model does not know the reduction.
      efficiency_low, efficiency_high: efficiency from the slowest run of the job and the fastest
        run without communication, and vice versa; None if there is one run of each.
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
    kind: str = WEAK
    images_per_step: int = 0


def _mean_step_seconds(records: Sequence[RunRecord]) -> list[float]:
    for record in records:
        if not record.step_seconds:
            message = f"run {record.run_id} has no steps; its status is {record.status}"
            raise BenchmarkError(message)
    return undisturbed_mean_seconds([record.step_seconds for record in records])


def predict_exchange_seconds(
    setup: RunPlan, link: Link, ps: int, counts: Sequence[int]
) -> tuple[dict[int, float], str]:
    """Predicts how many seconds the gradient exchange of a step takes, by number of workers.

    Also returns why some predictions are missing, or "".
    """
    params = setup.params
    shapes = [variable.shape for variable in setup.network.spec.variables if variable.trainable]
    tensors = gradient_tensors(shapes, _ITEMSIZE)
    towers, packing = params.num_gpus, setup.exchange.aggregation
    model = Interconnect(link)
    if towers > 1:  # Devices of one process communicate through shared memory.
        model = Interconnect(_FREE, link, towers)
    seconds: dict[int, float] = {}
    reason = ""
    for workers in counts:
        try:
            devices = workers * towers
            spec = _equivalent_spec(setup, min(ps, devices))
            seconds[workers] = model.predict_seconds(spec, tensors, devices, packing)
        except NotPredictedError as error:
            reason = str(error)
    return seconds, reason


def _equivalent_spec(setup: RunPlan, ps: int) -> AllReduceSpec:
    """The all-reduce algorithm that causes the same traffic as the run's --variable_update."""
    mode, spec = setup.place.mode, setup.params.all_reduce_spec
    by_flag = mode.reduction is Reduction.ALL_REDUCE and mode.processes is Processes.CONTROLLER
    if by_flag and spec is not None:
        return spec
    return parse_all_reduce_spec(f"{mode.traffic}#{ps}" if ps > 1 else mode.traffic)


def table_text(points: Sequence[ScalingPoint]) -> str:
    """The results of a scaling measurement as text: a title and a table."""
    return f"{_about(points)}\n{sections_to_text([[make_table(map(_point_cells, points))]])}"


def _about(points: Sequence[ScalingPoint]) -> str:
    images = min(point.images_per_step for point in points)
    batch = "all jobs have {} images per step" if points[0].kind == STRONG else _WEAK_BATCH
    return f"{points[0].kind} scaling: {batch.format(images)}, efficiency against one worker"


def store_points(folder: ResultsFolder, title: str, points: Sequence[ScalingPoint]) -> None:
    """Stores the results of a scaling measurement in its journal, for reports. The answer is about
    the largest job.
    """
    *others, largest = map(_point_text, points)
    answer = Answer(title, largest, "", tuple(reversed(others[-_MOST_NAMED:])))
    store_answer(folder, answer, _about(points), map(_point_cells, points))


def _point_text(point: ScalingPoint) -> str:
    workers = count_text(point.workers, "worker", "workers")
    text = f"{workers}: {number(point.images_per_sec)} images/sec, efficiency "
    text += percent(point.efficiency)
    if point.efficiency_low is None or point.efficiency_high is None:
        return text
    return f"{text} ({percent(point.efficiency_low)} to {percent(point.efficiency_high)})"


def _point_cells(point: ScalingPoint) -> Row:
    low, high = point.efficiency_low, point.efficiency_high
    span = f"{percent(low)} to {percent(high)}"
    return {
        "workers": numeric_cell(point.workers),
        "towers": numeric_cell(point.towers),
        "median images/sec": numeric_cell(point.images_per_sec),
        "mean step, ms": numeric_cell(point.step_seconds, scale=1e3),
        "efficiency": numeric_cell(point.efficiency, percent),
        "of single runs": numeric_cell(point.efficiency_low, span),
        "communication": numeric_cell(point.communication, percent),
        "predicted images/sec": numeric_cell(point.predicted_images_per_sec),
        "predicted efficiency": numeric_cell(point.predicted_efficiency, percent),
    }


def scaling_chart(points: Sequence[ScalingPoint], title: str) -> LineChart:
    """Draws images/sec by number of workers: measured, predicted, and without communication."""
    first = points[0]
    ideal = first.images_per_sec / first.efficiency / first.workers
    curves = (
        ("measured", [(point.workers, point.images_per_sec) for point in points]),
        ("cost model", [(p.workers, p.predicted_images_per_sec) for p in points]),
        ("no exchange", [(point.workers, ideal * point.workers) for point in points]),
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
    return LineChart(
        title=title,
        x=Axis(label="workers", log=True, base=2),
        y=Axis(label="median images/sec", zero=True, better=HIGHER),
        series=series,
    )
