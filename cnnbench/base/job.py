"""The processes of a job: their tasks, devices and free ports.

A run in one process is a job of one task. In a cluster each process is one task with the same
description but for `task`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from cnnbench.errors import BenchmarkError, FlagError

# Device names, and strategies that choose among devices; does not load TensorFlow.


def cpu_of(device: str) -> str:
    """The first CPU of a device's process; for a short name such as "GPU:1" one without process."""
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


def is_cpu(device: str) -> bool:
    """Whether a device, by its full or short name, is a (logical) CPU."""
    return "CPU:" in device.upper()


Chooser: TypeAlias = Callable[[int], str]
"""Returns the device for the next variable, given its bytes; remembers earlier choices."""


def round_robin(devices: Sequence[str]) -> Chooser:
    """Chooses the devices, at least one, in turn, beginning with the first."""
    turns = itertools.cycle(devices)
    return lambda num_bytes: next(turns)


def greedy_by_bytes(devices: Sequence[str]) -> Chooser:
    """Chooses the device with the fewest bytes so far, the first of equals."""
    loads = dict.fromkeys(devices, 0)

    def choose(num_bytes: int) -> str:
        lightest = min(loads, key=loads.__getitem__)
        loads[lightest] += num_bytes
        return lightest

    return choose


# Description of a job: its tasks, towers and devices; no TensorFlow.

LOCAL = "localhost"
WORKER = "worker"
PS = "ps"
CONTROLLER = "controller"

# ParameterServerStrategy takes no other name for the process that coordinates.
_NAME_IN_TENSORFLOW = {CONTROLLER: "chief"}

DEVICE_KINDS = ("cpu", "gpu")

HOST = r"[^\s:,/\[\]]+"
"""Pattern of the name of a host."""

LARGEST_PORT = 65535

_ADDRESS = re.compile(rf"(\[[0-9A-Fa-f:.%]+\]|{HOST}):[0-9]{{1,5}}")


@dataclass(frozen=True, order=True)
class Task:
    """One process of a job; its text is "worker:1"."""

    job: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    def device(self, kind: str, index: int = 0) -> str:
        """Full name of a device of its own, such as "/job:ps/replica:0/task:1/device:CPU:0"."""
        process = f"/job:{self.tensorflow_job}/replica:0/task:{self.index}"
        return f"{process}/device:{kind.upper()}:{index}"

    @property
    def tensorflow_job(self) -> str:
        """TensorFlow's name of the job of a task."""
        return _NAME_IN_TENSORFLOW.get(self.job, self.job)

    @classmethod
    def of_tensorflow(cls, job: str, index: int) -> Task:
        """The task of a TensorFlow job name and index."""
        names = {name: ours for ours, name in _NAME_IN_TENSORFLOW.items()}
        return cls(names.get(job, job), index)


