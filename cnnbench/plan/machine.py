"""Devices, threads and compiler options of a process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cnnbench.base.jobs.job import WORKER, Job
from cnnbench.plan.part import PlanPart


@dataclass(frozen=True, kw_only=True)
class MachinePlan(PlanPart):
    """The flags of a run that configure TensorFlow, by their names, and those of the checks."""

    device: str
    num_gpus: int
    gpu_indices: str
    gpus_per_card: int
    num_intra_threads: int | None
    num_inter_threads: int
    datasets_num_private_threads: int | None
    gpu_thread_mode: str
    per_gpu_thread_count: int
    allow_growth: bool | None
    use_unified_memory: bool | None
    autotune_threshold: int | None
    winograd_nonfused: bool
    batchnorm_persistent: bool
    enable_optimizations: bool
    xla: bool
    xla_cache_dir: str | None
    peak_flops: float | None
    quiet_conditions: str

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs of the run, logical ones of divided cards, in their order."""
        named = [int(number) for number in self.gpu_indices.split(",") if number]
        return tuple(named or range(self.num_gpus))[: self.num_gpus]

    @property
    def cards(self) -> tuple[int, ...]:
        """Numbers of the cards of these GPUs, among those that are visible."""
        return tuple(dict.fromkeys(number // self.gpus_per_card for number in self.gpus))

    def of_task(self, job: Job) -> MachinePlan:
        """The settings of this process of `job`; one without towers gets one CPU device."""
        if job.in_cluster and job.task.job != WORKER:
            return replace(self, device="cpu", num_gpus=1, gpu_indices="")
        return self
