"""The speed and efficiency of jobs with different numbers of workers, computed from their records.

Weak scaling: the batch size per worker is constant. Strong scaling: the total batch size is
constant and is divided among the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cnnbench.base.slow_steps import undisturbed_mean_step_seconds
from cnnbench.errors import BenchmarkError
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

WEAK, STRONG = "weak", "strong"


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


def scaling_points(
    single_process_runs: Sequence[RunRecord],
    jobs: Mapping[int, Sequence[RunRecord]],
    *,
    towers: int,
    shared: bool,
    predicted: Mapping[int, float] | None = None,
    kind: str = WEAK,
) -> list[ScalingPoint]:
    """Computes the speed and efficiency of jobs, by number of workers, from their records.

    Raises BenchmarkError if a run has no steps.

    Args:
      single_process_runs: runs of one process without communication, with the towers and the batch
        of one worker.
      jobs: runs by number of workers.
      shared: whether all processes share the same processors, so that n workers need n times as
        long as one worker for the computation.
      predicted: predicted seconds of the gradient exchange, by number of workers.
    """
    computed = _mean_step_seconds(single_process_runs)
    computing = median(computed)
    points = []
    for workers, records in jobs.items():
        step = median(_mean_step_seconds(records))
        speeds = [speed or 0.0 for speed in throughputs(records)]
        speed = median(speeds)
        # In strong scaling, a worker computes only its share of the batch of a single process.
        share = 1.0 / workers if kind == STRONG else 1.0
        compute = computing * share * (workers if shared else 1)
        images = speed * step  # `images` is the number of images per step of the whole job.
        exchange = (predicted or {}).get(workers)
        ideal = images / (computing * share)
        forecast = None if exchange is None else images / (compute + exchange)
        scatters = len(records) > 1 or len(single_process_runs) > 1
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
                efficiency_low=min(speeds) * min(computed) * share / images if scatters else None,
                efficiency_high=max(speeds) * max(computed) * share / images if scatters else None,
                kind=kind,
                images_per_step=round(images),
            )
        )
    return points


def _mean_step_seconds(records: Sequence[RunRecord]) -> list[float]:
    for record in records:
        if not record.step_seconds:
            message = f"run {record.run_id} has no steps; its status is {record.status}"
            raise BenchmarkError(message)
    return undisturbed_mean_step_seconds([record.step_seconds for record in records])
