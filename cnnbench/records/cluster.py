"""The part of a record about a job of several processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cnnbench.records.codec import OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAddress:
    """One process of a job.

    Attributes:
      task: such as "worker:1".
      address: host:port.
    """

    task: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """What one worker did in the timed loop.

    Attributes:
      task: such as "worker:1".
      steps: in which it took part; where workers do not wait for one another, its own updates.
      images: that it worked on.
      lost: whether it failed while others went on.
    """

    task: str
    steps: int
    images: int
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who took part in a run of several processes, and who did what.

    Attributes:
      tasks: all processes, the chief first.
      workers: those with towers.
      staleness: of every timed step, where workers do not wait for one another: updates by
        others between what the worker read and what it wrote. Otherwise empty.
      messages_per_step, bytes_per_step: what all processes together send one another in one
        step, gradients, values of variables, losses and the learning rate, but no control
        signals; counted in the traced graph. None where nothing was traced, or where it depends
        on the values.
    """

    tasks: tuple[TaskAddress, ...]
    workers: tuple[WorkerShare, ...]
    staleness: tuple[int, ...] = field(default=())
    messages_per_step: int | None = field(default=None, metadata=OPTIONAL)
    bytes_per_step: int | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if any(number < 0 for number in self.staleness):
            raise ValueError("cluster.staleness: no amount may be negative")
        steps = sum(worker.steps for worker in self.workers)
        if self.staleness and len(self.staleness) != steps:
            raise ValueError(
                f"cluster.staleness: {len(self.staleness)} values for {steps} steps of workers"
            )
