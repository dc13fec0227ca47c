"""The record of one run, schema 1: raw measurements, and statistics computed from them.

The JSON form contains the `summary()` for readers, which is not read back. The driver collects the
measurements in a `cnnbench.records.measurements.Measurements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

from cnnbench.base.stats import descriptive
from cnnbench.base.stats.steady_state import SteadyState, steady_state
from cnnbench.records.codec import (
    ABSENT,
    OPTIONAL,
    TIME,
    Document,
    computed,
    one_of,
    started,
)
from cnnbench.records.parts import (
    AMOUNTS,
    AbPlace,
    Batch,
    Cluster,
    Conditions,
    ErrorInfo,
    Evaluation,
    InputStage,
    LossScaling,
    Measured,
    ModelInfo,
    Placement,
    SkippedRecords,
    StartupSeconds,
    SweepPlace,
    Target,
    TurnTaking,
    is_amount,
)
from cnnbench.records.subject import Subject

STATUSES = ("ok", "failed", "interrupted")
WARMUP_STATUSES = ("fixed", "steady", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics derived from a record; None where its measurements do not give them.

    Attributes:
      images_per_sec: global batch over mean step time.
      images_per_sec_median: global batch over median step time.
      images_per_sec_uncertainty: standard error of the speeds of the steps.
      images_per_sec_jitter: 1.4826 times the median absolute deviation of these speeds.
      total_images_per_sec: images of the timed loop over its whole wall time.
      achieved_flops_per_sec: images_per_sec times FLOPs per image, of the forward
        pass in forward-only runs, else of training.
      mfu: achieved over peak; None where it would be above 1, so that the peak must be wrong.
      peak_flops_per_sec, peak_flops_source, peak_memory_bytes: as in `measured`.
      input_wait_fraction: share of the timed loop spent waiting for input.
      input_images_per_sec: examples per second of the input pipeline alone.
      energy_joules: energy of processors and GPUs in the timed loop, as far as known.
      joules_per_image: energy_joules over the images of the timed loop.
      energy_source: the counters in energy_joules.
      time_to_accuracy_seconds: wall time from the start of the timed loop to the end of the first
        evaluation that reached the target; None without one.
      latency_p50_seconds, latency_p90_seconds, latency_p99_seconds: percentiles of the time from
        fetching a batch to its result, while no other batch runs; None for runs that are not
        forward-only, the last also for fewer than 100 batches.
      cpu_seconds_per_step: mean CPU time of this process in a timed step.
      busy_cpus: CPU time of this process over wall time, both of the timed loop.
      images_per_cpu_second: global batch over cpu_seconds_per_step, in evaluation runs images over
        the CPU time of the loop; None in jobs of several processes.
    """

    images_per_sec: float | None
    images_per_sec_uncertainty: float | None
    images_per_sec_jitter: float | None
    total_images_per_sec: float | None
    achieved_flops_per_sec: float | None
    mfu: float | None
    peak_flops_per_sec: float | None
    peak_flops_source: str | None
    input_wait_fraction: float | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    joules_per_image: float | None
    energy_source: str | None
    input_images_per_sec: float | None = field(default=None, metadata=OPTIONAL)
    time_to_accuracy_seconds: float | None = field(default=None, metadata=OPTIONAL)
    latency_p50_seconds: float | None = field(default=None, metadata=OPTIONAL)
    latency_p90_seconds: float | None = field(default=None, metadata=OPTIONAL)
    latency_p99_seconds: float | None = field(default=None, metadata=OPTIONAL)
    cpu_seconds_per_step: float | None = field(default=None, metadata=OPTIONAL)
    busy_cpus: float | None = field(default=None, metadata=OPTIONAL)
    images_per_cpu_second: float | None = field(default=None, metadata=OPTIONAL)
    images_per_sec_median: float | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Document):
    """One run of one process, schema 1.

    Attributes:
      run_id: unique name of the run.
      started_at: start of the run, ISO 8601 with offset, UTC.
      status: "ok", "failed" or "interrupted".
      error: why the run failed; None unless it did.
      command: argv.
      config: every parameter, resolved, as plain JSON values.
      explicit_flags: names of the parameters that were given.
      model, placement, batch: None where the run ended before they were known.
      startup_seconds: durations of import, build and first step.
      warmup_step_seconds, step_seconds: wall seconds of each warm-up step, and of each timed step.
      step_cpu_seconds: CPU seconds of all threads of this process in each timed step; empty if
        unknown.
      losses, warmup_losses: loss of each timed and each warm-up step; empty if not computed.
      latency_seconds: wall seconds of each batch that a forward-only run launched alone after its
        timed steps; empty on CPUs and in other runs.
      evaluations: evaluations in order.
      loss_scaling: None unless the loss scale was automatic.
      warmup_status: "fixed" for a given number of steps; with --warmup=auto "steady", or "limit"
        if --max_warmup_batches was reached; None if the warm-up did not end.
      conditions: None where the run ended before they were checked.
      environment: facts about machine and software; unknown ones are absent.
      ab: place in an experiment of `cnnbench ab`; absent in other runs.
      subject: what was measured; absent where nothing names it.
      input_stages: speed of the input pipeline alone, by stage; empty if not measured.
      skipped_records: None unless records were skipped.
      cluster: None for a run of one process.
      sweep: place in a sweep; absent in other runs.
      target: target of --stop_at or --stop_at_top_1_accuracy; absent without one. Earlier records
        have a top-1 accuracy in `config` only.
      turns: absent unless other processes stepped in turn with this one.
      measured: other measurements. Missing in the first documents of schema 1, which are read as
        "all unknown".
    """

    kind: ClassVar[str] = "run"
    schema: ClassVar[int] = 1

    run_id: str
    started_at: str = field(metadata=TIME)
    status: str = field(metadata=one_of(STATUSES))
    error: ErrorInfo | None = None
    command: tuple[str, ...]
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...] = ()
    model: ModelInfo | None = None
    placement: Placement | None = None
    batch: Batch | None = None
    startup_seconds: StartupSeconds = field(default_factory=StartupSeconds)
    warmup_step_seconds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    step_cpu_seconds: tuple[float, ...] = field(default=(), metadata=OPTIONAL)
    losses: tuple[float, ...] = ()
    warmup_losses: tuple[float, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    latency_seconds: tuple[float, ...] = field(default=(), metadata=OPTIONAL)
    measured: Measured = field(default_factory=Measured, metadata=OPTIONAL)
    loss_scaling: LossScaling | None = field(default=None, metadata=OPTIONAL)
    warmup_status: str | None = field(
        default=None, metadata={**OPTIONAL, **one_of(WARMUP_STATUSES)}
    )
    conditions: Conditions | None = field(default=None, metadata=OPTIONAL)
    environment: Mapping[str, Any] = field(default_factory=dict)
    ab: Mapping[str, Any] | None = field(default=None, metadata={**ABSENT, "form": AbPlace})
    input_stages: tuple[InputStage, ...] = field(default=(), metadata=OPTIONAL)
    skipped_records: SkippedRecords | None = field(default=None, metadata=OPTIONAL)
    cluster: Cluster | None = field(default=None, metadata=OPTIONAL)
    subject: Subject | None = field(default=None, metadata=ABSENT)
    sweep: Mapping[str, Any] | None = field(default=None, metadata={**ABSENT, "form": SweepPlace})
    turns: TurnTaking | None = field(default=None, metadata=ABSENT)
    target: Target | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        started(self.started_at)
        check_status(self.status, self.error)
        if self.warmup_status not in (None, *WARMUP_STATUSES):
            raise ValueError(
                f"warmup_status: {self.warmup_status!r} is none of {', '.join(WARMUP_STATUSES)}"
            )
        steps, warmup_steps = len(self.step_seconds), len(self.warmup_step_seconds)
        for key in ("step_seconds", "warmup_step_seconds", "latency_seconds"):
            for index, seconds in enumerate(getattr(self, key)):
                if not is_amount(seconds):
                    low, high = AMOUNTS
                    raise ValueError(
                        f"{key}[{index}]: {seconds} is not a time of {low} to {high} s"
                    )
        for index, seconds in enumerate(self.step_cpu_seconds):
            if seconds != 0 and not is_amount(seconds):
                raise ValueError(f"step_cpu_seconds[{index}]: {seconds} is not a CPU time")
        for key, of in (
            ("losses", steps),
            ("warmup_losses", warmup_steps),
            ("step_cpu_seconds", steps),
        ):
            if (found := len(getattr(self, key))) not in (0, of):
                raise ValueError(f"{key}: {found} values for {of} steps")
        if self.loss_scaling is not None:
            skipped = self.loss_scaling
            _check_numbers("skipped_steps", skipped.skipped_steps, steps)
            _check_numbers("warmup_skipped_steps", skipped.warmup_skipped_steps, warmup_steps)

    @computed
    def summary(self) -> Summary:
        """The statistics, computed from the raw values."""
        speed = middle = None
        if self.batch is not None and self.step_seconds:
            speed = descriptive.speed(self.batch.global_, self.step_seconds)
            middle = self.batch.global_ / descriptive.median(self.step_seconds)
        measured = self.measured
        flops = self.flops_per_image()
        achieved = speed.mean * flops if speed is not None and flops is not None else None
        joules = _sum(measured.cpu_energy_joules, measured.gpu_energy_joules)
        return Summary(
            images_per_sec=None if speed is None else speed.mean,
            images_per_sec_median=middle,
            images_per_sec_uncertainty=None if speed is None else speed.uncertainty,
            images_per_sec_jitter=None if speed is None else speed.jitter,
            total_images_per_sec=_ratio(measured.loop_images, measured.loop_seconds),
            achieved_flops_per_sec=achieved,
            mfu=share_of_peak(achieved, measured.peak_flops_per_sec),
            peak_flops_per_sec=measured.peak_flops_per_sec,
            peak_flops_source=measured.peak_flops_source,
            input_wait_fraction=_ratio(measured.input_wait_seconds, measured.loop_seconds),
            input_images_per_sec=(
                self.input_stages[-1].examples_per_sec if self.input_stages else None
            ),
            peak_memory_bytes=measured.peak_memory_bytes,
            energy_joules=joules,
            joules_per_image=_ratio(joules, measured.loop_images),
            energy_source=measured.energy_source,
            time_to_accuracy_seconds=self._time_to_accuracy(),
            **self._latencies(),
            **self._cpu_time(),
        )

    def _latencies(self) -> dict[str, float | None]:
        seconds = self.latency_seconds
        # The time of a step on a GPU is the distance between two completions, of steps launched
        # one ahead.
        if not seconds and (self.placement is None or self.placement.kind == "cpu"):
            seconds = self.step_seconds
        if not self.config.get("forward_only") or not seconds:
            return {}
        return {
            "latency_p50_seconds": descriptive.nearest_rank(seconds, 0.5),
            "latency_p90_seconds": descriptive.nearest_rank(seconds, 0.9),
            "latency_p99_seconds": descriptive.p99(seconds),
        }

    def _cpu_time(self) -> dict[str, float | None]:
        measured = self.measured
        per_step = fmean(self.step_cpu_seconds) if self.step_cpu_seconds else None
        loop = _sum(measured.loop_user_seconds, measured.loop_system_seconds)
        images: float | None = None
        if self.cluster is None and self.step_seconds:
            images = _ratio(None if self.batch is None else self.batch.global_, per_step)
        elif self.cluster is None:
            images = _ratio(measured.loop_images, loop)
        return {
            "cpu_seconds_per_step": per_step,
            "busy_cpus": _ratio(loop, measured.loop_seconds),
            "images_per_cpu_second": images,
        }

    def _time_to_accuracy(self) -> float | None:
        target, top_1 = self.target, self.config.get("stop_at_top_1_accuracy")
        # Otherwise it was not requested, or the document was made by hand.
        if target is None and isinstance(top_1, (int, float)):
            target = Target(metric="top_1", value=top_1)
        if target is None:
            return None
        reached = (e for e in self.evaluations if target.reached(e.value_of(target.metric)))
        return next((evaluation.wall_seconds for evaluation in reached), None)

    def condition(self, name: str) -> float | None:
        """A quantity of the machine over the timed loop, see `Conditions`; None if unknown."""
        value = None if self.conditions is None else self.conditions.during.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def last_loss(self) -> float | None:
        """Loss of the last timed step; None of forward-only runs, which record zeros."""
        if self.config.get("forward_only") or not self.losses:
            return None
        return self.losses[-1]

    def flops_per_image(self) -> int | None:
        """FLOPs that a step computes per image; None where it computes none, or it is unknown."""
        if self.model is None:
            return None
        if self.config.get("input_only"):
            return None
        if self.config.get("forward_only"):
            return self.model.forward_flops_per_image
        return self.model.training_flops_per_image


def share_of_peak(achieved: float | None, peak: float | None) -> float | None:
    """MFU; None where it is unknown, or above 1, which shows that the peak is wrong."""
    share = _ratio(achieved, peak)
    return None if share is None or share > 1 else share


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def check_status(status: str, error: ErrorInfo | None) -> None:
    """Raises a ValueError for an unknown status, or one that contradicts the error."""
    if status not in STATUSES:
        raise ValueError(f"status: {status!r} is none of {', '.join(STATUSES)}")
    if (status == "failed") != (error is not None):
        raise ValueError(f"error: status {status!r} with error {error!r}")


def _check_numbers(key: str, numbers: tuple[int, ...], steps: int) -> None:
    if list(numbers) != sorted(set(numbers)) or not all(1 <= n <= steps for n in numbers):
        raise ValueError(
            f"loss_scaling.{key}: {list(numbers)} are not numbers of {steps} steps in order"
        )


def run_steady_state(record: RunRecord) -> SteadyState:
    """The steady state of all steps of a record; indices count from the first warm-up step."""
    warmup = record.warmup_step_seconds
    return steady_state(warmup + record.step_seconds, len(warmup))
