"""Describes a job of several processes, with its tasks and devices.

A run in one process is a job with one task. In a cluster, each process is one task; the
descriptions of all processes differ only in `task`.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cnnbench.errors import FlagError


def cpu_of_device(device: str) -> str:
    """Name of the first CPU in the process to which a device belongs.

    For a short device name, such as "GPU:1", the result is also short.
    """
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


def is_cpu(device: str) -> bool:
    """Whether a device name, such as "CPU:0" or "/task:0/device:CPU:0", is the name of a CPU."""
    return "CPU:" in device.upper()


LOCAL = "localhost"
WORKER = "worker"
PS = "ps"
CONTROLLER = "controller"

DEVICE_KINDS = ("cpu", "gpu")

HOST = r"[^\s:,/\[\]]+"
"""Pattern of host names."""

LARGEST_PORT = 65535

_ADDRESS = re.compile(rf"(\[[0-9A-Fa-f:.%]+\]|{HOST}):[0-9]{{1,5}}")


@dataclass(frozen=True, order=True)
class Task:
    """A process in a job of TensorFlow processes, written as "worker:1", for example."""

    job: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    def device(self, kind: str, index: int = 0) -> str:
        """Full name of a device of this task, such as "/job:ps/replica:0/task:1/device:CPU:0"."""
        process = f"/job:{self.tensorflow_job}/replica:0/task:{self.index}"
        return f"{process}/device:{kind.upper()}:{index}"

    @property
    def tensorflow_job(self) -> str:
        """The job name of this task in TensorFlow, where a controller is called "chief".

        ParameterServerStrategy requires this name of the coordinating process.
        """
        return "chief" if self.job == CONTROLLER else self.job


@dataclass(frozen=True, kw_only=True)
class Job:
    """All tasks, towers (model replicas) and devices of a run, as in model_deploy of TF-slim.

    Tower numbers are unique in the job: worker 0 has the first `towers_per_worker` towers, worker 1
    the next ones. FlagError for addresses that are malformed or duplicate, a task that is not in
    the job, and values out of range.

    Attributes:
      task: this process.
      worker_addresses, ps_addresses: host:port of each task; empty for a run in one process.
      controller_address: host:port of a separate process without towers that drives the workers;
        None if worker 0 drives them.
      client_per_worker: whether every worker builds and runs the step of its own towers (connected
        by collectives). Otherwise one process, the chief, builds the step of all towers and runs it
        on the other processes, which act as servers.
      device: "cpu" or "gpu", the kind of the towers' devices.
      device_order: device index for each tower of a worker; 0, 1, 2, ... if empty.
    """

    task: Task = Task(LOCAL)
    worker_addresses: tuple[str, ...] = ()
    ps_addresses: tuple[str, ...] = ()
    controller_address: str | None = None
    client_per_worker: bool = False
    towers_per_worker: int = 1
    device: str = "gpu"
    device_order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.towers_per_worker < 1:
            raise FlagError("num_gpus", self.towers_per_worker, "the number must be at least 1")
        numbers = list(range(self.towers_per_worker))
        if sorted(self.device_order or numbers) != numbers:
            reason = f"must order {self.towers_per_worker} devices"
            raise ValueError(f"device_order={self.device_order}: {reason}")
        if self.device not in DEVICE_KINDS:
            raise FlagError("device", self.device, f"must be one of {', '.join(DEVICE_KINDS)}")
        if self.in_cluster:
            self._check_addresses()
        self._check_task()

    def _check_addresses(self) -> None:
        if not self.worker_addresses:
            reason = "a job of several processes needs the addresses of its workers"
            raise FlagError("worker_hosts", "", reason)
        addresses = [self.address(task) for task in self.tasks]
        repeated = Counter(addresses)
        for task, address in zip(self.tasks, addresses, strict=True):
            reason = "" if is_address(address) else f"{address!r} is not of the form host:port"
            if repeated[address] > 1:
                reason = reason or f"{address} is given to two tasks"
            if reason:
                raise FlagError(_hosts_flag_of(task), self.addresses_of(task.job), reason)

    def _check_task(self) -> None:
        job, index = self.task.job, self.task.index
        if not self.in_cluster:
            if self.task.job in (WORKER, PS, CONTROLLER):
                reason = f"needs --{_hosts_flag_of(self.task)}, the addresses of that job"
                raise FlagError("job_name", job, reason)
            return
        mine = self.addresses_of(job)
        if not mine:
            there = ", ".join(dict.fromkeys(task.job for task in self.tasks))
            raise FlagError("job_name", job, f"the job has no {job} task, only {there}")
        if not 0 <= index < len(mine):
            reason = f"--{_hosts_flag_of(self.task)} has tasks 0 to {len(mine) - 1}"
            raise FlagError("task_index", index, reason)

    # Tasks.

    @property
    def in_cluster(self) -> bool:
        """Whether the tasks have host:port addresses, as even a cluster of one worker has."""
        return bool(self.worker_addresses or self.ps_addresses or self.controller_address)

    @property
    def workers(self) -> tuple[Task, ...]:
        """The tasks that train on towers. Without a cluster, only this process."""
        if not self.in_cluster:
            return (self.task,)
        return tuple(Task(WORKER, index) for index in range(len(self.worker_addresses)))

    @property
    def ps(self) -> tuple[Task, ...]:
        """The parameter servers: the tasks that store variables."""
        return tuple(Task(PS, index) for index in range(len(self.ps_addresses)))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, in this order: the controller (if any), the workers, the ps tasks."""
        controller = (Task(CONTROLLER),) if self.controller_address else ()
        return (*controller, *self.workers, *self.ps)

    @property
    def chief(self) -> Task:
        """The task that prints, saves checkpoints and ends the job: the controller, or worker 0."""
        return self.tasks[0]

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, which the only process of a run always is."""
        return self.task == self.chief

    @property
    def is_server_only(self) -> bool:
        """Whether this process runs no training step itself, but operations for the chief."""
        if self.client_per_worker and self.in_cluster:
            return self.task.job != WORKER
        return not self.is_chief

    @property
    def peers(self) -> tuple[Task, ...]:
        """All tasks of the job except this process."""
        return tuple(task for task in self.tasks if task != self.task)

    def addresses_of(self, job: str) -> tuple[str, ...]:
        """The addresses of all tasks of a job name such as "worker", by index; may be empty."""
        controller = (self.controller_address,) if self.controller_address else ()
        addresses = {WORKER: self.worker_addresses, PS: self.ps_addresses, CONTROLLER: controller}
        return addresses.get(job, ())

    def address(self, task: Task) -> str:
        """The host:port address of a task in a cluster."""
        return self.addresses_of(task.job)[task.index]

    def named(self, task: Task) -> str:
        """The name and the address of a task, for messages: "worker:1 (host:port)"."""
        return f"{task} ({self.address(task)})" if self.in_cluster else "the run"

    def states_text(self, states: Mapping[Task, object]) -> str:
        """The names, addresses and states of tasks, for messages."""
        return "; ".join(f"{self.named(task)}: {state}" for task, state in states.items())

    @property
    def hosts_by_job(self) -> dict[str, list[str]]:
        """The addresses of all tasks by job name, as `tf.train.ClusterSpec` expects them."""
        tasks = self.tasks if self.in_cluster else ()
        return {task.tensorflow_job: list(self.addresses_of(task.job)) for task in tasks}

    @property
    def num_machines(self) -> int:
        """Number of machines that train. Different host names count as different machines."""
        return len({host_and_port(address)[0] for address in self.worker_addresses}) or 1

    # Towers.

    @property
    def num_workers(self) -> int:
        """Number of workers: the tasks that train on towers."""
        return len(self.workers)

    @property
    def num_towers(self) -> int:
        """Number of towers in the whole job."""
        return self.num_workers * self.towers_per_worker

    @property
    def own_towers(self) -> range:
        """Numbers of the towers whose training step this process builds; none in a server."""
        if self.is_server_only:
            return range(0)
        if not self.client_per_worker:
            return range(self.num_towers)
        first = self.task.index * self.towers_per_worker
        return range(first, first + self.towers_per_worker)

    @property
    def own_workers(self) -> tuple[Task, ...]:
        """The workers to which the `own_towers` of this process belong."""
        if self.is_server_only:
            return ()
        return (self.task,) if self.client_per_worker else self.workers

    def devices_of(self, *workers: Task) -> tuple[str, ...]:
        """Full names of the devices of the given workers, in the order of their towers."""
        order = self.device_order or range(self.towers_per_worker)
        return tuple(worker.device(self.device, number) for worker in workers for number in order)

    @property
    def tower_devices(self) -> tuple[str, ...]:
        """Full names of the devices on which all towers in the job run."""
        return self.devices_of(*self.workers)

    @property
    def own_tower_devices(self) -> tuple[str, ...]:
        """Full names of the devices on which the `own_towers` of this process run."""
        return self.devices_of(*self.own_workers)

    def with_devices(self, device: str, order: Sequence[int] = ()) -> Job:
        """Returns a copy whose towers are on devices of kind `device`, in this `device_order`."""
        return dataclasses.replace(self, device=device, device_order=tuple(order))

    # CPUs.

    @property
    def cpu_device(self) -> str:
        """Full name of the first CPU in this process."""
        return self.task.device("cpu")

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """Full name of the first CPU in each worker."""
        return tuple(task.device("cpu") for task in self.workers)

    @property
    def ps_devices(self) -> tuple[str, ...]:
        """Full name of the first CPU in each parameter server, where the variables are placed."""
        return tuple(task.device("cpu") for task in self.ps)


def split_hosts(text: str | None) -> tuple[str, ...]:
    """Splits the comma-separated addresses of a flag such as --worker_hosts. Spaces are ignored."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def is_address(text: str) -> bool:
    """Whether a text is a valid host:port address."""
    return bool(_ADDRESS.fullmatch(text)) and 1 <= host_and_port(text)[1] <= LARGEST_PORT


def host_and_port(address: str) -> tuple[str, int]:
    """Splits a host:port address into host and port. An IPv6 host is returned without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _hosts_flag_of(task: Task) -> str:
    return "controller_host" if task.job == CONTROLLER else f"{task.job}_hosts"
