"""Configuration of a variable manager: plain data, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cnnbench.base.jobs.devices import Chooser, cpu_of, greedy_by_bytes, round_robin
from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.modes import Mode
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec

REDUCTIONS = ("mean", "sum")
PARAMETER_DEVICES = ("cpu", "towers")
PS_STRATEGIES = ("greedy_bytes", "round_robin")
CACHING_POLICIES = ("none", "consumer", "cpu")


class InitializerLike(Protocol):
    """Interface of initializers; `cnnbench.models.spec.Initializer` implements it.

    `kind` is "constant" for `value` everywhere; any other draws from a truncated normal.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Standard deviation, before truncation at two of them, for a variable of this shape."""


class VariableLike(Protocol):
    """Interface of declared variables, such as `models.spec.VariableSpec`; `bytes` as float32."""

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
      ps_devices: full device strings of the CPUs of the ps tasks; if there are any, shared
        variables are there only.
      ps_strategy: "greedy_bytes", a variable goes to the ps task with the fewest bytes so far, or
        "round_robin".
      variable_caching: "none"; or a ps variable that a step reads is copied once for each
        device that computes with it ("consumer"), or once for each worker, to its CPU ("cpu").
      variable_dtype: dtype of stored variables; those that do not fit 16 bits are float32.
      reduction: "mean" or "sum" of the gradients over towers.
      staged: whether a step computes with the values that the step before read.
      job: all tasks of the run; `devices` may be a part of its towers. None if this process is
        the job.
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
        """The mode of that name."""
        return registry.find(self.variable_update)

    @property
    def homes(self) -> tuple[str, ...]:
        """The devices over which shared variables are spread."""
        if self.ps_devices:
            return self.ps_devices
        return (self.cpu_device,) if self.parameter_device == "cpu" else self.devices

    def home_chooser(self) -> Chooser:
        """Assigns shared variables to `homes`; one chooser serves the whole run."""
        in_turn = self.ps_devices and self.ps_strategy == "round_robin"
        return round_robin(self.homes) if in_turn else greedy_by_bytes(self.homes)

    def caching_device(self, reader: str) -> str | None:
        """Device that caches a shared variable for operations on a device; None without a cache."""
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
        """A CPU of every process that has some of `devices`, or `cpu_device` in a run of one."""
        if self.job is None or not self.job.in_cluster:
            return (self.cpu_device,)
        return tuple(dict.fromkeys(map(cpu_of, self.devices)))
