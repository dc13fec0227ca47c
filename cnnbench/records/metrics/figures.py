"""Declares the metrics of runs. Those that `cnnbench compare` judges by default come first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import fsum
from statistics import fmean
from typing import Any, TypeAlias

from cnnbench.base import stats
from cnnbench.base.text import billions, format_bytes, milliseconds, number, percent
from cnnbench.records.metric import FASTER, LESS, QUICKER, Summary, register_metric
from cnnbench.records.run import RunRecord, Target

_SOURCE: dict[str, Any] = {"judged": {}, "followed": False, "always": True}
"""Rules of `register_metric` for values in `measured` that only describe other values, so they are
not compared.
"""


def throughputs(runs: Sequence[RunRecord]) -> list[float | None]:
    """Returns the images per second of each run. `runs` are all runs of one configuration; in a
    comparison, the runs of A and of B.

    The value is the global batch divided by the mean time of the timed steps, after disturbances
    that are rare among the runs are removed. For an evaluation run, it is the images of its
    evaluations divided by their time. For an imported record, it is the value in its file. None if
    it was not measured.
    """
    # Imported late, because `slow_steps` imports NumPy, which a run does not need.
    from cnnbench.base.slow_steps import undisturbed_mean_seconds

    means = iter(undisturbed_mean_seconds([run.step_seconds for run in runs if run.step_seconds]))
    return [
        _ratio(_global_batch(run), next(means)) if run.step_seconds else _speed_without_steps(run)
        for run in runs
    ]


@register_metric(
    "throughput",
    "images/sec",
    together=throughputs,
    key="",
    by_default=True,
    gates=True,
    step="over the timed steps",
    **FASTER,
)
def throughput(record: RunRecord) -> float | None:
    """Images / time of the timed steps, after rare disturbances are removed; for evaluation runs,
    images / time of the evaluations.
    """
    return throughputs([record])[0]


def _global_batch(record: RunRecord) -> int | None:
    return None if record.batch is None else record.batch.global_


def _speed_without_steps(run: RunRecord) -> float | None:
    """Returns the images per second of a run without timed steps (an evaluation run or an imported
    record); see `throughputs`.
    """
    if run.imported is not None:
        return run.imported.values.get("throughput")
    if not run.config.get("eval") or not run.evaluations:
        return None
    timed = [evaluation for evaluation in run.evaluations if evaluation.images_per_sec > 0]
    seconds = fsum(evaluation.examples / evaluation.images_per_sec for evaluation in timed)
    return sum(evaluation.examples for evaluation in timed) / seconds if seconds else 0.0


# On a CPU, peak memory is that of the whole process. It varies by some per cent from process to
# process, so the threshold is higher.
_OF_MEMORY: dict[str, Any] = {"threshold": 0.05, "least": 16 * 2**20, **LESS}


@register_metric(
    "memory", "bytes", key="", by_default=True, followed=False, gates=True, **_OF_MEMORY
)
def memory(record: RunRecord) -> float | None:
    """Peak memory; the same as `peak_memory_bytes`."""
    peak = record.measured.peak_memory_bytes
    return float(peak) if peak else None


# Start-up time depends on disks and caches, so it does not gate: a CI job must not fail because of
# it.
@register_metric("startup_seconds", "s", key="", threshold=0.2, **QUICKER)
@register_metric(
    "startup", "seconds", key="", by_default=True, followed=False, threshold=0.2, **QUICKER
)
def startup(record: RunRecord) -> float | None:
    """Time to import TensorFlow, to build the step (variables, input, tracing) and to run the first
    step.
    """
    seconds = record.startup_seconds
    if seconds.import_ is None or seconds.build is None or seconds.first_step is None:
        return None
    return seconds.import_ + seconds.build + seconds.first_step


# Another seed changes the accuracy by a few tenths of a point, so the threshold is half a point.
_OF_ACCURACY: dict[str, Any] = {"key": "", "relative": False, "threshold": 0.005}


@register_metric("top_1", "share", **_OF_ACCURACY)
@register_metric("accuracy", "top-1", by_default=True, followed=False, gates=True, **_OF_ACCURACY)
def accuracy(record: RunRecord) -> float | None:
    """Top-1 accuracy of the last evaluation."""
    return record.evaluations[-1].top_1 if record.evaluations else None


@register_metric("top_5", "share", **_OF_ACCURACY)
def top_5(record: RunRecord) -> float | None:
    """Top-5 accuracy of the last evaluation."""
    return record.evaluations[-1].top_5 if record.evaluations else None


# Cached, because three metrics use the same statistics of the step times.
_cached_speed = lru_cache(maxsize=1)(stats.compute_speed)


def _speed_statistics(record: RunRecord) -> stats.Speed | None:
    if record.batch is None or not record.step_seconds:
        return None
    return _cached_speed(record.batch.global_, tuple(record.step_seconds))


@register_metric("images_per_sec", "images/sec", always=True, step="at the mean step", **FASTER)
def images_per_sec(record: RunRecord) -> float | None:
    """Global batch / **mean** step time."""
    return None if (speed := _speed_statistics(record)) is None else speed.mean


@register_metric(
    "images_per_sec_uncertainty", "images/sec", always=True, relative=False, threshold=0.0, **LESS
)
def images_per_sec_uncertainty(record: RunRecord) -> float | None:
    """Standard error of the mean speed: standard deviation of the steps' speeds / √n."""
    return None if (speed := _speed_statistics(record)) is None else speed.uncertainty


