"""Stores the measurements of a run while it is running. The process that runs the steps can share
the measurements with its parent process.
"""

from __future__ import annotations

import itertools
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base.shared import SharedDoubles, SharedValue
from cnnbench.base.values import labels_from_config
from cnnbench.records.codec import encode
from cnnbench.records.run import Cluster, ErrorInfo, Evaluation, ResourceUse, RunRecord, TurnTaking
from cnnbench.records.subject import Subject

_Doubles: TypeAlias = "array[float] | SharedDoubles"


def _empty_doubles(shared: bool) -> _Doubles:
    """Creates an empty series of doubles, which forked processes can read if it is `shared`."""
    return SharedDoubles() if shared else array("d")


class StepSeries:
    """Times and losses of the warm-up steps, or of the timed steps.

    Attributes:
      seconds: mean wall seconds of a step, for each execution (by default one step; see
        --steps_per_execution).
      losses: loss of each step; empty if the run computes no loss.
      cpu_seconds: mean CPU seconds of a step, for each execution; empty if unknown.
      skipped: numbers, from 1, of the steps that made no update because of gradients that were not
        finite.
    """

    def __init__(self, shared: bool = False) -> None:
        """Creates empty series of times and losses. If `shared` is True, processes that are related
        by a fork can read the series.
        """
        self.seconds, self.losses = _empty_doubles(shared), _empty_doubles(shared)
        self.cpu_seconds, self.skipped = _empty_doubles(shared), _empty_doubles(shared)

    def add_execution(
        self,
        seconds: float,
        *losses: float,
        skipped: Sequence[bool] = (),
        cpu_seconds: float | None = None,
    ) -> None:
        """Adds the steps of one execution (one call by the host; see --steps_per_execution).

        Args:
          seconds: mean wall seconds of a step.
          losses: losses of the steps, which may be NaN or infinite; empty for every step if the run
            computes no loss.
          skipped: for each loss, whether its step made no update.
          cpu_seconds: mean CPU time of this process; None for every step if it is unknown.
        """
        if cpu_seconds is not None:
            self.cpu_seconds.append(cpu_seconds)
        self.seconds.append(seconds)
        for number, is_skipped in enumerate(skipped, len(self.losses) + 1):
            if is_skipped:
                self.skipped.append(number)
        for loss in losses:
            self.losses.append(loss)

    def count_complete(self, steps_per_execution: int) -> tuple[int, int]:
        """Counts the executions (calls by the host, with `steps_per_execution` steps each) whose
        losses are all known. Returns the number of executions and the number of their steps.

        After Ctrl-C, some losses of the last execution may be missing.
        """
        executions = (
            len(self.losses) // steps_per_execution if len(self.losses) else len(self.seconds)
        )
        return executions, executions * steps_per_execution


MOST_USE_SAMPLES = 600
"""Maximum number of samples in a record's `ResourceUse`."""

USE_PERIOD = 1.0
"""Seconds between two samples; shorter runs have none in their records."""


class ResourceUseSample(NamedTuple):
    """A sample of the memory and CPU time that this process uses.

    Attributes:
      seconds: time since the start of the run.
      memory, device_memory: bytes of this process, and of tensors on its fullest GPU
        (0 without one).
      cpu_seconds: CPU time of this process since its start.
      sampler_seconds: CPU time of the thread that takes the samples.
      loops: how many times the timed loop has begun or ended.
    """

    seconds: float
    memory: float
    device_memory: float
    cpu_seconds: float
    sampler_seconds: float
    loops: float


