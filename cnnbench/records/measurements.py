"""What a run has measured so far, and the record of it however the run ends."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from cnnbench.records.codec import encode
from cnnbench.records.run import (
    Batch,
    Conditions,
    ErrorInfo,
    Evaluation,
    LossScaling,
    Measured,
    ModelInfo,
    Placement,
    RunRecord,
    StartupSeconds,
)


class Measurements:
    """Collects a run; a step costs two appends to arrays of doubles.

    The driver sets the attributes as it learns them. Whatever is unset when the run
    ends is unknown in the record.

    Attributes:
      model, placement, batch: see `RunRecord`.
      environment: facts, see `cnnbench.machine.facts`.
      import_seconds, build_seconds, first_step_seconds: start-up times.
      loop_seconds, loop_images, input_wait_seconds, peak_memory_bytes,
        peak_flops_per_sec, peak_flops_source: see `Measured`. Without loop_images
        the images of all timed steps are counted.
      cpu_energy_joules, gpu_energy_joules, energy_source: see `Measured`.
      loss_scale_start, loss_scale_end: where it is automatic, see `LossScaling`.
      warmup_status, conditions: see `RunRecord`.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        config: Mapping[str, object],
        explicit_flags: Sequence[str] = (),
    ) -> None:
        """Starts a run now.

        Args:
          command: argv.
          config: every parameter, resolved; values with a JSON form.
          explicit_flags: names of the parameters that were given.

        Raises:
          ValueError: a config value without a JSON form.
        """
        self.run_id = uuid.uuid4().hex
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._command = tuple(command)
        self._config = {name: encode(value) for name, value in config.items()}
        self._explicit_flags = tuple(explicit_flags)
        self.model: ModelInfo | None = None
        self.placement: Placement | None = None
        self.batch: Batch | None = None
        self.environment: Mapping[str, Any] = {}
        self.import_seconds: float | None = None
        self.build_seconds: float | None = None
        self.first_step_seconds: float | None = None
        self.loop_seconds: float | None = None
        self.loop_images: int | None = None
        self.input_wait_seconds: float | None = None
        self.peak_memory_bytes: int | None = None
        self.peak_flops_per_sec: float | None = None
        self.peak_flops_source: str | None = None
        self.cpu_energy_joules: float | None = None
        self.gpu_energy_joules: float | None = None
        self.energy_source: str | None = None
        self.warmup_status: str | None = None
        self.conditions: Conditions | None = None
        self._warmup_times, self._warmup_losses = array("d"), array("d")
        self._times, self._losses = array("d"), array("d")
        self._evaluations: list[Evaluation] = []
        self.loss_scale_start: float | None = None
        self.loss_scale_end: float | None = None
        self._warmup_skipped: list[int] = []
        self._skipped: list[int] = []

    def update_config(self, **values: object) -> None:
        """Replaces parameters by what they turned out to be.

        Raises:
          ValueError: a value without a JSON form.
        """
        self._config.update({name: encode(value) for name, value in values.items()})

    @property
    def steps(self) -> int:
        """Timed steps so far, warm-up excluded."""
        return len(self._times)

    @property
    def warmup_step_seconds(self) -> Sequence[float]:
        """Times of the steps before the timed loop so far."""
        return self._warmup_times

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Evaluations so far."""
        return tuple(self._evaluations)

    def add_warmup_step(
        self, seconds: float, loss: float | None = None, *, skipped: bool = False
    ) -> None:
        """One step before the timed loop; see `add_step`."""
        _append(self._warmup_times, self._warmup_losses, seconds, loss)
        if skipped:
            self._warmup_skipped.append(len(self._warmup_times))

    def add_step(self, seconds: float, loss: float | None = None, *, skipped: bool = False) -> None:
        """One timed step.

        Args:
          seconds: its wall time.
          loss: its loss, NaN and infinities included; None, for every step of the
            run, where no loss is computed.
          skipped: whether it made no update, because of its gradients.
        """
        _append(self._times, self._losses, seconds, loss)
        if skipped:
            self._skipped.append(len(self._times))

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """One evaluation, in order of time."""
        self._evaluations.append(evaluation)

    def record(self, status: str = "ok", error: BaseException | None = None) -> RunRecord:
        """The record of what was measured so far; collecting may go on afterwards.

        Args:
          status: "ok", "failed" or "interrupted".
          error: what ended a failed run; None otherwise.

        Raises:
          ValueError: status and error contradict each other, or a measurement cannot
            be (a step without duration).
        """
        warmup_times, warmup_losses = _together(self._warmup_times, self._warmup_losses)
        times, losses = _together(self._times, self._losses)
        return RunRecord(
            run_id=self.run_id,
            started_at=self.started_at,
            status=status,
            error=None if error is None else _error_info(error),
            command=self._command,
            config=dict(self._config),
            explicit_flags=self._explicit_flags,
            model=self.model,
            placement=self.placement,
            batch=self.batch,
            startup_seconds=StartupSeconds(
                import_=self.import_seconds,
                build=self.build_seconds,
                first_step=self.first_step_seconds,
            ),
            warmup_step_seconds=warmup_times,
            step_seconds=times,
            losses=losses,
            warmup_losses=warmup_losses,
            evaluations=self.evaluations,
            measured=self._measured(len(times)),
            loss_scaling=self._loss_scaling(),
            warmup_status=self.warmup_status,
            conditions=self.conditions,
            environment=dict(self.environment),
        )

    def _measured(self, steps: int) -> Measured:
        images = self.loop_images
        if images is None and self.batch is not None and steps:
            images = self.batch.global_ * steps
        names = {field.name for field in fields(Measured)} - {"loop_images"}
        return Measured(loop_images=images, **{name: getattr(self, name) for name in names})

    def _loss_scaling(self) -> LossScaling | None:
        if self.loss_scale_start is None or self.loss_scale_end is None:
            return None
        return LossScaling(
            start=self.loss_scale_start,
            end=self.loss_scale_end,
            warmup_skipped_steps=tuple(self._warmup_skipped),
            skipped_steps=tuple(self._skipped),
        )


def _append(times: array[float], losses: array[float], seconds: float, loss: float | None) -> None:
    times.append(seconds)
    if loss is not None:
        losses.append(loss)


def _together(
    times: array[float], losses: array[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and losses of equally many steps.

    A Ctrl-C between the two appends of a step leaves a time without its loss.
    """
    if losses:
        times = times[: len(losses)]
    return tuple(times), tuple(losses)


def _error_info(error: BaseException) -> ErrorInfo:
    return ErrorInfo(type=type(error).__name__, message=str(error))