@register_metric(
    "images_per_sec_jitter", "images/sec", always=True, relative=False, threshold=0.0, **LESS
)
def images_per_sec_jitter(record: RunRecord) -> float | None:
    """Variation of the speed between steps: 1.4826 · median absolute deviation of the speeds of the
    timed steps.
    """
    return None if (speed := _speed_statistics(record)) is None else speed.jitter


@register_metric("images_per_sec_median", "images/sec", step="at the median step", **FASTER)
def images_per_sec_median(record: RunRecord) -> float | None:
    """Global batch / **median** step time, which is not affected by slow steps."""
    return _ratio(_global_batch(record), step_seconds(record))


@register_metric(
    "total_images_per_sec", "images/sec", always=True, step="over the timed loop", **FASTER
)
def total_images_per_sec(record: RunRecord) -> float | None:
    """Images / wall time of the timed loop, including input, printing and checkpoints, but not
    evaluations.
    """
    return _ratio(record.measured.loop_images, record.measured.loop_seconds)


@register_metric("step_seconds", "s", key="", **QUICKER)
def step_seconds(record: RunRecord) -> float | None:
    """Median step time."""
    return stats.median(record.step_seconds) if record.step_seconds else None


def _flops_line(summary: Summary) -> str:
    if summary.achieved_flops_per_sec is None:
        return ""
    line = f"{billions(summary.achieved_flops_per_sec)} GFLOP/s achieved"
    if summary.mfu is not None and summary.peak_flops_per_sec is not None:
        line += f", {percent(summary.mfu)} of {billions(summary.peak_flops_per_sec)} GFLOP/s"
        line += f" ({summary.peak_flops_source})" if summary.peak_flops_source else ""
    return line


@register_metric("achieved_flops_per_sec", "FLOP/s", always=True, line=_flops_line, **FASTER)
def achieved_flops_per_sec(record: RunRecord) -> float | None:
    """`images_per_sec` · FLOPs per image, of training or, with `--forward_only`, of the forward
    pass.
    """
    speed, flops = images_per_sec(record), record.flops_per_image()
    return None if speed is None or flops is None else speed * flops


@register_metric("mfu", "share of the peak", always=True)
def mfu(record: RunRecord) -> float | None:
    """Model FLOP utilization: `achieved_flops_per_sec` / `peak_flops_per_sec`. Unknown if the
    quotient is above 1, because then the peak is wrong.
    """
    return share_of_peak(achieved_flops_per_sec(record), record.measured.peak_flops_per_sec)


def share_of_peak(achieved: float | None, peak: float | None) -> float | None:
    """Computes the MFU from FLOP/s; None if it is unknown, or if it is above 1, because then the
    peak is wrong.
    """
    share = _ratio(achieved, peak)
    return None if share is None or share > 1 else share


