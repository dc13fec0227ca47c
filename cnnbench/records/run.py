"""`RunRecord`, the record of a run, and the dataclasses of its sections.

The JSON document also contains the computed `summary()`, which is ignored when a record is read.
During a run, the measurements are collected in a `cnnbench.records.measurements.Measurements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.steady_state import SteadyState, find_steady_state
from cnnbench.base.text import count_text, exact_number
from cnnbench.errors import text_of
from cnnbench.records.codec import (
    ABSENT,
    AMOUNTS,
    OPTIONAL,
    TIME,
    Document,
    JsonKeys,
    Key,
    check_amounts_in_range,
    choice_metadata,
    index_of_invalid_amount,
    json_document,
    parse_start_time,
    to_floats,
)
from cnnbench.records.endings import ENDINGS
from cnnbench.records.input import InputStage, SkippedRecords
from cnnbench.records.metric import Summary, compute_summary
from cnnbench.records.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """The exception that made a run fail.

    Attributes:
      type: name of the exception's class.
      message: text of the exception.
    """

    type: str
    message: str

    @classmethod
    def from_exception(cls, error: BaseException) -> ErrorInfo:
        """Creates the info from an exception: the name of its class and its text."""
        return cls(type=type(error).__name__, message=text_of(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Size of the network. A multiply-add of a convolution or dense layer counts as 2 FLOPs.

    Attributes:
      name: value of --model.
      parameters, trainable_parameters: numbers of weights: all, and those that are updated.
      forward_flops_per_image: FLOPs of the forward pass of one image.
      training_flops_per_image: FLOPs of forward and backward pass of one image.
      recomputed_flops_per_image: with --recompute, FLOPs of one image that the backward pass
        repeats; training_flops_per_image does not include them. Absent in other runs.
    """

    name: str
    parameters: int
    trainable_parameters: int
    forward_flops_per_image: int
    training_flops_per_image: int
    recomputed_flops_per_image: int | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        check_amounts_in_range("model", self)


EMULATED_GPU = "emulated_gpu"
"""The kind of device that records contain for emulated GPUs, which compute on the host's CPUs."""


