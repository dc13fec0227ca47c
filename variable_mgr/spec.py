"""Specifications from which a `VariableMgr` is created. They are plain data, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from cnnbench.base.job import Chooser, Job, cpu_of, greedy_by_bytes, round_robin
from cnnbench.errors import FlagError
from cnnbench.variable_mgr import modes
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, is_gpu, single
from cnnbench.variable_mgr.modes import Mode

# Specification of gradient aggregation: plain data, without TensorFlow.

# Each pack has its own reduction, and TensorFlow needs minutes to start thousands of reductions.
MOST_PACKS = 500

_Packing = TypeVar("_Packing", bound="Packing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Transformations of gradients before and after their reduction.

    Fields have the names of the flags, and are keys in records of reductions. If you add a field,
    declare it with ``field(default=..., metadata={"optional": True})``, because earlier records
    lack it.

    Attributes:
      gradient_repacking: number of flat packs into which all gradients are joined, at most 500;
        0 for no packing.
      agg_small_grads_max_bytes: largest gradient, in bytes, that is joined with others; 0 for none.
      agg_small_grads_max_group: largest number of small gradients that are joined into one.
      gradient_bucket_bytes: largest size of a bucket of joined gradients, in bytes; 0 for none.
      compact_dtype: "float16" or "bfloat16" to send 16-bit gradients; None sends float32.
      allreduce_merge_scope: number of consecutive tensors that share a name scope.
      variable_consistency: "strong", or "relaxed" to apply gradients one step late.
    """

    gradient_repacking: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 10
    compact_dtype: str | None = None
    allreduce_merge_scope: int = 1
    variable_consistency: str = "strong"
    gradient_bucket_bytes: int = dataclasses.field(default=0, metadata={"optional": True})

    @classmethod
    def of(cls: type[_Packing], flags: Mapping[str, Any], **changes: Any) -> _Packing:
        """Makes a packing from flag values by name.

        Other flags are ignored; missing ones get defaults.
        """
        values = {**flags, **changes}
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: values[name] for name in names if name in values})

    @property
    def relaxed(self) -> bool:
        """Whether gradients are applied one step late."""
        return self.variable_consistency == "relaxed"

    @property
    def joins(self) -> bool:
        """Whether gradients are joined."""
        return bool(
            self.gradient_repacking or self.agg_small_grads_max_bytes or self.gradient_bucket_bytes
        )

    def __str__(self) -> str:
        parts = []
        if self.agg_small_grads_max_bytes:
            parts.append(f"small{self.agg_small_grads_max_bytes}x{self.agg_small_grads_max_group}")
        if self.gradient_bucket_bytes:
            parts.append(f"buckets{self.gradient_bucket_bytes}")
        if self.gradient_repacking:
            parts.append(f"packs{self.gradient_repacking}")
        if self.compact_dtype:
            parts.append(self.compact_dtype)
        if self.allreduce_merge_scope > 1:
            parts.append(f"scope{self.allreduce_merge_scope}")
        if self.relaxed:
            parts.append("relaxed")
        return "+".join(parts) or "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationSpec(Packing):
    """The all-reduce, and the packing around it.

    Attributes:
      network_topology: "dgx1" or "gcp_v100", the machine whose links hierarchical copies use.
      sparse_to_dense: whether sparse gradients are made dense before they are sent.
      group_size: devices in a group of two-level algorithms; 0 for all devices of a process.
      shared_cards: whether several devices are parts of one GPU.
    """

    all_reduce: AllReduceSpec = single("copy")
    network_topology: str = "dgx1"
    sparse_to_dense: bool = False
    group_size: int = 0
    share_memory: bool = True
    communication_hint: str = "auto"
    shared_cards: bool = False

    def for_one_device(self) -> AggregationSpec:
        """The aggregation for a single device, which sends no gradients."""
        return dataclasses.replace(
            self,
            gradient_repacking=0,
            compact_dtype=None,
            agg_small_grads_max_bytes=0,
            gradient_bucket_bytes=0,
        )