@dataclass(frozen=True, kw_only=True)
class Job:
    """All tasks, towers and devices of a run, in one value as in TF-slim's model_deploy.

    Towers are numbered over the job: worker 0 has the first `towers_per_worker`, worker 1 the next.
    FlagError for addresses that are malformed or given twice, a task outside the job, and values
    out of range.

    Attributes:
      task: this process.
      worker_hosts, ps_hosts: host:port of each task; empty for a run of one process.
      controller_host: host:port of a process without towers that drives the workers; None where
        worker 0 does that.
      client_per_worker: whether every worker builds and runs the step of its own towers
        (collectives join them). Otherwise one process, the chief, builds the step of all towers and
        runs it on the others, which serve.
      device: "cpu" or "gpu", the kind of the towers' devices.
      device_order: number of the device of each tower of a worker; 0, 1, 2, ... if empty.
    """

    task: Task = Task(LOCAL)
    worker_hosts: tuple[str, ...] = ()
    ps_hosts: tuple[str, ...] = ()
    controller_host: str | None = None
    client_per_worker: bool = False
    towers_per_worker: int = 1
    device: str = "gpu"
    device_order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.towers_per_worker < 1:
            raise FlagError("num_gpus", self.towers_per_worker, "the number must be at least 1")
        if sorted(self.device_order or range(self.towers_per_worker)) != list(
            range(self.towers_per_worker)
        ):
            raise ValueError(f"order {self.device_order} of {self.towers_per_worker} devices")
        if self.device not in DEVICE_KINDS:
            raise FlagError("device", self.device, f"must be one of {', '.join(DEVICE_KINDS)}")
        if self.in_cluster:
            self._check_addresses()
        self._check_task()

    def _check_addresses(self) -> None:
        if not self.worker_hosts:
            raise FlagError("worker_hosts", "", "a job of several processes needs its workers")
        addresses = [self.address(task) for task in self.tasks]
        repeated = Counter(addresses)
        for task, address in zip(self.tasks, addresses, strict=True):
            reason = "" if is_address(address) else f"{address!r} is no host:port"
            if repeated[address] > 1:
                reason = reason or f"{address} is given to two tasks"
            if reason:
                raise FlagError(_flag_of(task), self.addresses_of(task.job), reason)

    def _check_task(self) -> None:
        job, index = self.task.job, self.task.index
        if not self.in_cluster:
            if self.task.job in (WORKER, PS, CONTROLLER):
                reason = f"needs --{_flag_of(self.task)}, the addresses of that job"
                raise FlagError("job_name", job, reason)
            return
        mine = self.addresses_of(job)
        if not mine:
            there = ", ".join(dict.fromkeys(task.job for task in self.tasks))
            raise FlagError("job_name", job, f"the job has none; it has {there}")
        if not 0 <= index < len(mine):
            raise FlagError(
                "task_index", index, f"--{_flag_of(self.task)} has tasks 0 to {len(mine) - 1}"
            )

    # Tasks.

    @property
    def in_cluster(self) -> bool:
        """Whether the job has addresses, even of a single worker only."""
        return bool(self.worker_hosts or self.ps_hosts or self.controller_host)

    @property
    def workers(self) -> tuple[Task, ...]:
        """The tasks with towers; the process itself where there is no cluster."""
        if not self.in_cluster:
            return (self.task,)
        return tuple(Task(WORKER, index) for index in range(len(self.worker_hosts)))

    @property
    def ps(self) -> tuple[Task, ...]:
        """The tasks that hold variables."""
        return tuple(Task(PS, index) for index in range(len(self.ps_hosts)))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks: the controller if there is one, workers, ps tasks."""
        controller = (Task(CONTROLLER),) if self.controller_host else ()
        return (*controller, *self.workers, *self.ps)

    @property
    def chief(self) -> Task:
        """The task that prints, saves and decides: the controller, or worker 0."""
        return self.tasks[0]

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief; true of a run in one process."""
        return self.task == self.chief

    @property
    def serves(self) -> bool:
        """Whether this process runs no step of its own and serves the chief."""
        if self.client_per_worker and self.in_cluster:
            return self.task.job != WORKER
        return not self.is_chief

    @property
    def peers(self) -> tuple[Task, ...]:
        """All tasks except this one."""
        return tuple(task for task in self.tasks if task != self.task)

    def addresses_of(self, job: str) -> tuple[str, ...]:
        """host:port of every task of a job, by index; empty for a job without tasks."""
        controller = (self.controller_host,) if self.controller_host else ()
        return {WORKER: self.worker_hosts, PS: self.ps_hosts, CONTROLLER: controller}.get(job, ())

    def address(self, task: Task) -> str:
        """host:port of a task of a cluster."""
        return self.addresses_of(task.job)[task.index]

    @property
    def hosts_by_job(self) -> dict[str, list[str]]:
        """Argument of `tf.train.ClusterSpec`."""
        tasks = self.tasks if self.in_cluster else ()
        return {task.tensorflow_job: list(self.addresses_of(task.job)) for task in tasks}

    @property
    def machines(self) -> int:
        """Number of machines with towers, by the host names of their addresses."""
        return len({host_and_port(address)[0] for address in self.worker_hosts}) or 1

    @property
    def addresses_by_task(self) -> dict[str, str]:
        """host:port by the name of the task, the chief first; empty without a cluster."""
        return {str(task): self.address(task) for task in self.tasks} if self.in_cluster else {}

    # Towers.

    @property
    def num_workers(self) -> int:
        """Number of tasks with towers."""
        return len(self.workers)

    @property
    def num_towers(self) -> int:
        """Number of towers of the whole job."""
        return self.num_workers * self.towers_per_worker

    @property
    def own_towers(self) -> range:
        """Numbers of the towers whose step this process builds; none for one that serves."""
        if self.serves:
            return range(0)
        if not self.client_per_worker:
            return range(self.num_towers)
        first = self.task.index * self.towers_per_worker
        return range(first, first + self.towers_per_worker)

    @property
    def own_workers(self) -> tuple[Task, ...]:
        """The tasks whose towers are `own_towers`."""
        if self.serves:
            return ()
        return (self.task,) if self.client_per_worker else self.workers

    def devices_of(self, *workers: Task) -> tuple[str, ...]:
        """Full names of the devices of the towers of some workers, in order."""
        order = self.device_order or range(self.towers_per_worker)
        return tuple(worker.device(self.device, number) for worker in workers for number in order)

    @property
    def tower_devices(self) -> tuple[str, ...]:
        """The devices of all towers of the job."""
        return self.devices_of(*self.workers)

    @property
    def own_tower_devices(self) -> tuple[str, ...]:
        """The devices of `own_towers`."""
        return self.devices_of(*self.own_workers)

    def on(self, device: str, order: Sequence[int] = ()) -> Job:
        """The same job with its towers on other devices; `order` as `device_order`."""
        return dataclasses.replace(self, device=device, device_order=tuple(order))

    # CPUs.

    @property
    def cpu_device(self) -> str:
        """The first CPU of this process."""
        return self.task.device("cpu")

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """The first CPU of every task with towers."""
        return tuple(task.device("cpu") for task in self.workers)

    @property
    def ps_devices(self) -> tuple[str, ...]:
        """The first CPU of every ps task, which hold the variables."""
        return tuple(task.device("cpu") for task in self.ps)


