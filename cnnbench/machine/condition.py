"""A bad condition, and what the checks look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cnnbench.machine.gpu_readings import GpuView
from cnnbench.machine.sampling import Interval


@dataclass(frozen=True)
class Condition:
    """Something that may spoil the figures.

    Attributes:
      id: one of `cnnbench.machine.check_ids.CONDITIONS`; silences it in --quiet_conditions.
      text: what was found, with its figures.
      advice: what to do about it, given the flags of the run.
    """

    id: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice} (--quiet_conditions={self.id} silences this)"


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """The flags that advice depends on, as they turned out.

    Attributes:
      on_gpu: whether the towers are on GPUs.
      num_devices: towers.
      intra_threads: threads within an operation; 0 is TensorFlow's own choice, one per
        usable CPU.
      intra_threads_given: whether the user chose them.
      batch_size: images per device and step.
      gpu_indices: as given.
    """

    on_gpu: bool = False
    num_devices: int = 1
    intra_threads: int = 0
    intra_threads_given: bool = False
    batch_size: int = 0
    gpu_indices: str = ""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything the checks look at.

    Attributes:
      facts: about the machine, see `cnnbench.machine.facts`.
      interval: what happened while the run started, or in its timed loop.
      flags: of the run.
      gpus: state of the GPUs at the end of the interval.
      gpus_before: at its beginning; only of interest after the loop.
    """

    facts: Mapping[str, Any]
    interval: Interval
    flags: RunFlags = field(default_factory=RunFlags)
    gpus: GpuView = field(default_factory=GpuView)
    gpus_before: GpuView = field(default_factory=GpuView)

    @property
    def usable_cpus(self) -> int:
        """CPUs that this process may run on."""
        return int(self.facts.get("usable_cpus") or self.facts.get("logical_cpus") or 1)