# Reduction of a MirroredStrategy: plain data, without TensorFlow.

CROSS_DEVICE_OPS = ("auto", "reduction_to_one_device", "hierarchical_copy", "nccl", "ring")
COLLECTIVE = ("auto", "ring")
"""Values of `CROSS_DEVICE_OPS` that are TensorFlow's collectives, which pack tensors by bytes."""
BETWEEN_WORKERS = ("auto", "ring", "nccl")
"""Values that work between processes. There, all of them pack tensors by bytes."""


@dataclass(frozen=True, kw_only=True)
class CrossDeviceSpec:
    """Cross-device operations of a strategy.

    Attributes:
      ops: one of `CROSS_DEVICE_OPS`; "auto" is a collective operation: a ring on CPUs, NCCL on
        GPUs.
      bytes_per_pack: bytes of the tensors that a collective operation joins; 0 joins all.
      num_packs: number of packs of hierarchical copies and NCCL; 0 for no packing.
      shared_cards: whether several devices are parts of one GPU; "auto" is then a ring.
    """

    ops: str = "auto"
    bytes_per_pack: int = 0
    num_packs: int = 1
    shared_cards: bool = False

    def check(self, devices: Sequence[str]) -> None:
        """Raises FlagError for devices on which the operations fail or compute wrong sums."""
        on_gpu = all(map(is_gpu, devices))
        refuse_devices(self.ops, len(devices), on_gpu=on_gpu, shared_cards=self.shared_cards)

    def running(self, on_gpu: bool) -> str:
        """The operation that is used, as named in records; "auto" is resolved."""
        auto = "nccl" if on_gpu and not self.shared_cards else "ring"
        return auto if self.ops == "auto" else self.ops


def refuse_towers(job: Job) -> None:
    """Raises FlagError for several towers on a CPU, because the strategy uses one per process."""
    if job.device == "cpu" and job.towers_per_worker > 1:
        raise FlagError(
            "num_gpus",
            job.towers_per_worker,
            "must be 1 on CPUs, of which MultiWorkerMirroredStrategy takes one per process; "
            "start more workers",
        )


def refuse_devices(ops: str, count: int, *, on_gpu: bool, shared_cards: bool = False) -> None:
    """Raises FlagError if the operations do not support these devices.

    `shared_cards` is whether several devices are parts of one GPU.
    """
    if ops == "nccl" and not on_gpu:
        raise FlagError("cross_device_ops", ops, "needs GPUs; use ring on CPUs")
    if ops == "nccl" and shared_cards:
        reason = "NCCL refuses two devices on one card (--gpus_per_card); use ring"
        raise FlagError("cross_device_ops", ops, reason)
    if ops == "hierarchical_copy" and count > 1 and count % 2:
        # Observed in TensorFlow 2.21: on three devices with 1, 10 and 100, the sum is 11.
        raise FlagError(
            "cross_device_ops",
            ops,
            f"leaves out the last of {count} devices; it needs an even number",
        )


# Configuration of a variable manager: plain data, without TensorFlow.

REDUCTIONS = ("mean", "sum")
PARAMETER_DEVICES = ("cpu", "towers")
PS_STRATEGIES = ("greedy_bytes", "round_robin")
CACHING_POLICIES = ("none", "consumer", "cpu")


class InitializerLike(Protocol):
    """Interface of initializers; `cnnbench.models.spec.Initializer` implements it.

    If `kind` is "constant", every element is `value`. If `draw` is not None, ``draw(name, seed,
    tower)`` returns the value. Otherwise values are drawn from a truncated normal distribution.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102

    @property
    def draw(self) -> Callable[[str, int, int], Any] | None: ...  # noqa: D102

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Standard deviation for a variable of this shape, before truncation at two of it."""