@register_metric("peak_flops_per_sec", "FLOP/s", **_SOURCE)
def peak_flops_per_sec(record: RunRecord) -> float | None:
    """Peak FLOP/s of all devices together."""
    return record.measured.peak_flops_per_sec


@register_metric("peak_flops_source", "", **_SOURCE)
def peak_flops_source(record: RunRecord) -> str | None:
    """Where the value of `peak_flops_per_sec` comes from."""
    return record.measured.peak_flops_source


def _cpu_time_line(summary: Summary) -> str:
    if summary.cpu_seconds_per_step is None or summary.busy_cpus is None:
        return ""
    per_step, busy = milliseconds(summary.cpu_seconds_per_step), number(summary.busy_cpus)
    return f"{per_step} ms of CPU time per step, {busy} CPUs busy in the timed loop"


@register_metric("cpu_time", "s", key="cpu_seconds_per_step", line=_cpu_time_line, **LESS)
def cpu_time(record: RunRecord) -> float | None:
    """Mean CPU time of a timed step, summed over all threads of this process."""
    return fmean(record.step_cpu_seconds) if record.step_cpu_seconds else None


@register_metric("busy_cpus", "CPUs", **LESS)
def busy_cpus(record: RunRecord) -> float | None:
    """CPU time of this process / wall time in the timed loop."""
    return _ratio(record.measured.loop_cpu_seconds, record.measured.loop_seconds)


@register_metric("images_per_cpu_second", "images/CPU second")
def images_per_cpu_second(record: RunRecord) -> float | None:
    """Global batch / `cpu_seconds_per_step`; for evaluation runs, images / CPU time of the loop;
    unknown in jobs of several processes.
    """
    if record.cluster is not None:
        return None
    if record.step_seconds:
        return _ratio(_global_batch(record), cpu_time(record))
    return _ratio(record.measured.loop_images, record.measured.loop_cpu_seconds)


def _input_wait_line(summary: Summary) -> str:
    share = summary.input_wait_fraction
    return f"{percent(share)} of the time spent waiting for input" if share else ""


@register_metric(
    "input_wait_fraction",
    "share",
    always=True,
    relative=False,
    threshold=0.02,
    line=_input_wait_line,
    **LESS,
)
def input_wait_fraction(record: RunRecord) -> float | None:
    """Share of the timed loop in which the job waits for input."""
    return _ratio(record.measured.input_wait_seconds, record.measured.loop_seconds)


@register_metric("input_images_per_sec", "images/sec", **FASTER)
def input_images_per_sec(record: RunRecord) -> float | None:
    """Examples per second that the input pipelines of all workers deliver without training (the
    last stage in `input_stages`).
    """
    return record.input_stages[-1].examples_per_sec if record.input_stages else None


def _peak_memory_line(summary: Summary) -> str:
    peak = summary.peak_memory_bytes
    return "" if peak is None else f"{format_bytes(peak)} peak memory"


@register_metric("peak_memory_bytes", "bytes", always=True, line=_peak_memory_line, **_OF_MEMORY)
def peak_memory_bytes(record: RunRecord) -> int | None:
    """Peak memory: on GPUs, of the fullest device; on a CPU, of the process."""
    return record.measured.peak_memory_bytes


def _energy_line(summary: Summary) -> str:
    if summary.energy_joules is None:
        return ""
    line = f"{summary.energy_joules:.0f} J in the timed loop"
    if summary.joules_per_image is not None:
        line += f", {number(summary.joules_per_image)} J per image"
    return f"{line} ({summary.energy_source}, all processes)"


@register_metric("energy_joules", "J", always=True, line=_energy_line, **LESS)
def energy_joules(record: RunRecord) -> float | None:
    """Energy that processors and GPUs used in the timed loop. Only readable energy counters are
    included.
    """
    parts = (record.measured.cpu_energy_joules, record.measured.gpu_energy_joules)
    known = [joules for joules in parts if joules is not None]
    return sum(known) if known else None


@register_metric("joules_per_image", "J", always=True, **LESS)
def joules_per_image(record: RunRecord) -> float | None:
    """`energy_joules` / images of the timed loop."""
    return _ratio(energy_joules(record), record.measured.loop_images)


