"""The measurements of a run so far, shared with the process that watches the run."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import uuid
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias, overload

from cnnbench.base.text import labels_of
from cnnbench.records.codec import encode
from cnnbench.records.run import (
    MOST_USE_SAMPLES,
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
    ResourceUse,
    RunRecord,
    SkippedRecords,
    StartupSeconds,
    Subject,
    Target,
    TaskAddress,
    TurnTaking,
    WorkerShare,
    steps_per_execution,
)

# Memory that a process shares with its forks (only on Linux).

_FEWEST = 1023


class SharedDoubles(Sequence[float]):
    """Doubles that one process appends and that its related processes (forks) can read.

    They outlive the appending process. An append takes half a microsecond. If a limit on file sizes
    is reached, further values are not shared.
    """

    def __init__(self) -> None:
        """Creates an empty sequence. Call it before the fork."""
        self._file = os.memfd_create("cnnbench")
        self._memory = memoryview(bytes(8)).cast("d")
        self._resize(_FEWEST)

    def append(self, value: float) -> None:
        """Appends a value. Only one of the processes may call this."""
        size = int(self._memory[0]) + 1
        if size == len(self._memory):
            self._resize(2 * size)
        self._memory[size] = value
        self._memory[0] = size

    def __len__(self) -> int:
        return int(self._memory[0])

    def __iter__(self) -> Iterator[float]:
        return iter(self[:])

    @overload
    def __getitem__(self, key: int) -> float: ...

    @overload
    def __getitem__(self, key: slice) -> list[float]: ...

    def __getitem__(self, key: int | slice) -> float | list[float]:
        size = len(self)
        if size >= len(self._memory):  # The other process has extended the memory.
            self._map()
        values: list[float] = [*self._memory[1 : size + 1]]
        return values[key]

    def _resize(self, most: int) -> None:
        try:
            os.ftruncate(self._file, 8 * (most + 1))
            self._map()
        except OSError:
            own = memoryview(bytearray(8 * (most + 1))).cast("d")
            own[: len(self._memory)] = self._memory
            self._memory = own

    def _map(self) -> None:
        # The first double is the number of values that follow.
        self._memory = memoryview(mmap.mmap(self._file, 0)).cast("d")


class SharedValue:
    """A value that one process sets and that its related processes (forks) can read."""

    def __init__(self) -> None:
        """Creates an object without a value. Call it before the fork."""
        self._file = os.memfd_create("cnnbench")

    def set(self, value: object) -> None:
        """Replaces the value. If a limit on file sizes is reached, there is no value."""
        data = pickle.dumps(value)
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, data, 0)

    def get(self) -> Any:
        """The latest value; None if there is none, or if it is being replaced."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            return pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            return None


# Collects the measurements of a run for its record.

_Doubles: TypeAlias = "array[float] | SharedDoubles"


def _doubles() -> _Doubles:
    return array("d")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(kw_only=True)