class VariableLike(Protocol):
    """Interface of declared variables, such as `models.spec.VariableSpec`.

    `bytes` is the size as float32.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def initializer(self) -> InitializerLike: ...  # noqa: D102
    @property
    def trainable(self) -> bool: ...  # noqa: D102
    @property
    def fits_16_bits(self) -> bool: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class VariableMgrSpec:
    """Configuration of a variable manager.

    Attributes:
      devices: full device string of each tower, such as
        "/job:localhost/replica:0/task:0/device:GPU:0"; towers may share a device.
      cpu_device: full device string of the CPU for parameter_device "cpu".
      parameter_device: "cpu" puts shared variables and reductions on `cpu_device`;
        "towers" spreads shared variables greedily by bytes over the tower devices
        and reduces tensor i on tower device i mod N.
      ps_devices: full device strings of the CPUs of the ps tasks. If there are any, shared
        variables are stored only there.
      ps_strategy: "greedy_bytes", a variable goes to the ps task with the fewest bytes so far, or
        "round_robin".
      variable_caching: how often a step copies a ps variable. "consumer": once for each device that
        computes with it. "cpu": once for each worker, to its CPU. "none": at every read.
      variable_dtype: dtype of stored variables. Variables that need more than 16 bits are float32.
      reduction: "mean" or "sum" of the gradients over towers.
      staged: whether a step uses the variable values that the previous step read.
      job: all tasks of the run; `devices` may contain only some of its towers. None for a run in
        one process.
    """

    variable_update: str
    devices: tuple[str, ...]
    cpu_device: str
    parameter_device: str = "cpu"
    ps_devices: tuple[str, ...] = ()
    ps_strategy: str = "greedy_bytes"
    variable_caching: str = "none"
    variable_dtype: str = "float32"
    reduction: str = "mean"
    staged: bool = False
    aggregation: AggregationSpec = field(default_factory=AggregationSpec)
    cross_device: CrossDeviceSpec = field(default_factory=CrossDeviceSpec)
    seed: int = 0
    job: Job | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise FlagError("num_gpus", 0, "a variable manager needs at least one tower device")
        for flag, value, choices in (
            ("gradient_reduction", self.reduction, REDUCTIONS),
            ("local_parameter_device", self.parameter_device, PARAMETER_DEVICES),
            ("ps_strategy", self.ps_strategy, PS_STRATEGIES),
            ("variable_caching", self.variable_caching, CACHING_POLICIES),
        ):
            if value not in choices:
                raise FlagError(flag, value, f"must be one of {', '.join(choices)}")

    @cached_property
    def mode(self) -> Mode:
        """The mode that `variable_update` names."""
        return modes.find(self.variable_update)

    @property
    def homes(self) -> tuple[str, ...]:
        """The devices over which shared variables are spread."""
        if self.ps_devices:
            return self.ps_devices
        return (self.cpu_device,) if self.parameter_device == "cpu" else self.devices

    def home_chooser(self) -> Chooser:
        """A function that assigns shared variables to `homes`. Use one for the whole run."""
        in_turn = self.ps_devices and self.ps_strategy == "round_robin"
        return round_robin(self.homes) if in_turn else greedy_by_bytes(self.homes)

    def caching_device(self, reader: str) -> str | None:
        """The device on which a shared variable is cached for operations on `device`.

        None without a cache.
        """
        if not self.ps_devices or self.variable_caching == "none":
            return None
        return reader if self.variable_caching == "consumer" else cpu_of(reader)

    @property
    def reduction_scale(self) -> float | None:
        """Factor that turns a sum over towers into the reduction; None when it is 1."""
        if self.reduction == "sum" or self.num_towers == 1:
            return None
        return 1.0 / self.num_towers

    @property
    def num_towers(self) -> int:
        """Towers of the whole job, over which gradients are reduced."""
        return len(self.devices) if self.job is None else self.job.num_towers

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices of all towers of the job; some may be in the steps of other workers."""
        return self.devices if self.job is None else self.job.tower_devices

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """A CPU of every process with some of `devices`; `cpu_device` if there is one process."""
        if self.job is None or not self.job.in_cluster:
            return (self.cpu_device,)
        return tuple(dict.fromkeys(map(cpu_of, self.devices)))
