"""Job, task and device of each part of a run, as strings; does not load TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from cnnbench.errors import FlagError

LOCAL_JOB = "localhost"
DEVICE_KINDS = ("cpu", "gpu")
STRATEGIES = ("round_robin", "greedy_bytes")
CACHING_POLICIES = ("none", "consumer", "cpu")


def device_string(job: str, task: int, kind: str, index: int) -> str:
    """A full device string, such as "/job:ps/replica:0/task:1/device:CPU:0".

    Args:
      job: name of the job.
      task: number within the job.
      kind: "cpu" or "gpu".
      index: number of the device in its task.
    """
    return f"/job:{job}/replica:0/task:{task}/device:{kind.upper()}:{index}"


Chooser: TypeAlias = Callable[[int], str]
"""Returns the device for the next variable, given its bytes; remembers earlier choices."""


class RoundRobin:
    """Hands out the devices in turn, beginning with the first.

    Raises:
      ValueError: for no devices.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._next = 0

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable, whatever its size."""
        device = self._devices[self._next % len(self._devices)]
        self._next += 1
        return device


class GreedyByBytes:
    """Hands out the device with the fewest bytes so far, the first of equals.

    Raises:
      ValueError: for no devices.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = _non_empty(devices)
        self._load = [0] * len(self._devices)

    def __call__(self, num_bytes: int) -> str:
        """The device for the next variable.

        Raises:
          ValueError: for a negative number of bytes.
        """
        if num_bytes < 0:
            raise ValueError(f"a variable cannot have {num_bytes} bytes")
        lightest = self._load.index(min(self._load))
        self._load[lightest] += num_bytes
        return self._devices[lightest]


@dataclass(frozen=True, kw_only=True)
class DeploymentConfig:
    """Towers, jobs and tasks of a run, and the device of everything in it.

    The idea is that of TF-slim's model_deploy. Unlike there, negative numbers are
    refused, every tower is placed explicitly (tower i on device i, also when there
    is one tower or towers are on the CPU), and the chooser of variable devices is
    one object for the whole run.

    Attributes:
      num_towers: towers of each worker.
      device: "cpu" or "gpu", the kind of the towers' devices.
      num_workers: worker tasks; more than one, or any ps task, makes it a cluster.
      task: the worker task this process is, from 0.
      num_ps: parameter-server tasks.
      worker_job, ps_job: names of the jobs in a cluster.
      shared_variables: whether all workers read the same variables, which must
        then be on ps tasks when there are several workers.
      ps_strategy: "round_robin" or "greedy_bytes": how variables go to ps tasks.
      variable_caching: "none"; "consumer": a ps variable is cached on the device
        that reads it; "cpu": on this worker's CPU.

    Raises:
      FlagError: for values that are out of range or do not fit together.
    """

    num_towers: int = 1
    device: str = "gpu"
    num_workers: int = 1
    task: int = 0
    num_ps: int = 0
    worker_job: str = "worker"
    ps_job: str = "ps"
    shared_variables: bool = True
    ps_strategy: str = "greedy_bytes"
    variable_caching: str = "none"

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_cluster()
        _check_choice("device", self.device, DEVICE_KINDS)
        _check_choice("ps_strategy", self.ps_strategy, STRATEGIES)
        _check_choice("variable_caching", self.variable_caching, CACHING_POLICIES)

    def _check_numbers(self) -> None:
        for flag, value, least in (
            ("num_gpus", self.num_towers, 1),
            ("worker_hosts", self.num_workers, 1),
            ("ps_hosts", self.num_ps, 0),
            ("task_index", self.task, 0),
        ):
            if value < least:
                raise FlagError(flag, value, f"the number must be at least {least}")
        if self.task >= self.num_workers:
            raise FlagError(
                "task_index", self.task, f"must be less than the {self.num_workers} worker tasks"
            )

    def _check_cluster(self) -> None:
        if self.shared_variables and self.num_workers > 1 and self.num_ps == 0:
            raise FlagError(
                "ps_hosts", 0, f"{self.num_workers} workers that share variables need ps tasks"
            )
        if not self.in_cluster:
            return
        for flag, job in (("worker_job", self.worker_job), ("ps_job", self.ps_job)):
            if not job:
                raise FlagError(flag, job, "a cluster needs a name for its worker and ps jobs")
        if self.worker_job == self.ps_job:
            raise FlagError("ps_job", self.ps_job, "must differ from the name of the worker job")

    @property
    def in_cluster(self) -> bool:
        """Whether there is more than this process."""
        return self.num_workers > 1 or self.num_ps > 0

    def tower_device(self, tower: int) -> str:
        """The device of a tower of this worker.

        Raises:
          ValueError: for a tower that does not exist.
        """
        return self._worker_device(self.device, self._checked(tower))

    def tower_devices(self) -> tuple[str, ...]:
        """The devices of all towers of this worker."""
        return tuple(self.tower_device(tower) for tower in range(self.num_towers))

    def tower_scope(self, tower: int) -> str:
        """Name scope of a tower's ops: empty for a single tower, which needs no prefix.

        Raises:
          ValueError: for a tower that does not exist.
        """
        self._checked(tower)
        return f"tower_{tower}" if self.num_towers > 1 else ""

    def cpu_device(self) -> str:
        """This worker's first CPU."""
        return self._worker_device("cpu", 0)

    def inputs_device(self) -> str:
        """Where input pipelines run: this worker's CPU."""
        return self.cpu_device()

    def optimizer_device(self) -> str:
        """Where optimizer state that belongs to no variable is: this worker's CPU."""
        return self.cpu_device()

    @cached_property
    def variables_device(self) -> Chooser:
        """Chooses the device of each variable, the same chooser on every access.

        Variables are spread over the ps tasks, or all on this worker's CPU when
        there are none.
        """
        if self.num_ps == 0:
            return RoundRobin([self.cpu_device()])
        homes = [device_string(self.ps_job, task, "cpu", 0) for task in range(self.num_ps)]
        return RoundRobin(homes) if self.ps_strategy == "round_robin" else GreedyByBytes(homes)

    def caching_device(self, reader: str) -> str | None:
        """Where a variable is cached for ops on device `reader`; None for no cache.

        Without ps tasks variables are local already and never cached.
        """
        if self.num_ps == 0 or self.variable_caching == "none":
            return None
        return reader if self.variable_caching == "consumer" else self.cpu_device()

    def _worker_device(self, kind: str, index: int) -> str:
        job = self.worker_job if self.in_cluster else LOCAL_JOB
        return device_string(job, self.task, kind, index)

    def _checked(self, tower: int) -> int:
        if not 0 <= tower < self.num_towers:
            raise ValueError(f"tower {tower}: there are {self.num_towers} towers, from 0")
        return tower


def _check_choice(flag: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise FlagError(flag, value, f"must be one of {', '.join(choices)}")


def _non_empty(devices: Sequence[str]) -> tuple[str, ...]:
    if not devices:
        raise ValueError("no devices to choose from")
    return tuple(devices)