def resource_use(samples: Sequence[float]) -> ResourceUse | None:
    """Converts samples (the values of `ResourceUseSample`, one sample after the other) to the
    `ResourceUse` of a record; None if the run was shorter than one sampling period.
    """
    width, values = len(ResourceUseSample._fields), [*samples]
    # A process that was killed may have left an incomplete last row.
    whole = range(0, len(values) - width + 1, width)
    rows = [ResourceUseSample(*values[at : at + width]) for at in whole]
    if not rows or rows[-1].seconds < USE_PERIOD:
        return None
    first, *later = rows
    size = -(-len(later) // MOST_USE_SAMPLES)
    groups = [later[at : at + size] for at in range(0, len(later), size)]
    ends = [first, *(group[-1] for group in groups)]
    on_devices = [max(row.device_memory for row in group) for group in groups]
    busy = []
    for before, end in itertools.pairwise(ends):
        seconds = max(end.seconds - before.seconds, 1e-9)
        busy.append((end.cpu_seconds - before.cpu_seconds) / seconds)
    return ResourceUse(
        seconds=tuple(end.seconds for end in ends[1:]),
        memory_bytes=tuple(max(row.memory for row in group) for group in groups),
        device_memory_bytes=tuple(on_devices) if any(on_devices) else (),
        busy_cpus=tuple(busy),
        loop_start=next((row.seconds for row in rows if row.loops >= 1), None),
        loop_end=next((row.seconds for row in rows if row.loops >= 2), None),
        sampler_cpu_seconds=max(row.sampler_seconds for row in rows),
    )


class Measurements:
    """The measurements of a run so far, from which the record is created.

    Attributes:
      parts: the record of the run, as far as it is known, without step times; see `update_record`.
        The cluster in it lists the workers without their numbers of steps and images.
      warmup, timed: the steps.
      use_samples: the values of `ResourceUseSample`, one sample after the other.
      updates: for each timed step of asynchronous workers, the worker, and the number of updates by
        others since its read.
      lost_workers: workers that failed while others continued.
      requested_batch: with --find_batch_size, the images per device that were asked for.
      smallest_batch: with --find_batch_size, the fewest images per device that are tried.
      written: whether the record is in its files.
      checkpoint_save_folder: the folder of checkpoints that the run trains into, if any.
    """

    def __init__(
        self,
        command: Sequence[str],
        config: Mapping[str, object] | None = None,
        explicit_flags: Sequence[str] = (),
    ) -> None:
        """Creates the measurements of a run that starts now.

        Args:
          command: argv.
          config: parameters, see `update_config`. ValueError for a value that JSON cannot
            represent.
          explicit_flags: names of the parameters that were given.
        """
        self.parts = RunRecord(
            run_id=uuid.uuid4().hex,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status="interrupted",
            command=tuple(command),
            config={},
            explicit_flags=tuple(explicit_flags),
        )
        self.update_config(**config or {})
        self._reset_series(shared=False)
        self.updates: list[tuple[str, int]] = []
        self.lost_workers: list[str] = []
        self.requested_batch: int | None = None
        self.smallest_batch = 1
        self.written = False
        self.checkpoint_save_folder: str | None = None
        self._published: SharedValue | None = None
        self._private = False

    def _reset_series(self, *, shared: bool) -> None:
        self.warmup, self.timed = StepSeries(shared), StepSeries(shared)
        self.use_samples = _empty_doubles(shared)

    def start_sharing_with_forks(self) -> None:
        """Starts sharing: steps and published attributes are stored in memory that processes forked
        later can access.
        """
        if self._private:
            return
        self._reset_series(shared=True)
        self._published = SharedValue()

    def publish_to_parent(self) -> None:
        """Makes all attributes except the steps visible to the parent process. Do not call it while
        steps are running.
        """
        if self._published is not None:
            kept = {"warmup", "timed", "use_samples", "_published"}
            self._published.set({n: value for n, value in vars(self).items() if n not in kept})

    def published_values(self) -> Mapping[str, Any]:
        """Returns the attributes that a child process has published, by name; empty if the child
        process has not published any.
        """
        return {} if self._published is None else self._published.get() or {}

    @property
    def can_halve_batch(self) -> bool:
        """Whether this run is started again with half the batch size if its memory runs out
        (--find_batch_size).
        """
        known = self.published_values() or vars(self)
        # Before the run is planned, the batch size is unknown.
        batch = int(known["parts"].config.get("batch_size", 1))
        return known["requested_batch"] is not None and batch > known["smallest_batch"]

    def copy_published_values(self) -> None:
        """Copies the attributes that a child process has published into this object."""
        vars(self).update(self.published_values())

    def stop_sharing_with_parent(self) -> None:
        """Publishes the attributes once more, and stops sharing: the parent sees no later steps."""
        self.publish_to_parent()
        self._reset_series(shared=False)
        self._published, self._private = None, True

    def longest_execution(self) -> float:
        """Returns the seconds of the longest execution (call by the host) so far. The first
        execution is ignored, unless it is the only one.
        """
        seconds = [*self.warmup.seconds, *self.timed.seconds]
        return max(seconds[1:] or seconds, default=0.0) * self.parts.steps_per_execution

    def update_record(self, section: str = "", /, **values: Any) -> None:
        """Sets attributes of the record or, if `section` is given, attributes of a section of the
        record.

        Args:
          section: an attribute of `RunRecord` that contains the values, such as "measured".
          **values: attributes of `RunRecord` or of that section, which `make_record` does not
            compute.

        Raises:
          TypeError: there is no such attribute.
          ValueError: a value is impossible.
        """
        if section:
            values = {section: replace(getattr(self.parts, section), **values)}
        self.parts = replace(self.parts, **values)

    def update_config(self, **values: object) -> None:
        """Replaces flags in the record's config by the values that were resolved for them.

        The record lists the names of the flags whose values change.
        """
        before = self.parts.config
        config = {**before, **{name: encode(value) for name, value in values.items()}}
        changed = {name for name in values if name in before and before[name] != config[name]}
        resolved = tuple(sorted({*self.parts.resolved, *changed}))
        self.update_record(config=config, resolved=resolved)

    def begin_time_slice(
        self, turn_seconds: float, waited_seconds: float = 0.0, waited_cpu_seconds: float = 0.0
    ) -> None:
        """Records that the next step begins a time slice of this process, and for how many seconds
        the process waited for other processes before the step.
        """
        past = self.parts.turns
        turns = TurnTaking(
            turn_seconds=turn_seconds,
            starts=(*(() if past is None else past.starts), len(self.timed.seconds) + 1),
            waited_seconds=waited_seconds + (0.0 if past is None else past.waited_seconds),
            waited_cpu_seconds=waited_cpu_seconds
            + (0.0 if past is None else past.waited_cpu_seconds),
        )
        self.update_record(turns=turns)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Adds the result of an evaluation and publishes it to the parent process."""
        self.update_record(evaluations=(*self.parts.evaluations, evaluation))
        self.publish_to_parent()

    def make_record(self, status: str = "ok", error: BaseException | None = None) -> RunRecord:
        """Creates a record of the measurements so far. The run may continue measuring afterwards.

        ValueError if status and error contradict each other, or a measurement is impossible.
        """
        parts, warmup, timed = self.parts, self.warmup, self.timed
        executions, steps = timed.count_complete(parts.steps_per_execution)
        warmup_executions, warmup_steps = warmup.count_complete(parts.steps_per_execution)
        images = parts.measured.loop_images
        if images is None and parts.batch is not None and steps:
            images = parts.batch.global_ * steps
        scaling = parts.loss_scaling
        if scaling is not None:
            scaling = replace(
                scaling,
                warmup_skipped_steps=tuple(int(n) for n in warmup.skipped if n <= warmup_steps),
                skipped_steps=tuple(int(n) for n in timed.skipped if n <= steps),
            )
        return replace(
            parts,
            status=status,
            error=None if error is None else ErrorInfo.from_exception(error),
            warmup_step_seconds=tuple(warmup.seconds[:warmup_executions]),
            warmup_losses=tuple(warmup.losses[:warmup_steps]),
            step_seconds=tuple(timed.seconds[:executions]),
            step_cpu_seconds=tuple(timed.cpu_seconds[:executions]),
            losses=tuple(timed.losses[:steps]),
            measured=replace(parts.measured, loop_images=images),
            resources=resource_use(self.use_samples),
            loss_scaling=scaling,
            cluster=None if parts.cluster is None else self._with_shares(parts.cluster, steps),
            subject=(parts.subject or Subject()).with_labels(labels_from_config(parts.config)),
        )

    def _with_shares(self, cluster: Cluster, steps: int) -> Cluster:
        """Returns the cluster with the numbers of timed steps and images of each worker."""
        images = 0 if self.parts.batch is None else self.parts.batch.global_
        # If Ctrl-C came after a step was stored and before the worker of the step was stored, the
        # two lists differ in length.
        updates = self.updates[:steps]
        own = Counter(worker for worker, _ in updates)
        workers = len(cluster.workers)
        shares = []
        for worker in cluster.workers:
            done, trained = steps, steps * images // workers
            if updates:
                done, trained = own[worker.task], own[worker.task] * images
            is_lost = worker.task in self.lost_workers
            shares.append(replace(worker, steps=done, images=trained, lost=is_lost))
        staleness = tuple(staleness for _, staleness in updates)
        return replace(cluster, workers=tuple(shares), staleness=staleness)
