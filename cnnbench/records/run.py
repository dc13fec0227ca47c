"""The record of one run, schema 1: raw measurements, and statistics computed from them.

The JSON form contains the `summary()` for readers, which is not read back. The driver collects the
measurements in a `cnnbench.records.measurements.Measurements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from cnnbench.base.stats.steady_state import SteadyState, steady_state
from cnnbench.records.amounts import AMOUNTS, wrong_amount
from cnnbench.records.codec import (
    ABSENT,
    OPTIONAL,
    TIME,
    Document,
    computed,
    one_of,
    started,
)
from cnnbench.records.metric import Summary, summary_of
from cnnbench.records.parts import (
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
)
from cnnbench.records.subject import Subject

STATUSES = ("ok", "failed", "interrupted")
WARMUP_STATUSES = ("fixed", "steady", "limit")


@dataclass(frozen=True, kw_only=True)  # without slots, so that the summary is computed once
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
            index = wrong_amount(getattr(self, key))
            if index is not None:
                low, high = AMOUNTS
                seconds = getattr(self, key)[index]
                raise ValueError(f"{key}[{index}]: {seconds} is not a time of {low} to {high} s")
        index = wrong_amount(self.step_cpu_seconds, or_zero=True)
        if index is not None:
            seconds = self.step_cpu_seconds[index]
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
        return self._summary

    @cached_property
    def _summary(self) -> Summary:
        return summary_of(self)

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