def split_hosts(text: str | None) -> tuple[str, ...]:
    """The addresses of a flag such as --worker_hosts: comma-separated, spaces ignored."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def is_address(text: str) -> bool:
    """Whether a text is host:port."""
    return bool(_ADDRESS.fullmatch(text)) and 1 <= host_and_port(text)[1] <= LARGEST_PORT


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _flag_of(task: Task) -> str:
    return "controller_host" if task.job == CONTROLLER else f"{task.job}_hosts"


# Ports reserved for the servers of a job.

LOWEST = 10000

_TRIES = 1000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPorts(contextlib.ExitStack):
    """Ports, `numbers`, that no other program gets until closed; own servers can listen on them.

    Each is held by a socket that does not listen and that, once bound, allows other sockets with
    SO_REUSEADDR, as servers have, on its port. They are outside the range of outgoing connections,
    so they also stay free between two runs of a process.
    """

    def __init__(self, count: int) -> None:
        """Reserves ports; BenchmarkError if there are too few."""
        super().__init__()
        self.numbers: list[int] = []
        outgoing = "32768 60999"
        with contextlib.suppress(OSError):  # not on every platform
            outgoing = _RANGE_FILE.read_text(encoding="ascii")
        low, high = map(int, outgoing.split())
        free = [*range(LOWEST, low), *range(high + 1, LARGEST_PORT + 1)] or range(low, high + 1)
        for port in random.SystemRandom().sample(free, min(_TRIES, len(free))):
            if len(self.numbers) == count:
                return
            self._take(port)
        if len(self.numbers) < count:
            self.close()
            raise BenchmarkError(f"only {len(self.numbers)} of {count} ports are free")

    def _take(self, port: int) -> None:
        one = unbound()
        try:
            one.bind(("", port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            one.close()
        else:
            self.enter_context(one)
            self.numbers.append(port)


def claim(port: int) -> socket.socket:
    """Claims a port among cnnbench processes until closed or dead; OSError EADDRINUSE if taken.

    A socket on the port itself that admits the server would also admit another process of cnnbench.
    So the claim is a socket of another family. On Linux its name needs no file and belongs to the
    network namespace, as the port does; elsewhere nothing is claimed.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(socket.socket(socket.AF_UNIX))
        if sys.platform == "linux":
            one.bind(f"\0cnnbench port {port}")
        stack.pop_all()
    return one


def unbound() -> socket.socket:
    """A socket for any address of this machine, of both families where it has both."""
    both = socket.has_dualstack_ipv6()
    one = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return one