class Measurements:
    """The measurements of a run so far. For each step, three doubles are appended.

    The driver sets the attributes when they become known; None means unknown. Most attributes are
    explained in `RunRecord`, `Cluster` and `LossScaling`.

    Attributes:
      config: all resolved parameters. ValueError for a value that JSON cannot represent.
      environment: see `cnnbench.machine.facts`.
      subject: the repository of what is measured; labels of the configuration take precedence.
      measured: see `note`; loop_images defaults to the images of all timed steps.
      updates: for each timed step of asynchronous workers, the worker, and the number of updates by
        others since its read.
      task_addresses: host:port of every process of a job, by task; empty for one process.
      worker_tasks: tasks with towers.
      requested_batch: with --find_batch_size, the images per device that were asked for.
      lost_workers: workers that failed while others continued.
      use_samples: rows of `UseSample`, one after the other.
      written: whether the record is in its files.
      saves_into: the folder of checkpoints that the run trains into, if any.
    """

    command: Sequence[str]
    config: dict[str, Any] = field(default_factory=dict)
    explicit_flags: Sequence[str] = ()
    run_id: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    started_at: str = field(init=False, default_factory=_now)
    model: ModelInfo | None = None
    placement: Placement | None = None
    batch: Batch | None = None
    requested_batch: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    subject: Subject = field(default_factory=Subject)
    import_seconds: float | None = None
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    measured: Measured = field(default_factory=Measured)
    loss_scale_start: float | None = None
    loss_scale_end: float | None = None
    warmup_status: str | None = None
    conditions: Conditions | None = None
    input_stages: Sequence[InputStage] = ()
    skipped_records: SkippedRecords | None = None
    target: Target | None = None
    ended_by: str | None = None
    task_addresses: Mapping[str, str] = field(default_factory=dict)
    worker_tasks: Sequence[str] = ()
    messages_per_step: int | None = None
    bytes_per_step: int | None = None
    warmup_step_seconds: _Doubles = field(init=False, default_factory=_doubles)
    warmup_losses: _Doubles = field(init=False, default_factory=_doubles)
    step_seconds: _Doubles = field(init=False, default_factory=_doubles)
    losses: _Doubles = field(init=False, default_factory=_doubles)
    step_cpu_seconds: _Doubles = field(init=False, default_factory=_doubles)
    use_samples: _Doubles = field(init=False, default_factory=_doubles)
    latency_seconds: list[float] = field(init=False, default_factory=list)
    evaluations: list[Evaluation] = field(init=False, default_factory=list)
    warmup_skipped_steps: list[int] = field(init=False, default_factory=list)
    skipped_steps: list[int] = field(init=False, default_factory=list)
    updates: list[tuple[str, int]] = field(init=False, default_factory=list)
    lost_workers: list[str] = field(init=False, default_factory=list)
    written: bool = field(init=False, default=False)
    saves_into: str | None = field(init=False, default=None)
    turns: TurnTaking | None = field(init=False, default=None)
    _published: SharedValue | None = field(init=False, default=None)
    _private: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.update_config(**self.config)

    def share(self) -> None:
        """From now on, stores steps and published attributes in memory that is shared with later
        forks.
        """
        if self._private:
            return
        for name in _SERIES:
            setattr(self, name, SharedDoubles())
        self._published = SharedValue()

    def publish(self) -> None:
        """Publishes all attributes except steps to the forking process. Must not be called during
        steps.
        """
        if self._published is not None:
            kept = {*_SERIES, "_published"}
            self._published.set({n: value for n, value in vars(self).items() if n not in kept})

    def published(self) -> Mapping[str, Any]:
        """The attributes that a forked process has published; empty if there are none."""
        return {} if self._published is None else self._published.get() or {}

    @property
    def halves_batch(self) -> bool:
        """Whether a run without enough memory is repeated with a smaller batch."""
        known = self.published() or vars(self)
        # The config is empty before the run is planned.
        batch = int(known["config"].get("batch_size", 1))
        return known["requested_batch"] is not None and batch > 1

    def recall(self) -> None:
        """Copies the values that a forked process has published."""
        vars(self).update(self.published())

    def keep_private(self) -> None:
        """Publishes for the last time. Further steps are not shared with the forking process."""
        self.publish()
        for name in _SERIES:
            setattr(self, name, _doubles())
        self._published, self._private = None, True

    @property
    def steps_per_execution(self) -> int:
        """See `RunRecord.steps_per_execution`."""
        return steps_per_execution(self.config)

    def longest_execution(self) -> float:
        """Seconds of the longest execution so far. The first is ignored unless it is the only
        one.
        """
        seconds = [*self.warmup_step_seconds, *self.step_seconds]
        return max(seconds[1:] or seconds, default=0.0) * self.steps_per_execution

    def update_config(self, **values: object) -> None:
        """Replaces parameters by the values that they resolved to."""
        self.config.update({name: encode(value) for name, value in values.items()})

    def add_warmup_step(self, seconds: float, *losses: float, skipped: Sequence[bool] = ()) -> None:
        """Adds the steps of an execution before the timed loop; see `add_step`."""
        self.warmup_step_seconds.append(seconds)
        self.warmup_skipped_steps += _numbers(skipped, len(self.warmup_losses))
        for loss in losses:
            self.warmup_losses.append(loss)

    def add_step(
        self,
        seconds: float,
        *losses: float,
        skipped: Sequence[bool] = (),
        cpu_seconds: float | None = None,
    ) -> None:
        """Adds the timed steps of an execution (by default one step; see --steps_per_execution).

        Args:
          seconds: mean wall time of a step.
          losses: losses of the steps, which may be NaN or infinite; empty for every step if the run
            computes no loss.
          skipped: for each loss, whether its step made no update because of gradients that were not
            finite.
          cpu_seconds: mean CPU time of this process; None for every step if it is unknown.
        """
        if cpu_seconds is not None:
            self.step_cpu_seconds.append(cpu_seconds)
        self.step_seconds.append(seconds)
        self.skipped_steps += _numbers(skipped, len(self.losses))
        for loss in losses:
            self.losses.append(loss)

    def set_loop_time(self, wall: float, user: float, system: float) -> None:
        """Wall time, and user and system CPU time, of the timed loop; see `Measured`."""
        self.note(loop_seconds=wall, loop_user_seconds=user, loop_system_seconds=system)

    def note(self, **figures: Any) -> None:
        """Sets attributes of `measured`. ValueError for an impossible value."""
        self.measured = replace(self.measured, **figures)

    def begin_turn(self, turn_seconds: float, waited: float = 0.0, cpu: float = 0.0) -> None:
        """Records that the next step begins a turn, with the wall time and CPU time of waiting."""
        past = self.turns
        self.turns = TurnTaking(
            turn_seconds=turn_seconds,
            starts=(*(() if past is None else past.starts), len(self.step_seconds) + 1),
            waited_seconds=waited + (0.0 if past is None else past.waited_seconds),
            waited_cpu_seconds=cpu + (0.0 if past is None else past.waited_cpu_seconds),
        )

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Adds an evaluation and publishes it."""
        self.evaluations.append(evaluation)
        self.publish()

    def record(self, status: str = "ok", error: BaseException | None = None) -> RunRecord:
        """Creates a record of the measurements so far. Measuring may continue afterwards.

        ValueError if status and error contradict each other, or a measurement is impossible.
        """
        executions, steps = self._complete(self.step_seconds, self.losses)
        warmup_executions, warmup_steps = self._complete(
            self.warmup_step_seconds, self.warmup_losses
        )
        images = self.measured.loop_images
        if images is None and self.batch is not None and steps:
            images = self.batch.global_ * steps
        known = {known_field.name for known_field in fields(RunRecord)}
        same = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(self).items()
            if name in known
        }
        described: dict[str, Any] = {
            "status": status,
            "error": None if error is None else ErrorInfo.of(error),
            "config": dict(self.config),
            "startup_seconds": StartupSeconds(
                import_=self.import_seconds,
                build=self.build_seconds,
                first_step=self.first_step_seconds,
            ),
            "warmup_step_seconds": tuple(self.warmup_step_seconds[:warmup_executions]),
            "warmup_losses": tuple(self.warmup_losses[:warmup_steps]),
            "step_seconds": tuple(self.step_seconds[:executions]),
            "step_cpu_seconds": tuple(self.step_cpu_seconds[:executions]),
            "losses": tuple(self.losses[:steps]),
            "measured": replace(self.measured, loop_images=images),
            "resources": resource_use(self.use_samples),
            "loss_scaling": None if self.loss_scale_end is None else self._loss_scaling(),
            "cluster": self._cluster(steps) if self.task_addresses else None,
            "subject": self.subject.labelled(labels_of(self.config)),
        }
        return RunRecord(**{**same, **described})

    def _complete(self, seconds: Sequence[float], losses: Sequence[float]) -> tuple[int, int]:
        """Numbers of complete executions and steps. After Ctrl-C, a time may lack some of its
        losses.
        """
        together = self.steps_per_execution
        executions = len(losses) // together if len(losses) else len(seconds)
        return executions, executions * together

    def _cluster(self, steps: int) -> Cluster:
        images = 0 if self.batch is None else self.batch.global_
        # Ctrl-C may interrupt between appending a step and appending its worker.
        updates = self.updates[:steps]
        own = Counter(worker for worker, _ in updates)
        workers = len(self.worker_tasks)
        return Cluster(
            tasks=tuple(
                TaskAddress(task=task, address=address)
                for task, address in self.task_addresses.items()
            ),
            workers=tuple(
                WorkerShare(
                    task=task,
                    steps=own[task] if updates else steps,
                    images=own[task] * images if updates else steps * images // workers,
                    lost=task in self.lost_workers,
                )
                for task in self.worker_tasks
            ),
            staleness=tuple(staleness for _, staleness in updates),
            messages_per_step=self.messages_per_step,
            bytes_per_step=self.bytes_per_step,
        )

    def _loss_scaling(self) -> LossScaling | None:
        if self.loss_scale_start is None or self.loss_scale_end is None:
            return None
        return LossScaling(
            start=self.loss_scale_start,
            end=self.loss_scale_end,
            warmup_skipped_steps=tuple(self.warmup_skipped_steps),
            skipped_steps=tuple(self.skipped_steps),
        )


def _numbers(skipped: Sequence[bool], before: int) -> list[int]:
    """Numbers, from 1, of the skipped steps that follow `before` steps."""
    return [number for number, is_skipped in enumerate(skipped, before + 1) if is_skipped]


_SERIES = tuple(
    series.name for series in fields(Measurements) if series.default_factory is _doubles
)
_STEPS = tuple(name for name in _SERIES if name != "use_samples")
"""Series with a value per step."""


# Memory and CPUs over time.

USE_PERIOD = 1.0
"""Seconds between two samples; shorter runs have none in their records."""


class UseSample(NamedTuple):
    """A sample of what this process uses.

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
    """The samples as a record contains them; None if the run was shorter than a period."""
    width, values = len(UseSample._fields), [*samples]
    # A killed process may leave an incomplete row.
    whole = range(0, len(values) - width + 1, width)
    rows = [UseSample(*values[at : at + width]) for at in whole]
    if not rows or rows[-1].seconds < USE_PERIOD:
        return None
    first, *later = rows
    size = -(-len(later) // MOST_USE_SAMPLES)
    groups = [later[at : at + size] for at in range(0, len(later), size)]
    ends = [first, *(group[-1] for group in groups)]
    return ResourceUse(
        seconds=tuple(end.seconds for end in ends[1:]),
        memory_bytes=tuple(max(row.memory for row in group) for group in groups),
        device_memory_bytes=tuple(max(row.device_memory for row in group) for group in groups)
        if any(row.device_memory for row in later)
        else (),
        busy_cpus=tuple(
            (end.cpu_seconds - before.cpu_seconds) / max(end.seconds - before.seconds, 1e-9)
            for before, end in itertools.pairwise(ends)
        ),
        loop_start=next((row.seconds for row in rows if row.loops >= 1), None),
        loop_end=next((row.seconds for row in rows if row.loops >= 2), None),
        sampler_cpu_seconds=max(row.sampler_seconds for row in rows),
    )
