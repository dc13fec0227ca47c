"""From the flags of a run to the description of its job."""

from __future__ import annotations

from cnnbench.flags.params import Params
from cnnbench.runtime.job import LOCAL, Job, Task, split_hosts

CLIENT_PER_WORKER = ("collective_all_reduce", "multi_worker_mirrored_strategy")
"""The modes in which every worker builds and runs the step of its own towers."""


def job_of(params: Params, device: str = "cpu") -> Job:
    """The job that the flags describe.

    Args:
      params: values each checked by itself.
      device: kind of the towers' devices, once it is known.

    Raises:
      FlagError: for addresses or a task that cannot be.
    """
    return Job(
        task=Task(params.job_name or LOCAL, params.task_index),
        worker_hosts=split_hosts(params.worker_hosts),
        ps_hosts=split_hosts(params.ps_hosts),
        controller_host=params.controller_host or None,
        client_per_worker=params.variable_update in CLIENT_PER_WORKER,
        towers_per_worker=params.num_gpus,
        device=device,
    )