def device_kind_for_record(kind: str, facts: Mapping[str, Any]) -> str:
    """Returns the device kind for a record: "cpu", "gpu", or "emulated_gpu" for emulated GPUs."""
    return EMULATED_GPU if kind == "gpu" and facts.get("emulated_gpus") else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RingDevices:
    """Kind and names of the devices of an all-reduce measurement, in ring order.

    Attributes:
      device: "cpu", "gpu" or "emulated_gpu".
      devices: names of all devices, in ring order.
    """

    device: str
    devices: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Kind of the devices: "cpu", or "gpu" for real and for emulated GPUs."""
        return "cpu" if self.device == "cpu" else "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(RingDevices):
    """Where the run computed: kind of device, devices of all towers, gradient aggregation.

    Attributes:
      devices: names of the devices of all towers in the step that this process builds: the towers
        of this worker if each worker has its own step, otherwise of the whole job.
      num_towers: number of towers of the whole job.
      num_workers: number of workers of the job.
      variable_update: value of --variable_update.
      all_reduce: all-reduce algorithms in use, one per range of sizes; empty if nothing is reduced.
      communication: implementations of TensorFlow's collectives between the devices: "ring",
        "nccl" or both; None without collectives.
      variables: number of variables of the network; None if the run ended before their creation.
      variable_copies: number of copies of all variables together.
      reduction_operations: number of operations between gradients and updates in the traced step;
        None if nothing is trained.
    """

    num_towers: int
    num_workers: int
    variable_update: str
    all_reduce: tuple[str, ...] = ()
    variables: int | None = field(default=None, metadata=OPTIONAL)
    variable_copies: int | None = field(default=None, metadata=OPTIONAL)
    reduction_operations: int | None = field(default=None, metadata=OPTIONAL)
    communication: tuple[str, ...] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Number of images per step: on one device, and of the whole job.

    Attributes:
      per_device: images per step on one device.
      global_: images per step of the whole job or, with asynchronous updates, of one worker.
      requested_per_device: with --find_batch_size, the requested images per device; only
        `per_device` images fit into memory. Absent in other runs.
    """

    per_device: int
    global_: int
    requested_per_device: int | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        for key, images in (("per_device", self.per_device), ("global", self.global_)):
            if images < 1:
                raise ValueError(f"batch.{key}: {images} is less than 1")
        asked = self.requested_per_device
        if asked is not None and asked < self.per_device:
            raise ValueError(f"batch.requested_per_device: {asked} is less than {self.per_device}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSeconds:
    """Seconds that each phase of a run's start took; None for a phase that was not reached.

    Attributes:
      import_: seconds to import TensorFlow.
      build: seconds to create variables and input and to trace the step.
      first_step: seconds of the first step, which is usually a warm-up step.
    """

    import_: float | None = None
    build: float | None = None
    first_step: float | None = None

    def __post_init__(self) -> None:
        check_amounts_in_range("startup_seconds", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of one evaluation of the model during or after training.

    Attributes:
      global_step: number of training steps that led to the evaluated weights.
      top_1, top_5: top-1 and top-5 accuracy, 0..1; None if the model has no such accuracy.
      loss: mean loss over the examples; None if not computed.
      examples: number of examples, without padding and skipped records.
      images_per_sec: mean examples per second.
      metrics: the model's other metrics by name.
      loop_seconds: seconds of the timed loop before this evaluation, without other evaluations;
        None for evaluations outside of the timed loop.
      wall_seconds: seconds from the start of the timed loop to the end of this evaluation's last
        step (or of its metrics, if this process computes them); None if loop_seconds is None.
    """

    global_step: int
    top_1: float | None = None
    top_5: float | None = None
    loss: float | None = None
    examples: int
    images_per_sec: float
    metrics: Mapping[str, float] = field(default_factory=dict, metadata=OPTIONAL)
    loop_seconds: float | None = field(default=None, metadata=OPTIONAL)
    wall_seconds: float | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", to_floats("evaluation.metrics", self.metrics))

    def metric_value(self, metric: str) -> float | None:
        """Returns the value of "loss", "top_1", "top_5" or a metric in `metrics`, or None."""
        own = {"loss": self.loss, "top_1": self.top_1, "top_5": self.top_5}
        return own[metric] if metric in own else self.metrics.get(metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of a run other than its step times. Unknown values are None.

    Attributes:
      loop_seconds: wall time of the timed loop, without evaluations and time slices of other
        processes.
      loop_images: images that the whole job processed in the timed loop.
      loop_user_seconds, loop_system_seconds: CPU time of the timed loop in user mode and in the
        kernel, of all threads of this process.
      input_wait_seconds: part of loop_seconds in which the job waited for input.
      peak_memory_bytes: largest memory use: of the fullest GPU, or on CPUs of this process.
      peak_flops_per_sec: peak FLOP/s of all devices of the job together.
      peak_flops_source: where the value of peak_flops_per_sec comes from.
      cpu_energy_joules, gpu_energy_joules: energy of processors and of GPUs in the timed loop.
      energy_source: the counters from which the energy was read.
      estimated_memory_bytes: estimate of peak_memory_bytes before the run.
      replica_checks: number of comparisons of all copies of the variables; None without
        --check_replica_consistency.
    """

    loop_seconds: float | None = None
    loop_images: int | None = None
    loop_user_seconds: float | None = field(default=None, metadata=OPTIONAL)
    loop_system_seconds: float | None = field(default=None, metadata=OPTIONAL)
    input_wait_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_flops_per_sec: float | None = None
    peak_flops_source: str | None = None
    cpu_energy_joules: float | None = field(default=None, metadata=OPTIONAL)
    gpu_energy_joules: float | None = field(default=None, metadata=OPTIONAL)
    energy_source: str | None = field(default=None, metadata=OPTIONAL)
    replica_checks: int | None = field(default=None, metadata=OPTIONAL)
    estimated_memory_bytes: int | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        check_amounts_in_range("measured", self)

    @property
    def loop_cpu_seconds(self) -> float | None:
        """CPU time of the timed loop, in user mode and in the kernel together; None if unknown."""
        parts = (self.loop_user_seconds, self.loop_system_seconds)
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """Memory and CPUs that this process used over time, with about one sample per second.

    If a run has more than 600 samples, consecutive samples are merged: the merged sample has the
    last time, the largest memory and the mean number of CPUs.

    Attributes:
      seconds: time of each sample since the start of the run; increasing.
      memory_bytes: resident memory of this process.
      device_memory_bytes: memory of tensors on the fullest GPU of this process; empty
        without GPUs.
      busy_cpus: mean number of CPUs that this process used since the previous sample or, for the
        first sample, since the start of the run.
      loop_start, loop_end: `seconds` at the start and at the end of the timed loop (including
        evaluations); None if the loop did not begin or did not end.
      sampler_cpu_seconds: CPU time of the thread that took the samples.
    """

    seconds: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    device_memory_bytes: tuple[float, ...] = ()
    busy_cpus: tuple[float, ...]
    loop_start: float | None = None
    loop_end: float | None = None
    sampler_cpu_seconds: float

    def __post_init__(self) -> None:
        check_amounts_in_range("resources", self)
        samples = len(self.seconds)
        if not samples:
            raise ValueError("resources.seconds: must contain a sample")
        if list(self.seconds) != sorted(self.seconds):
            raise ValueError("resources.seconds: must increase")
        for key in ("memory_bytes", "device_memory_bytes", "busy_cpus"):
            values = getattr(self, key)
            if len(values) != samples and (values or key != "device_memory_bytes"):
                raise ValueError(
                    f"resources.{key}: must contain a value for each of {samples} samples"
                )
        for key in ("seconds", "memory_bytes", "device_memory_bytes", "busy_cpus"):
            values = getattr(self, key)
            if (index := index_of_invalid_amount(values, allow_zero=True)) is not None:
                raise ValueError(f"resources.{key}[{index}]: {values[index]} is out of range")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Values of the automatic loss scale, and the steps that were skipped because of it.

    Attributes:
      start: the loss scale before the first step.
      end: the loss scale after the last step.
      warmup_skipped_steps, skipped_steps: numbers, from 1, of the skipped warm-up steps and of the
        skipped timed steps, whose gradients were not finite (in independent mode: on any device).
    """

    start: float
    end: float
    warmup_skipped_steps: tuple[int, ...] = ()
    skipped_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_amounts_in_range("loss_scaling", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionNote:
    """A finding about the machine, such as load, that may have distorted the results.

    Attributes:
      id: name of the check, as in --quiet_conditions.
      when: "before" the steps or "during" the timed loop.
      text: description of the finding, with numbers.
      advice: what the user can do about the finding.
    """

    id: str
    when: str = field(metadata=choice_metadata(("before", "during")))
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions on the machine during the run, such as load. Quantities that could not be measured
    are absent.

    Attributes:
      before: quantities from the start of the run to its first step, by name.
      during: quantities during the timed loop, by name; empty if the loop was not reached.
      notes: findings of the checks, including silenced findings.
    """

    before: Mapping[str, Any]
    during: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[ConditionNote, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTaking:
    """How the steps of a process were interleaved with the steps of other processes.

    Attributes:
      turn_seconds: requested length of a time slice; a slice ends when the running step ends.
      starts: numbers, from 1, of the items of step_seconds that began a time slice.
      waited_seconds: wall time between time slices; neither step times nor the loop time include
        it.
      waited_cpu_seconds: CPU time of this process while it waited.
    """

    turn_seconds: float
    starts: tuple[int, ...]
    waited_seconds: float
    waited_cpu_seconds: float

    def __post_init__(self) -> None:
        check_amounts_in_range("turns", self)
        if list(self.starts) != sorted({*self.starts}) or any(n < 1 for n in self.starts):
            raise ValueError(f"turns.starts: {list(self.starts)} are not increasing step numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAddress:
    """Name and address of one process of a job.

    Attributes:
      task: name such as "worker:1".
      address: host:port.
    """

    task: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """Number of steps and images that one worker contributed to the timed loop.

    Attributes:
      task: name such as "worker:1".
      steps: timed steps in which the worker took part; with asynchronous workers, its own updates.
      images: images that the worker processed.
      lost: whether the worker failed or was lost during the run.
    """

    task: str
    steps: int
    images: int
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Processes of a job, and how many steps and images each worker contributed.

    Attributes:
      tasks: all processes, the chief first.
      workers: the processes with towers, and what each contributed.
      staleness: with asynchronous workers, the number of updates by other workers between a
        worker's read and its update, for each timed step; otherwise empty.
      messages_per_step, bytes_per_step: messages between all processes in a step, and their bytes,
        counted in the traced graph without control signals. None if nothing was traced, or if the
        numbers depend on values.
    """

    tasks: tuple[TaskAddress, ...]
    workers: tuple[WorkerShare, ...]
    staleness: tuple[int, ...] = field(default=())
    messages_per_step: int | None = field(default=None, metadata=OPTIONAL)
    bytes_per_step: int | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if any(number < 0 for number in self.staleness):
            raise ValueError("cluster.staleness: no number may be negative")
        steps = sum(worker.steps for worker in self.workers)
        if self.staleness and len(self.staleness) != steps:
            raise ValueError(
                f"cluster.staleness: {len(self.staleness)} values for {steps} steps of workers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A metric of evaluations and the value of the metric at which training ends.

    Attributes:
      metric: "loss", "top_1", "top_5" or a name among `Evaluation.metrics`.
      value: the value of the metric that ends the training.
      lower_is_better: whether the metric must be at most `value`; otherwise at least.
    """

    metric: str
    value: float
    lower_is_better: bool = False

    def is_reached_by(self, value: float | None) -> bool:
        """Whether a value is at least as good as the target. NaN and None never reach it."""
        if value is None:
            return False
        return value <= self.value if self.lower_is_better else value >= self.value

    def __str__(self) -> str:
        return f"{self.metric}:{exact_number(self.value)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledProcess:
    """A process of `cnnbench ab` that a signal or a time-out ended.

    Attributes:
      side: "a" or "b".
      how: how the process ended, such as "killed by SIGKILL".
    """

    side: str = field(metadata=choice_metadata(("a", "b")))
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlace:
    """Position of a process in `cnnbench ab`: whether the process measured A or B, and its pair.

    Attributes:
      side: "a" or "b".
      seed: seed of the experiment.
      pair: number of its pair, from 1; absent for burn-in.
      position: position in the pair, 1 or 2; absent for burn-in.
      lost: killed processes of earlier attempts at this pair; absent if there are none.
      chose_steps: true if `cnnbench ab` chose the number of timed steps from the noise. Then the
        number is no part of the configuration. Absent otherwise.
    """

    side: str = field(metadata=choice_metadata(("a", "b")))
    seed: int
    pair: int | None = field(default=None, metadata=ABSENT)
    position: int | None = field(default=None, metadata=ABSENT)
    lost: tuple[KilledProcess, ...] | None = field(default=None, metadata=ABSENT)
    chose_steps: bool | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlace:
    """Position of a process in a `cnnbench sweep`: its suite, configuration and repetition.

    Attributes:
      suite: name of the suite.
      case: name of the configuration.
      key: hash of the configuration, 12 hexadecimal digits.
      repeat: number of the repeat, from 1.
      seed: seed of the order of the runs.
      command: argv of the sweep; absent in earlier records.
    """

    suite: str
    case: str
    key: str
    repeat: int
    seed: int
    command: tuple[str, ...] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedSpeed:
    """A row of the table of speeds that another program printed, as read from its log.

    Attributes:
      step: number of the timed step.
      images_per_sec: the printed speed, which is the mean speed of the timed steps so far.
      uncertainty, jitter: the printed values, in images per second; None if not printed.
      loss: loss of the step; None if not printed.
    """

    step: int
    images_per_sec: float
    uncertainty: float | None = None
    jitter: float | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result file of another program from which `cnnbench import` created a record.

    Attributes:
      program: program that wrote the file.
      file: name of the file, without its folder.
      sha256: digest of the file's content.
      part: number of the process in the file, from 1.
      values: values in the file, by name of the metric. All other metrics are unknown.
      printed: rows of the table of speeds in the file.
      unknown: names of flags, properties and measurements that the program does not write.
      skipped_lines: numbers of the lines that were not understood, from 1.
    """

    program: str
    file: str
    sha256: str
    part: int = 1
    values: Mapping[str, float] = field(default_factory=dict)
    printed: tuple[PrintedSpeed, ...] = ()
    unknown: tuple[str, ...] = ()
    skipped_lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", to_floats("imported.values", self.values))


def single_speed_text(is_job: bool, imported: bool = False) -> str:
    """Returns text that says that the speed of one process, or of one job of several processes,
    does not show how certain it is. `imported` is whether another program measured it, so that
    cnnbench cannot repeat it.
    """
    noun, plural = ("job", "jobs") if is_job else ("process", "processes")
    text = f"one {noun}, which cannot show how much the speed varies between {plural}"
    return text if is_job or imported else f"{text}; cnnbench run --repeats=6 measures it"


# `RunRecord`: the raw measurements of a run, and the statistics that are computed from them.

STATUSES = ("ok", "failed", "interrupted")
WARMUP_STATUSES = ("fixed", "steady", "limit")
ENDED_BY = (*ENDINGS, "stop_at")


# No slots, because `cached_property` needs a place to store the summary.
@json_document("cnnbench run --result_json=FILE")
@dataclass(frozen=True, kw_only=True)
class RunRecord(Document, Displayed):
    """The record of one run of one process (schema 1).

    Attributes:
      run_id: unique name of the run.
      started_at: start of the run, ISO 8601 with offset, UTC.
      status: "ok", "failed" or "interrupted".
      error: why the run failed; None if it did not fail.
      command: argv.
      config: every parameter, resolved, as plain JSON values.
      explicit_flags: names of the parameters that were given.
      resolved: names of the parameters for which `config` contains a computed value in place of the
        given value or the default; empty if unknown.
      model, placement, batch: None if the run ended before they were known.
      startup_seconds: durations of import, build and first step.
      warmup_step_seconds, step_seconds: wall seconds of each warm-up step, and of each timed step.
        With --steps_per_execution=N of `config`, one value for N steps: their mean.
      step_cpu_seconds: CPU seconds of all threads of this process in each timed step, one value
        for each item of step_seconds; empty if unknown.
      losses, warmup_losses: loss of each timed and each warm-up step; empty if not computed.
      latency_seconds: wall seconds of each batch that a forward-only run launched alone after its
        timed steps; empty on CPUs and in other runs.
      evaluations: evaluations in order.
      loss_scaling: None unless the loss scale was automatic.
      warmup_status: "fixed" for a given number of steps; with --warmup=auto "steady", or "limit"
        if --max_warmup_batches was reached; None if the warm-up did not end.
      conditions: None if the run ended before the conditions were checked.
      environment: properties of machine and software by name; unknown properties are absent.
      ab: position in an experiment of `cnnbench ab`; absent in other runs.
      subject: the measured code; absent if unknown.
      input_stages: speed of the input pipeline alone, by stage; empty if not measured.
      skipped_records: None unless records were skipped.
      cluster: None for a run of one process.
      sweep: position in a sweep; absent in other runs.
      target: target of --stop_at or --stop_at_top_1_accuracy; absent if there is none. Records of
        earlier versions have a target accuracy only in `config`.
      ended_by: flag that ended the timed loop before --num_batches steps; absent if no flag did.
      turns: absent unless this process was interleaved with other processes in time slices.
      resources: memory and CPUs over time; absent if they were not sampled.
      imported: the file of another program from which the record was created; absent in records of
        cnnbench's own runs.
      measured: other measurements; absent in the first versions, where all of them are unknown.
    """

    kind: ClassVar[str] = "run"
    schema: ClassVar[int] = 1
    json_keys: ClassVar[JsonKeys] = (..., Key("summary", "_summary"))

    run_id: str
    started_at: str = field(metadata=TIME)
    status: str = field(metadata=choice_metadata(STATUSES))
    error: ErrorInfo | None = None
    command: tuple[str, ...]
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...] = ()
    resolved: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
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
        default=None, metadata={**OPTIONAL, **choice_metadata(WARMUP_STATUSES)}
    )
    conditions: Conditions | None = field(default=None, metadata=OPTIONAL)
    environment: Mapping[str, Any] = field(default_factory=dict)
    ab: Annotated[Mapping[str, Any], AbPlace] | None = field(default=None, metadata=ABSENT)
    input_stages: tuple[InputStage, ...] = field(default=(), metadata=OPTIONAL)
    skipped_records: SkippedRecords | None = field(default=None, metadata=OPTIONAL)
    cluster: Cluster | None = field(default=None, metadata=OPTIONAL)
    subject: Subject | None = field(default=None, metadata=ABSENT)
    sweep: Annotated[Mapping[str, Any], SweepPlace] | None = field(default=None, metadata=ABSENT)
    turns: TurnTaking | None = field(default=None, metadata=ABSENT)
    target: Target | None = field(default=None, metadata=ABSENT)
    resources: ResourceUse | None = field(default=None, metadata=ABSENT)
    ended_by: str | None = field(default=None, metadata={**ABSENT, **choice_metadata(ENDED_BY)})
    imported: Imported | None = field(default=None, metadata=ABSENT)

    def __repr__(self) -> str:
        steps = count_text(self.steps, "timed step", "timed steps")
        return short_repr(
            self, f"{self.run_id}, {self.config.get('model')}, {self.status}, {steps}"
        )

    def __post_init__(self) -> None:
        parse_start_time(self.started_at)
        check_status(self.status, self.error)
        if self.warmup_status not in (None, *WARMUP_STATUSES):
            raise ValueError(
                f"warmup_status: {self.warmup_status!r} is none of {', '.join(WARMUP_STATUSES)}"
            )
        steps, warmup_steps = self.steps, self.warmup_steps
        for key in ("step_seconds", "warmup_step_seconds", "latency_seconds"):
            index = index_of_invalid_amount(getattr(self, key))
            if index is not None:
                low, high = AMOUNTS
                seconds = getattr(self, key)[index]
                raise ValueError(f"{key}[{index}]: {seconds} is not a time of {low} to {high} s")
        index = index_of_invalid_amount(self.step_cpu_seconds, allow_zero=True)
        if index is not None:
            seconds = self.step_cpu_seconds[index]
            raise ValueError(f"step_cpu_seconds[{index}]: {seconds} is not a CPU time")
        for key, of in (
            ("losses", steps),
            ("warmup_losses", warmup_steps),
            ("step_cpu_seconds", len(self.step_seconds)),
        ):
            if (number := len(getattr(self, key))) not in (0, of):
                raise ValueError(f"{key}: {number} values for {of} steps")
        if self.loss_scaling is not None:
            skipped = self.loss_scaling
            _check_steps("skipped_steps", skipped.skipped_steps, steps)
            _check_steps("warmup_skipped_steps", skipped.warmup_skipped_steps, warmup_steps)

    @property
    def steps_per_execution(self) -> int:
        """Number of steps that the host starts with one call (--steps_per_execution)."""
        # Records of earlier versions lack --steps_per_execution, which was always 1 then.
        return int(self.config.get("steps_per_execution") or 1)

    @property
    def steps(self) -> int:
        """Number of timed steps."""
        return len(self.step_seconds) * self.steps_per_execution

    @property
    def warmup_steps(self) -> int:
        """Number of warm-up steps."""
        return len(self.warmup_step_seconds) * self.steps_per_execution

    def summary(self) -> Summary:
        """Statistics that are computed from the raw measurements, by name."""
        return self._summary

    @cached_property
    def _summary(self) -> Summary:
        """Statistics that are computed from the raw measurements, by name."""
        return compute_summary(self)

    def condition(self, name: str) -> float | None:
        """Returns a condition during the timed loop, such as "other_cpus"; None if unknown."""
        value = None if self.conditions is None else self.conditions.during.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def last_loss(self) -> float | None:
        """Loss of the last timed step; None for runs without training."""
        if self.config.get("forward_only") or not self.losses:
            return None
        return self.losses[-1]

    def flops_per_image(self) -> int | None:
        """Returns the FLOPs of a step per image; None without a network, or if they are unknown."""
        if self.model is None or self.config.get("input_only"):
            return None
        if self.config.get("forward_only"):
            return self.model.forward_flops_per_image
        return self.model.training_flops_per_image


def check_status(status: str, error: ErrorInfo | None) -> None:
    """Raises ValueError if the status is unknown or contradicts the error of the run."""
    if status not in STATUSES:
        raise ValueError(f"status: {status!r} is none of {', '.join(STATUSES)}")
    if (status == "failed") != (error is not None):
        raise ValueError(f"error: status {status!r} with error {error!r}")


def _check_steps(key: str, numbers: tuple[int, ...], steps: int) -> None:
    if list(numbers) != sorted(set(numbers)) or not all(1 <= n <= steps for n in numbers):
        raise ValueError(
            f"loss_scaling.{key}: {list(numbers)} are not increasing step numbers from 1 to {steps}"
        )


def find_steady_state_of_run(record: RunRecord) -> SteadyState:
    """Finds the steady state in all steps of a record. Index 0 is the first warm-up step."""
    warmup = record.warmup_step_seconds
    return find_steady_state(warmup + record.step_seconds, len(warmup))
