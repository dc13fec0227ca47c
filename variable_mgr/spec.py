"""Configuration of a variable manager, without importing TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cnnbench.arrays import Array
from cnnbench.base.job import Job, cpu_of_device
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.distribute import CrossDeviceSpec
from cnnbench.variable_mgr.modes import Mode
from cnnbench.variable_mgr.packing import AggregationSpec

REDUCTIONS = ("mean", "sum")
PARAMETER_DEVICES = ("cpu", "towers")
PS_STRATEGIES = ("greedy_bytes", "round_robin")
CACHING_POLICIES = ("none", "consumer", "cpu")


class InitializerLike(Protocol):
    """Interface of initializers. `cnnbench.models.spec.Initializer` implements it.

    If `kind` is "constant", every element is `value`. If `draw` is not None, ``draw(name, seed,
    tower)`` returns the value. Otherwise values are drawn from a truncated normal distribution.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102

    @property
    def draw(self) -> Callable[[str, int, int], Array] | None: ...  # noqa: D102

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Returns the standard deviation of a truncated normal for a variable of this shape.

        Values are truncated at two of these standard deviations.
        """


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
    """Configuration of a variable manager: mode, devices, and reduction of gradients.

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

    mode: Mode
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
                raise FlagError(flag, value, unknown_name_reason(value, choices))

    @property
    def variable_devices(self) -> tuple[str, ...]:
        """The devices on which shared variables are stored."""
        if self.ps_devices:
            return self.ps_devices
        return (self.cpu_device,) if self.parameter_device == "cpu" else self.devices

    def variable_device_chooser(self) -> Callable[[int], str]:
        """Creates a function from the bytes of a shared variable to its device.

        The devices are `variable_devices`. Use one function for the whole run, because it keeps
        track of earlier choices: it takes the device with the fewest bytes so far, or rotates.
        """
        if self.ps_devices and self.ps_strategy == "round_robin":
            turns = itertools.cycle(self.variable_devices)
            return lambda num_bytes: next(turns)
        loads = dict.fromkeys(self.variable_devices, 0)

        def choose(num_bytes: int) -> str:
            lightest = min(loads, key=loads.__getitem__)
            loads[lightest] += num_bytes
            return lightest

        return choose

    def caching_device(self, reader: str) -> str | None:
        """Returns the device that caches a shared variable for the device `reader`.

        Returns None if the variable is not cached.
        """
        if not self.ps_devices or self.variable_caching == "none":
            return None
        return reader if self.variable_caching == "consumer" else cpu_of_device(reader)

    @property
    def reduction_scale(self) -> float | None:
        """Factor by which the sum of gradients over towers is multiplied; None if it is 1."""
        if self.reduction == "sum" or self.num_towers == 1:
            return None
        return 1.0 / self.num_towers

    @property
    def num_towers(self) -> int:
        """Number of towers of the whole job, over which gradients are reduced."""
        return len(self.devices) if self.job is None else self.job.num_towers

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices of all towers of the job, including towers of other workers."""
        return self.devices if self.job is None else self.job.tower_devices

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """One CPU of each process that has towers; only `cpu_device` outside a cluster."""
        if self.job is None or not self.job.in_cluster:
            return (self.cpu_device,)
        return tuple(dict.fromkeys(map(cpu_of_device, self.devices)))