@register_metric("energy_source", "", **_SOURCE)
def energy_source(record: RunRecord) -> str | None:
    """The energy counters that `energy_joules` was read from."""
    return record.measured.energy_source


@register_metric("time_to_accuracy_seconds", "s", **QUICKER)
def time_to_accuracy_seconds(record: RunRecord) -> float | None:
    """Wall time from the start of the timed loop to the end of the first evaluation that reached
    the target of any metric.
    """
    target, top_1 = record.target, record.config.get("stop_at_top_1_accuracy")
    # Only a number is a target; None means that the run had no target.
    if target is None and isinstance(top_1, (int, float)):
        target = Target(metric="top_1", value=top_1)
    if target is None:
        return None
    reached = (e for e in record.evaluations if target.is_reached_by(e.metric_value(target.metric)))
    return next((evaluation.wall_seconds for evaluation in reached), None)


@register_metric("final_loss", "loss", key="", relative=False, threshold=0.0, **LESS)
def final_loss(record: RunRecord) -> float | None:
    """Loss of the last timed step; unknown for `--forward_only` runs."""
    return record.last_loss


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


# Percentiles of step times, and of batch latencies in forward-only runs.

_Series: TypeAlias = Callable[[RunRecord], Sequence[float]]

_SHARES = {50: 0.03, 90: 0.05, 99: 0.1}
"""Percentiles and their thresholds. Outer percentiles vary more, so their thresholds are larger."""


def _latencies(record: RunRecord) -> Sequence[float]:
    if not record.config.get("forward_only"):
        return ()
    # On a GPU, steps overlap, so the time between two completions is not the latency of a step.
    on_cpu = record.placement is None or record.placement.kind == "cpu"
    return record.latency_seconds or (_single_steps(record) if on_cpu else ())


def _single_steps(record: RunRecord) -> Sequence[float]:
    """Returns the wall seconds of each timed step; empty if the run measured several steps together
    (--steps_per_execution).
    """
    return record.step_seconds if record.steps_per_execution == 1 else ()


def _percentile(series: _Series, percentile: int, record: RunRecord) -> float | None:
    seconds = series(record)
    if not seconds:
        return None
    if percentile == 99:
        return stats.p99(seconds)
    return stats.nearest_rank_percentile(seconds, percentile / 100)


def _percentiles_line(name: str, title: str, advice: str, summary: Summary) -> str:
    seconds_by_share = {share: summary[f"{name}_p{share}_seconds"] for share in _SHARES}
    if name == "step" and seconds_by_share[50] == summary.latency_p50_seconds:
        # On a CPU, latencies equal the step times, so they get no line of their own.
        return ""
    known = [
        f"p{share} {milliseconds(s)} ms" for share, s in seconds_by_share.items() if s is not None
    ]
    if not known:
        return ""
    return f"{title}: {', '.join(known)}{'' if seconds_by_share[99] else advice}"


def _add_percentiles(
    name: str, title: str, about: str, series: _Series, advice: str = "", **rules: Any
) -> None:
    section = rules.pop("section", "")
    for share, threshold in _SHARES.items():
        few = f"; unknown for fewer than {stats.FEWEST_FOR_P99} values" if share == 99 else ""
        register_metric(
            f"{name}_p{share}_seconds",
            "s",
            about=f"{share}th percentile (nearest rank) of {about}{few}",
            threshold=threshold,
            line=partial(_percentiles_line, name, title, advice) if share == 50 else None,
            # No median: another table shows it, computed in another way, and two different medians
            # on one page would confuse.
            section="" if share == 50 else section,
            **rules,
            **QUICKER,
        )(partial(_percentile, series, share))


_add_percentiles(
    "latency",
    "latency of a batch by itself",
    "the time from fetching a batch to its result in a `--forward_only` run, while no other batch "
    "is running",
    _latencies,
    f"; p99 takes --num_batches={stats.FEWEST_FOR_P99} or more",
)
_add_percentiles(
    "step",
    "step times",
    "the wall time of timed steps",
    _single_steps,
    section="throughput",
)
